// WorldState: the state of the thread that every segment guards, and its words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "guards/kinds/miss_report.h"
#include "ir/segment/state.h"

namespace frametap {

// The thread's state that every segment guards; taken at the entry.
struct WorldState {
  bool grad_mode, forward_grad, inference_mode, autocast_cpu, autocast_cache, deterministic, anomaly_mode;
  int8_t autocast_dtype, default_dtype;
  // torch.backends' switches (cudnn, mkldnn, the kinds of attention) and whether sparse tensors are checked.
  uint16_t backends;
  // Another number when methods or operators of torch.nn.Parameter or its bases, torch.Tensor among them, have changed.
  uint32_t tensor_class;
  bool modes_active;  // torch-function or dispatch modes, functorch levels, tracing by torch.jit: never recorded under
  static WorldState Now();  // a few nanoseconds; needs no Python lock but the caller has it anyway
  static uint16_t BackendsNow();
  friend bool operator==(const WorldState&, const WorldState&) = default;
};

std::vector<StateFact> ShownFacts(const WorldState& state);  // grad mode and autocast; others if unusual
std::string ActiveModes();                                   // what makes `modes_active` true on this thread
bool HasActiveModes();
bool IsKnown(const WorldState& state);  // false: there was no memory to look; fits nothing
bool DescribeStateMiss(const WorldState& want, const WorldState& got, MissReport* report);  // false if they are equal

}  // namespace frametap
