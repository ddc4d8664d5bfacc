#include "frame_eval/segment/compiled_form.h"

#include "guards/throw_if_null.h"

namespace frametap {

CompiledTypes compiled_types;

PyObject* FunctionOfKind(PyTypeObject* kind) {
  static PyObject* name = InternedName("_frametap");
  PyObject* compiled = _PyType_Lookup(kind, name);
  return compiled != nullptr && Py_TYPE(compiled) == compiled_types.function ? compiled : nullptr;
}

bool IsCompiledFunction(PyObject* object) {
  return Py_TYPE(object) == compiled_types.function || Py_TYPE(object) == compiled_types.object;
}
std::shared_ptr<SegmentCache> StoreOf(PyObject* compiled) {
  return *reinterpret_cast<CompiledFunction*>(compiled)->store;
}
PyObject* CompiledFormOf(PyObject* object) {
  if (IsCompiledFunction(object)) return object;
  static PyObject* name = InternedName("__call__");
  PyObject* call = _PyType_Lookup(Py_TYPE(object), name);
  const bool is_ours = call != nullptr && Py_TYPE(call) == &PyMethodDescr_Type &&
                       reinterpret_cast<PyMethodDescrObject*>(call)->d_method == compiled_types.module_call;
  return is_ours ? FunctionOfKind(Py_TYPE(object)) : nullptr;
}
PyObject* SelfOf(PyObject* compiled) { return reinterpret_cast<CompiledFunction*>(compiled)->self; }
PyObject* FunctionOf(PyObject* compiled) { return reinterpret_cast<CompiledFunction*>(compiled)->function; }

}  // namespace frametap
