// RefusedCall: the exception with which a call ends that may not continue. fullgraph refuses the end of a graph, and
// assert_no_recording a recording. A marked size, a backend and the self-check may fail.
//   R1  It is an object of its own until the session raises it: the program's exceptions come and go meanwhile.
// Not here: where it is raised (session.cc), what is taken back before (trace/undo.h).
#pragma once

#include <Python.h>

#include <string>

#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/segment/reasons.h"
#include "frame_eval/segment/segment.h"
#include "guards/ref.h"

namespace frametap {

class RefusedCall {
 public:
  bool is_set() const { return static_cast<bool>(value_); }
  bool insists() const { return is_set() && insists_; }  // it is raised at each instruction as well
  void Raise() const;

  void Set(PyObject* type, const std::string& message);
  // Takes the exception that is pending, if there is one (the making of another has failed, say).
  void TakePending();
  // Drops the exception that is pending. If the program lets this very one pass, it keeps the traceback of its way.
  static void DropPending();
  // Refuses a call whose graph ends for this reason, and notes the break.
  void EndOfGraph(SegmentCache& store, const Break& reason, const Position& at);
  // Refuses to record at the frame's instruction. `segment`: the one that did not fit, or "".
  void Recording(const FrameState& f, const char* reason, const std::string& segment, const MissReport& miss);

  // Returns whether the call fails for this reason. Others that give a recording up do not depend on the function: a debugger
  // follows the thread, a mode is active, the program has raised an exception of its own.
  static bool Is(const SegmentCache& store, Reason reason);

 private:
  void Fail(PyObject* type, const std::string& message, Ref<> facts);

  Ref<> value_;
  bool insists_ = true;
};

// For a function that is never captured, under fullgraph.
void RaiseFullGraphError(Reason reason, PyCodeObject* code);

}  // namespace frametap
