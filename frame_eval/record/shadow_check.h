// The self-check of a recording: shadows, records and graph values are compared with the objects of the real frame.
// Each function returns the first thing that does not fit, or "".
// Not here: when it is asked, and the self-check of guards (session/self_check.h).
#pragma once

#include <Python.h>

#include <string>

#include "frame_eval/record/trace.h"

namespace frametap {

// Keeps the objects of a frame as they are now, for CheckSegment.
void KeepEntry(Trace& trace, const FrameState& f);
std::string FaultIn(Trace& trace, const FrameState& f);
// Compares the recorder's answer to an attribute read with the object's own answer.
std::string FaultOfAnswer(const FrameState& f, const Event& e);
// Compares a new segment's guards with the call that it was recorded from. For use after FinishReturn.
std::string CheckSegment(Trace& trace, Segment& segment);

}  // namespace frametap
