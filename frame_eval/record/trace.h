// Trace: one recording in progress, as its parts. Free functions in the folders beside take the trace. They know what an
// operation of the program means for it.
//   C1  Every decision of the program rests on a guarded read, a graph value or a constant. A scalar without a shadow
//       is a constant. An object is known by its source, as made by the trace, or not at all; an unknown one ends the
//       segment.
//   C2  A source is read in the state at the entry. A value that the trace has written itself is kept apart
//       (ObjectRecord::written) and found first.
//   C4  Nothing here changes the program: no object is written, no user code is run.
//   C5  The program cannot observe that the recording keeps objects alive: an object whose end runs code ends when it
//       would (object_ends.cc).
//   C6  Parts do not know each other, or the trace. Those that are cut at a break have Now and Rewind.
#pragma once

#include <Python.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "frame_eval/cpython/collector.h"
#include "frame_eval/interpreter/tracer.h"
#include "frame_eval/record/finish/operand_records.h"
#include "frame_eval/record/frame_note.h"
#include "frame_eval/record/frame_stack.h"
#include "frame_eval/record/numbers/number_records.h"
#include "frame_eval/record/objects/lifetimes.h"
#include "frame_eval/record/objects/object_records.h"
#include "frame_eval/record/objects/variable_records.h"
#include "frame_eval/record/semantics/iteration.h"
#include "frame_eval/record/sites.h"
#include "frame_eval/record/trace/aten_recorder.h"
#include "frame_eval/record/trace/effects.h"
#include "frame_eval/record/trace/thread_changes.h"
#include "frame_eval/segment/segment.h"
#include "guards/collect/guard_recorder.h"

namespace frametap {

class RepeatedCalls;
struct Predictions;

// The recording as it began.
struct Entry {
  Entry(SegmentCache& store, const FrameState& base, const WorldState& world);

  Ref<> code, globals;
  std::string function;
  std::string text;  // of the segment's `entry` line; grows where the recording continues in a caller
  const bool began_at_break;
  bool is_handled = false;  // an exception at the entry reaches a handler of the frame
  const EagerState state;
  const uint16_t backends;  // as WorldState
  const bool in_anomaly_mode;
  const bool speculates;  // a graph may say what it takes for granted
  const bool has_marks;   // an argument has: a contradiction is taken back
};

struct Decided {  // a truth that is a guard (tensor_branch_guards.h)
  ValueId value;
  bool outcome;
};

// Globals that all calls of modules read, once one has (fast_paths/module_calls.h). Borrowed.
struct ModuleCallGlobals {
  PyObject* globals = nullptr;
  std::array<PyObject*, 4> hooks = {};
  PyObject* without_hooks = nullptr;  // of the last _wrapped_call_impl that was crossed, if it had one
};

struct Trace {
  Trace(SegmentCache& store, FrameState& base, const WorldState& world);
  ~Trace();

  size_t node_count() const { return aten.graph().nodes.size(); }
  // Whether a graph may take something for granted: a run that finds it wrong must be able to start over (rollback.h).
  bool may_assume() const {
    return numbers.sizes_open() && entry.speculates &&
           (!aten.memory.writes_inputs() || aten.memory.storages() != nullptr);
  }

  SegmentCache& store;
  Entry entry;
  GuardRecorder guards;
  AtenRecorder aten;
  Effects effects;
  std::vector<Decided> decisions;
  ThreadChanges thread;
  FrameStack frames;
  ObjectRecords objects;
  VariableRecords variables;
  Lifetimes lifetimes;
  NumberRecords numbers;
  Iteration iteration;
  OperandRecords operands;
  Sites sites;
  std::vector<Registration> kernels;  // as in Segment
  ModuleCallGlobals module_calls;
  std::unique_ptr<RepeatedCalls> repeated_calls;  // null: there are none
  std::unique_ptr<Predictions> predictions;       // null: no call is predicted (predicted_calls.h)
  uint32_t epoch = 1;
  bool ends_at_blocks = false;  // of inference mode: an earlier recording has ended in one, or the backend loses it

 private:
  CollectorPause collector_;
};

// Returns whether a segment has missed for another number or object in this place.
bool HasChanged(const Trace& trace, SourceId place);
bool HasChangedInLength(const Trace& trace, SourceId container);

// Takes graph, guards, effects, decisions and the thread's changes back to a mark.
void Rewind(Trace& trace, const Mark& mark);

}  // namespace frametap
