// Numbers on their way to an op (numbers/N1). The arguments of a torch function are noted. When the op has run,
// the arguments of its node that are these numbers become their values.
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"

namespace frametap {

void TorchCall(Trace& trace, FrameNote& note, Call* call, const char* name);  // arguments of a dispatching C function
void BindSymbolicArgs(Trace& trace, FrameNote& note, const Event& e, PyObject* result);

}  // namespace frametap
