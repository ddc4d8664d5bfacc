#include "guards/objects/object_end.h"

#include "guards/objects/dict_read.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

bool IsConstantKind(PyObject* object) { return PyType_Check(object) || PyModule_Check(object) || PyCode_Check(object); }

// The compiler of torch.compile notes each module that is made from its first use on, in a table of its own.
bool IsDynamos(PyObject* callback) {
  if (!PyFunction_Check(callback)) return false;
  static PyObject* const kModules[] = {InternedName("torch._dynamo.utils"), InternedName("torch._dynamo.guards"),
                                       InternedName("torch._dynamo.convert_frame")};
  for (PyObject* name : kModules) {
    PyObject* module = nullptr;
    if (NameGet(PyImport_GetModuleDict(), name, &module) != Found::kYes || !PyModule_Check(module)) continue;
    if (PyModule_GetDict(module) == reinterpret_cast<PyFunctionObject*>(callback)->func_globals) return true;
  }
  return false;
}

}  // namespace

// … in every program that does not take it out of there.
bool IsDefinedOnce(PyObject* object) {
  if (PyCFunction_Check(object)) {
    PyObject* self = PyCFunction_GET_SELF(object);
    return self == nullptr || IsConstantKind(self);
  }
  if (!PyFunction_Check(object)) return IsConstantKind(object);
  auto* code = reinterpret_cast<PyCodeObject*>(reinterpret_cast<PyFunctionObject*>(object)->func_code);
  return (code->co_flags & CO_NESTED) == 0;
}

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
  if (reference == nullptr || IsDefinedOnce(object)) return false;
  for (; reference != nullptr; reference = reference->wr_next) {
    if (reference->wr_callback != nullptr && !IsDynamos(reference->wr_callback)) return true;
  }
  return false;
}

void AddHeld(PyObject* object, std::vector<PyObject*>* held) {
  if (Py_TYPE(object)->tp_traverse == nullptr || !PyObject_IS_GC(object)) return;
  const visitproc visit = [](PyObject* part, void* arg) {
    static_cast<std::vector<PyObject*>*>(arg)->push_back(part);
    return 0;
  };
  Py_TYPE(object)->tp_traverse(object, visit, held);
}

ObjectIdentity::ObjectIdentity(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  if ((type->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0 && PyType_SUPPORTS_WEAKREFS(type) && !IsConstantKind(object)) {
    held_ = Must(PyWeakref_NewRef(object, nullptr));
    weak_ = true;
  } else {
    held_ = Ref<>::New(object);
  }
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
