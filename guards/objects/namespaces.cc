#include "guards/objects/namespaces.h"

#include "guards/throw_if_null.h"

namespace frametap {

PyTypeObject* NamespaceType() {
  static PyTypeObject* const type = [] {
    const Ref<> module = Must(PyImport_ImportModule("types"));
    return reinterpret_cast<PyTypeObject*>(Must(PyObject_GetAttrString(module.get(), "SimpleNamespace")).Release());
  }();
  return type;
}

}  // namespace frametap
