// The end of a recording: a graph without unused nodes, guards, run-time checks (aliases, sizes, examples), the exit.
// Not here: operands (describe.h).
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"
#include "frame_eval/segment/recorded_run.h"

namespace frametap {

struct Finished {
  std::shared_ptr<Segment> segment;
  std::unique_ptr<RecordedRun> run;  // null: the call keeps the values that it has
};

// Ends a recording at the return of its entry frame, or before the instruction that gives the reason for a break. Throws
// Break if the recording cannot be kept.
Finished FinishReturn(Trace& trace, PyObject* value, Shadow shadow);
Finished FinishBreak(Trace& trace, const Break& reason);

}  // namespace frametap
