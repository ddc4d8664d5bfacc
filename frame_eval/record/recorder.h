// Recorder: one recording in progress. It receives the events of the frames of one call (tracer.h), and calls the functions
// that know what each means. It keeps no fact itself: the parts of the trace do (trace.h).
//   C3  Ending a segment cuts graph, guards and effects back to the start of the current instruction of the innermost
//       frame that an exit can rebuild. The objects on the stacks up to it are still the objects of that moment.
// Not here: when to record and where to continue (session.h), the end of a segment (finish/freeze.h), C callables
// (callables/), replay (reify.h, rollback.h).
#pragma once

#include <Python.h>

#include <memory>
#include <optional>

#include "frame_eval/interpreter/tracer.h"
#include "frame_eval/record/frame_note.h"
#include "frame_eval/record/trace.h"
#include "ir/block_pool.h"
#include "ir/leaks.h"

namespace frametap {

class Recorder : public Pooled {
 public:
  Recorder(SegmentCache& store, FrameState& base, FrameNote& note, const WorldState& world);

  Trace& trace() { return trace_; }

  // -- events (session.cc); may throw Break --
  void StartInstruction();                                  // of the entry frame
  void MarkInstruction(FrameState& f, FrameNote& note);     // of a frame above it, before its first event
  void BeginWithoutBefore(FrameState& f, FrameNote& note);  // … of which After or Raised is the first event
  void Before(FrameState& f, FrameNote& note, const Event& e);
  Shadow After(FrameState& f, FrameNote& note, const Event& e, PyObject* result);
  void Raised(FrameState& f, FrameNote& note, const Event& e);
  // `left`, the entry frame, has returned or yielded: the recording continues in its caller, once that has the result.
  void ContinueIn(FrameState& caller, FrameNote& note, const FrameState& left, FrameEnd end, PyObject* result,
                  Shadow shadow);
  bool TakeResult(FrameState& f);  // the caller's next instruction; false: it is not where the call leads
  void EnterInlined(FrameState& f, FrameNote& note);
  void LeaveInlined(FrameState& f, FrameNote& note, FrameEnd end, PyObject* value, Shadow shadow);

  bool expects_frame(const FrameState& f) const;
  bool observes_inner_frames() const;
  int base_offset() const;  // of the entry frame's instruction at work
  bool may_be_undone() const { return trace_.effects.undo != nullptr; }
  // A block of inference mode has been entered: a segment that ends in it could not be resumed.
  bool is_in_inference_block() const { return trace_.thread.state.inference_mode != trace_.entry.state.inference_mode; }
  // Returns the log that takes back what the recording has done, or null. The recording must end now.
  std::unique_ptr<UndoLog> TakeUndo();

 private:
  void SetMark(FrameState& f, FrameNote& note);
  std::optional<Shadow> MarkedResult(FrameState& f, FrameNote& note, const Event& e, PyObject* result);

  Trace trace_;
  Counted<"recordings"> counted_;
};

}  // namespace frametap
