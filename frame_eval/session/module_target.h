// ModuleTarget: the function that a call of a module comes down to (compiled_function/F2).
#pragma once

#include <Python.h>

#include "frame_eval/segment/compiled_form.h"
#include "frame_eval/session/module_route.h"

namespace frametap {

// compiled_function/F2, of a module.
struct Route {
  ModuleRoute to_forward;
  PyTypeObject* announced = nullptr;  // the module's class that the package knows of; not held
};

// Returns the __call__ of the object's class. Returns null where it is not a function of Python: only a call of the
// object shows its binding, or that there is none.
PyObject* CallOfClass(PyObject* object);

// Returns `forward` or the __call__ of the module's class. Borrowed; null as of CallOfClass.
PyObject* ModuleTarget(CompiledFunction* self, bool* is_forward);

// Adds the frames to the traceback that an exception has come through where nn.Module.__call__ is called.
void AddModuleFrames();

}  // namespace frametap
