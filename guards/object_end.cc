#include "guards/object_end.h"

namespace frametap {
namespace {

bool IsConstantKind(PyObject* object) { return PyType_Check(object) || PyModule_Check(object) || PyCode_Check(object); }

}  // namespace

bool IsGenerator(PyObject* object) {
  return PyGen_CheckExact(object) || PyCoro_CheckExact(object) || PyAsyncGen_CheckExact(object);
}

bool EndRunsCode(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  if (PyGen_CheckExact(object)) {
    auto* code = reinterpret_cast<PyCodeObject*>(reinterpret_cast<PyGenObject*>(object)->gi_code);
    return PyBytes_GET_SIZE(code->co_exceptiontable) > 0;
  }
  if (type->tp_finalize != nullptr || type->tp_del != nullptr) return true;
  if (type->tp_weaklistoffset <= 0) return false;
  auto* reference = *reinterpret_cast<PyWeakReference**>(reinterpret_cast<char*>(object) + type->tp_weaklistoffset);
  if (reference == nullptr || IsConstantKind(object)) return false;
  for (; reference != nullptr; reference = reference->wr_next) {
    if (reference->wr_callback != nullptr) return true;
  }
  return false;
}

ObjectIdentity::ObjectIdentity(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  if ((type->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0 && PyType_SUPPORTS_WEAKREFS(type) && !IsConstantKind(object)) {
    held_ = Ref<>::Steal(PyWeakref_NewRef(object, nullptr));
    weak_ = static_cast<bool>(held_);
    if (!weak_) PyErr_Clear();
  }
  if (!weak_) held_ = Ref<>::New(object);
}

PyObject* ObjectIdentity::get() const {
  if (!weak_) return held_.get();
  PyObject* object = PyWeakref_GET_OBJECT(held_.get());
  return object == Py_None ? nullptr : object;
}

int ObjectIdentity::Traverse(visitproc visit, void* arg) const {
  Py_VISIT(held_.get());
  return 0;
}

}  // namespace frametap
