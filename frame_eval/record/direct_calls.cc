#include "frame_eval/record/direct_calls.h"

#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/interpreter/opcodes/names.h"
#include "guards/objects/well_known_objects.h"

namespace frametap {

PyFunctionObject* CalledFunction(const FrameState& f) {
  PyObject* callable = CallSiteOf(f).callable;
  // A method may bind an instance that can be called, and so on.
  while (callable != nullptr && !PyFunction_Check(callable)) {
    if (PyMethod_Check(callable)) {
      callable = PyMethod_GET_FUNCTION(callable);
      continue;
    }
    PyTypeObject* type = Py_TYPE(callable);
    // The slot that looks `__call__` up in the class and calls it.
    if (type->tp_call != Objects().module->tp_call) return nullptr;
    callable = _PyType_Lookup(type, interned.call);
    if (callable != nullptr && !PyFunction_Check(callable)) return nullptr;
  }
  return reinterpret_cast<PyFunctionObject*>(callable);
}

bool IsDirectCall(const FrameState& caller, const FrameState& callee) {
  if (callee.function == nullptr || !IsNextFrame(caller, callee)) return false;
  if (!callee.is_generator) return CalledFunction(caller) == callee.function;
  PyObject* taken = TakeSiteOf(caller).iterator;
  return taken != nullptr && PyGen_CheckExact(taken) && FrameOfGenerator(taken) == callee.raw &&
         IsPlainGenerator(callee.code);
}

}  // namespace frametap
