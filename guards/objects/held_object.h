// HeldObject: the one object that a C object stands for, such as the dict of a mappingproxy.
//   H1  Nothing here runs code.
// Not here: what iterators take from (iterator_view.h).
#pragma once

#include <Python.h>

namespace frametap {

// CPython's mappingproxyobject, which descrobject.c keeps to itself.
struct MappingProxy {
  PyObject_HEAD PyObject* mapping;
};

inline bool IsMappingProxy(PyObject* object) { return Py_TYPE(object) == &PyDictProxy_Type; }

// Returns the mapping, borrowed; null for another object.
inline PyObject* HeldObject(PyObject* object) {
  return IsMappingProxy(object) ? reinterpret_cast<MappingProxy*>(object)->mapping : nullptr;
}

}  // namespace frametap
