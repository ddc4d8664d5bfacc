// The frames of a recording: which frames belong to it, how their arguments are bound, and how they are left.
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"

namespace frametap {

void FixCode(Trace& trace, PyObject* function);
bool IsFinaliser(const Trace& trace, const FrameState& f);

}  // namespace frametap
