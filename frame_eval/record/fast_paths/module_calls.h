// nn.Module.__call__, which a recording crosses in two steps (Recorder::CrossModuleCall).
#pragma once

#include <Python.h>

#include <array>
#include <optional>

namespace frametap {

bool LoadModuleCalls();                 // once, after LoadKnownObjects; false with a Python exception set
bool IsModuleCall(PyCodeObject* code);  // one of its functions, and it may be crossed
// The `forward` of quantized models, which run by themselves: no recording goes into it, and none begins inside. Null until
// the package has set it; never freed.
PyCodeObject*& OwnExecutable();
// The four dicts of hooks (borrowed), all empty, of a module whose call comes down to the `forward` of its class.
// Other modules' hooks or the class's own call functions may change that. Returns none for any other object.
std::optional<std::array<PyObject*, 4>> NoHooksOf(PyObject* object);
// Whether torch's code is the code that is crossed. If it is not, it is interpreted like any other.
bool KnowsModuleCalls();
// Off: it is interpreted like any code. Gives whether it was crossed before.
bool CrossModuleCalls(bool on);

}  // namespace frametap
