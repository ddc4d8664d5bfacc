// GraphInputs: what the graph of a segment takes at one run, from the registers of its guards.
//   L1  A weight that stands (GuardTree::Stands) is looked for once and lent to one run after the other, in a row of values
//       that outlives them. It is not counted meanwhile: a segment keeps no model alive (segment/X2).
//   L2  For the run itself a weight that the executable reads is counted, as Python's lock is released. Other inputs of
//       a call are gathered each time, and released after the run.
//   L3  A row serves one run at a time; a segment that runs several times at once has as many.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "backends/backend.h"
#include "guards/check/guard_tree.h"

namespace frametap {

struct Segment;

// Reads from the registers of the guards, which have seen the types. Returns false if a number does not fit, with a
// Python exception set.
bool GatherInput(const GuardTree& guards, SourceId source, c10::IValue* input);

class InputBuffer {
 public:
  InputBuffer() = default;
  InputBuffer(const InputBuffer&) = delete;
  InputBuffer& operator=(const InputBuffer&) = delete;
  ~InputBuffer() { Forget(); }

 private:
  friend class GraphInputs;

  void Forget();
  void Borrow(const Segment& segment);

  uint64_t standing_ = 0;                   // GuardTree::standing when the weights were found; 0: nothing is here
  std::shared_ptr<Executable> executable_;  // that the weights are for
  std::vector<c10::IValue> values_;         // beside Segment::input_sources
  std::vector<uint32_t> own_, lent_;        // which of them
  std::vector<c10::TensorImpl*> read_;      // lent ones that the executable reads
};

// After a hit, with Python's lock, which may be let go as long as it lives but not where it ends.
class GraphInputs {
 public:
  explicit GraphInputs(Segment& segment);
  ~GraphInputs();
  GraphInputs(const GraphInputs&) = delete;
  GraphInputs& operator=(const GraphInputs&) = delete;

  bool Gather();          // as GatherInput
  bool AreRight() const;  // self-check: what is lent is what the guards have reached
  const std::vector<c10::IValue>& values() const { return row_->values_; }
  Executable& executable() const { return *row_->executable_; }

 private:
  Segment& segment_;
  std::unique_ptr<InputBuffer> row_;
  bool is_counted_ = false;
};

}  // namespace frametap
