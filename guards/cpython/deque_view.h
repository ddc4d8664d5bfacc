// DequeView: the content of a collections.deque, without running code. Excludes subclasses.
#pragma once

#include <Python.h>

#include "guards/ref.h"

namespace frametap {

inline PyTypeObject* DequeType() {
  static PyTypeObject* const type = [] {
    const Ref<> module = Ref<>::Steal(PyImport_ImportModule("_collections"));
    PyObject* const found = module ? PyObject_GetAttrString(module.get(), "deque") : nullptr;
    PyErr_Clear();
    return reinterpret_cast<PyTypeObject*>(found);
  }();
  return type;
}

inline bool IsDeque(PyObject* object) { return Py_TYPE(object) == DequeType(); }

inline Py_ssize_t DequeLength(PyObject* deque) { return Py_SIZE(deque); }

// Borrowed; null if there is none.
inline PyObject* DequeItem(PyObject* deque, Py_ssize_t index) {
  if (index < 0 || index >= DequeLength(deque)) return nullptr;
  return Ref<>::Steal(Py_TYPE(deque)->tp_as_sequence->sq_item(deque, index)).get();  // the deque keeps it
}

}  // namespace frametap
