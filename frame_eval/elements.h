// The elements of a container, as C code reads them that compares or hashes each one (E2 of identity.cc).
//   L1  Nothing here runs code.
//   L2  The elements of an iterator are unknown until something has taken them. A table that C code fills from one is
//       read when it is full: that two of the elements were one object is guarded already.
// Not here: what is read of the elements (identity.cc).
#pragma once

#include <Python.h>

#include "frame_eval/recorder.h"
#include "guards/deque_view.h"

namespace frametap {

inline PyObject* DictOfView(PyObject* view) {
  return reinterpret_cast<PyObject*>(reinterpret_cast<_PyDictViewObject*>(view)->dv_dict);
}

// The keys and values of a dict are scalars, or tuples of these.
bool HoldsPlainItems(PyObject* dict);

// Calls `f` with each element, or with each key of a dict. Returns false if the elements are unknown.
template <class F>
bool ForEachElement(PyObject* container, F&& f) {
  if (PyTuple_Check(container) || PyList_Check(container)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(container); ++i) f(PySequence_Fast_GET_ITEM(container, i));
  } else if (PyDict_Check(container)) {
    Py_ssize_t at = 0;
    PyObject *key, *value;
    while (PyDict_Next(container, &at, &key, &value)) f(key);
  } else if (PyAnySet_Check(container)) {
    Py_ssize_t at = 0;
    PyObject* element;
    Py_hash_t hash;
    while (_PySet_NextEntry(container, &at, &element, &hash)) f(element);
  } else if (IsDeque(container)) {
    for (Py_ssize_t i = 0; i < DequeLength(container); ++i) f(DequeItem(container, i));
  } else if (PyDictKeys_Check(container)) {
    ForEachElement(DictOfView(container), f);
  } else if (PyDictValues_Check(container)) {
    Py_ssize_t at = 0;
    PyObject *key, *value;
    while (PyDict_Next(DictOfView(container), &at, &key, &value)) f(value);
  } else if (PyDictItems_Check(container)) {
    return HoldsPlainItems(DictOfView(container));
  } else {
    return Recorder::IsScalar(container) || PyRange_Check(container);  // scalars give scalars
  }
  return true;
}

inline bool HasKnownElements(PyObject* container) {
  return ForEachElement(container, [](PyObject*) {});
}

// Returns whether each element is known and a scalar, or a tuple of these.
bool HoldsPlainValues(PyObject* container);

// Returns whether the object's class has this method in Python code, which comes as a frame.
inline bool HasMethodInPython(PyObject* object, PyObject* name) {
  PyObject* const found = _PyType_Lookup(Py_TYPE(object), name);
  return found != nullptr && PyFunction_Check(found);
}

// Reads the keys of a table that the call or display `e` has filled (L2).
void ReadTableOfIterator(Recorder& r, const Event& e, PyObject* result);

}  // namespace frametap
