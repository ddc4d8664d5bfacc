// Rollback: an op of a replay may raise after others have written to tensors that existed before, or have drawn random
// numbers. Then all of it is taken back, and plain Python runs the call from the segment's start. It raises the
// exception at its own line, with its own handlers.
//   B1  Afterwards memory, version counters, gradient history and random state are as they were before the replay.
//       Where an op raises before the first change (Executable::Run says so), there is nothing to take back.
//   B2  Copies are made only where an op may raise: inputs of sizes that have not run through before (or written to as
//       leaves or as views, or sharing memory, which have not), or an op behind the first change that refuses some
//       elements (an index out of range). Of the latter, no more than kMostBytesCopied: a replay must not copy a cache of keys
//       and values at each token.
//   B3  Without a copy, a graph with an op that may raise runs only if no handler of the program waits for the exception
//       and no effect comes before it. Else plain Python runs the call.
// Not here: what the recording itself has done (undo.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <vector>

#include "frame_eval/segment/segment.h"
#include "frame_eval/state/tensor_state.h"

namespace frametap {

class Rollback {
 public:
  // Before the run. Copies nothing where nothing need be taken back.
  Rollback(Segment& segment, const std::vector<c10::IValue>& inputs);
  ~Rollback();
  Rollback(const Rollback&) = delete;
  Rollback& operator=(const Rollback&) = delete;

  // It would take too much, and an exception without it would be visible: the graph must not run.
  bool is_refused() const { return refused_; }
  // The ops have run through for such inputs, and none of them refuses elements.
  bool ops_cannot_raise() const { return cannot_raise_; }
  void Succeeded();
  bool TakeBack();  // false: something could not be taken back

 private:
  Segment& segment_;
  uint64_t sizes_ = 0;
  bool armed_ = false, refused_ = false, cannot_raise_ = false;
  std::vector<TensorState> saved_;
  at::Tensor random_state_;
};

}  // namespace frametap
