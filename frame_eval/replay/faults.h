// Faults: exceptions of a replay that the program itself does not raise. A backend's kernel failed, or we did.
//   W1  An exception of compiled code is the program's if the recorded ops raise for the same inputs. One of an op that
//       was run as recorded is the program's unless plain Python, which then runs the call, returns.
//   W2  Interrupts, and want of memory or of stack, are never faults.
//   W3  A fault is counted and logged, and the first one of a segment is a FrametapWarning. After kMostFaults the
//       segment is given up, and its calls run in plain Python. Under `strict`, or where the run's changes cannot be
//       taken back, it is a BackendError.
//   W4  Random state and tensors are afterwards as they were before the replay: the program runs once.
// Not here: how changes are taken back (rollback.h).
#pragma once

#include <Python.h>

#include <memory>
#include <vector>

#include "frame_eval/segment/segment.h"

namespace frametap {

constexpr int kMostFaults = 3;

// W1, for compiled code: returns whether ops of the graph raise for these inputs. Keeps the pending exception. Ops may
// have written to inputs and drawn random numbers: the caller takes that back.
bool RecordedOpsRaise(Segment& segment, const std::vector<c10::IValue>& inputs);

// Whether the op that raised can be run once more without anybody noticing: all ops are torch's own.
bool RunsOnlyOpsOfTorch(const Segment& segment);

// Takes the pending exception, which keeps its traceback. Returns null if there is none.
Ref<> TakeException();

// W2, of the pending exception.
bool MayBeFault();

// W3. Takes the pending exception. Returns true if plain Python may run the call, and false if a Python exception is
// set.
bool TellFault(SegmentCache& store, Segment& segment, bool undone);

// The exception of an op that ran as recorded, until plain Python has run the call (W1).
class Suspicion {
 public:
  // Takes the pending exception.
  void Take(std::shared_ptr<Segment> segment);
  bool is_held() const { return segment_ != nullptr; }
  // Plain Python has returned. Returns false if a Python exception is set.
  bool Confirm(SegmentCache& store);
  void Drop() { *this = Suspicion(); }

 private:
  std::shared_ptr<Segment> segment_;
  Ref<> error_;
};

}  // namespace frametap
