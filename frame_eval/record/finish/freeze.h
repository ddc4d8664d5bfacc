// The end of a recording: a graph without unused nodes, guards, run-time checks (aliases, sizes, examples), the exit.
// Not here: operands (describe.h).
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"

namespace frametap {

// Ends a recording at the return of its entry frame, or before the instruction that gives the reason for a break. Throws
// Break if the recording cannot be kept.
std::shared_ptr<Segment> FinishReturn(Trace& trace, PyObject* value, Shadow shadow);
std::shared_ptr<Segment> FinishBreak(Trace& trace, const Break& reason);

}  // namespace frametap
