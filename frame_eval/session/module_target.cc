#include "frame_eval/session/module_target.h"

#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/cpython/liveness.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

int OffsetOfCallEx(PyObject* function, bool last) {
  auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function));
  int found = 0;
  for (int at = StartOffset(code), next; at < FlowSize(code) * 2 && (found == 0 || last); at = next) {
    const InstructionInfo info = InstructionAt(code, at);
    if (info.role == InstructionRole::kCallsWithSpread) found = at;
    next = info.next;
  }
  return found;
}

}  // namespace

PyObject* CallOfClass(PyObject* object) {
  static PyObject* call_name = InternedName("__call__");
  PyObject* call = _PyType_Lookup(Py_TYPE(object), call_name);
  return call != nullptr && PyFunction_Check(call) ? call : nullptr;
}

PyObject* ModuleTarget(CompiledFunction* self, bool* is_forward) {
  PyObject* forward = self->route->to_forward.ForwardOf(self->self);
  *is_forward = forward != nullptr;
  return *is_forward ? forward : CallOfClass(self->self);
}

// In `_call_impl` the call without hooks is the first one, in `_wrapped_call_impl` it is the last.
void AddModuleFrames() {
  static PyObject* impl = Ref<>::New(_PyType_Lookup(Objects().module, InternedName("_call_impl"))).Release();
  static PyObject* wrapper = Objects().module_call;
  static const int at_impl = OffsetOfCallEx(impl, false), at_wrapper = OffsetOfCallEx(wrapper, true);
  AddTraceback(reinterpret_cast<PyFunctionObject*>(impl), at_impl);
  AddTraceback(reinterpret_cast<PyFunctionObject*>(wrapper), at_wrapper);
}

}  // namespace frametap
