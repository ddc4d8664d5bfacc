// Fields of functions: what they are called, their documentation, annotations and defaults (functools.wraps).
//   F1  The code of a function from outside belongs to its identity (kinds/identity.cc). Its other fields can be
//       assigned to, and are guarded by themselves.
//   F2  A function of the trace's own is described by its fields as they are (describe.cc), so what is stored there is
//       fixed.
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"

namespace frametap {

bool FunctionAttribute(Trace& trace, FrameNote& note, PyObject* function, PyObject* name);
// Guards the name by which a function from outside is printed.
void FixPrintedName(Trace& trace, PyObject* function);
bool StoreFunctionAttribute(Trace& trace, PyObject* function, PyObject* name, PyObject* value, Shadow shadow);

}  // namespace frametap
