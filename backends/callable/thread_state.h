// KeptThreadState: the switches under which a callable runs, to be put back where it raises or leaves them switched. A
// block that switched them (`no_grad` between two nodes, say) is not left where it raises.
//   K1  Restore puts back all of the following. Modes: grad mode, inference mode, autocast, forward gradients, torch
//       function and dispatch modes, transforms of torch.func, anomaly mode. Others: dispatch keys, hooks of saved
//       tensors, the default dtype and the deterministic switches.
//   K2  Guards of inference mode that are still alive must have been left before: their end restores what they met.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <c10/core/AutogradState.h>
#include <c10/core/ScalarType.h>

namespace frametap {

class KeptThreadState {
 public:
  KeptThreadState();
  // Returns whether a switch that a callable may leave by mistake has changed. Does not read modes that need a `with`.
  bool IsSwitched() const;
  void Restore() const;

 private:
  struct Rest {  // what is not in the thread's local state
    c10::ScalarType autocast_dtype, default_dtype;
    int autocast_nesting;
    bool autocast_cache, anomaly, anomaly_checks_nan, deterministic, deterministic_warns, fills_memory;
    bool operator==(const Rest&) const = default;
  };
  static Rest Now();

  const at::ThreadLocalState local_;
  const c10::AutogradState autograd_;
  const bool autocast_;
  const Rest rest_;
};

}  // namespace frametap
