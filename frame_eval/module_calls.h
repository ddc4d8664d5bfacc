// nn.Module.__call__, which a recording crosses in two steps (Recorder::CrossModuleCall).
#pragma once

#include <Python.h>

namespace frametap {

bool LoadModuleCalls();                 // once, after LoadKnownObjects; false with a Python exception set
bool IsModuleCall(PyCodeObject* code);  // one of its functions, and it may be crossed
// For tests. Off: it is interpreted like any code. Gives whether it was crossed before: not where torch's code is not
// what this was written for.
bool CrossModuleCalls(bool on);

}  // namespace frametap
