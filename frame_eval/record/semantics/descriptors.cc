#include "frame_eval/record/semantics/descriptors.h"

#include "guards/throw_if_null.h"

namespace frametap {

bool CallsC(PyObject* descriptor, const char* part) {
  if (Py_TYPE(descriptor) != &PyProperty_Type) return false;
  const Ref<> called = Must(PyObject_GetAttrString(descriptor, part));
  return called.get() != Py_None && !PyFunction_Check(called.get());
}

Ref<> WrappedFunction(PyObject* method) { return Must(PyObject_GetAttrString(method, "__func__")); }

}  // namespace frametap
