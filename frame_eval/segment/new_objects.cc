#include "frame_eval/segment/new_objects.h"

namespace frametap {
namespace {

PyTypeObject* BuiltinOf(PyObject* container) {
  if (PyList_Check(container)) return &PyList_Type;
  if (PyDict_Check(container)) return PyODict_Check(container) ? &PyODict_Type : &PyDict_Type;
  return PySet_Check(container) ? &PySet_Type : nullptr;
}

}  // namespace

Ref<> EffectMethod(PyObject* target, PyObject* name) {
  PyTypeObject* const builtin = BuiltinOf(target);
  if (builtin == nullptr || Py_TYPE(target) == builtin) return Ref<>::Steal(PyObject_GetAttr(target, name));
  PyObject* const method = _PyType_Lookup(builtin, name);
  if (method != nullptr && Py_TYPE(method)->tp_descr_get != nullptr) {
    return Ref<>::Steal(Py_TYPE(method)->tp_descr_get(method, target, reinterpret_cast<PyObject*>(Py_TYPE(target))));
  }
  PyErr_SetObject(PyExc_AttributeError, name);
  return Ref<>();
}

}  // namespace frametap
