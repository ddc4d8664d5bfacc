// The elements of a container, as C code reads them that compares or hashes each one (identity/E2).
//   L1  Nothing here runs code.
//   L2  The elements of an iterator are unknown until something has taken them. A table that C code fills from one is
//       read when it is full: that two of the elements were one object is guarded already.
// Not here: what is read of the elements (identity.cc).
#pragma once

#include <Python.h>

#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/set_check.h"
#include "frame_eval/record/trace.h"
#include "guards/cpython/deque_view.h"

namespace frametap {

inline PyObject* DictOfView(PyObject* view) {
  return reinterpret_cast<PyObject*>(reinterpret_cast<_PyDictViewObject*>(view)->dv_dict);
}

// The keys and values of a dict are scalars, or tuples of these.
bool HoldsPlainItems(PyObject* dict);

// The containers whose elements are known.
enum class ElementsKind : uint8_t {
  kUnknown,
  kScalars,  // none, or scalars
  kRow,      // of a tuple or list
  kKeys,     // of a dict, whose elements are its keys
  kSet,
  kDeque,
  kKeysView,
  kValuesView,
  kItemsView,  // the pairs are made for each walk
};
inline ElementsKind KindOfElements(PyObject* container) {
  if (PyTuple_Check(container) || PyList_Check(container)) return ElementsKind::kRow;
  if (PyDict_Check(container)) return ElementsKind::kKeys;
  if (IsAnySet(container)) return ElementsKind::kSet;
  if (IsDeque(container)) return ElementsKind::kDeque;
  if (PyDictKeys_Check(container)) return ElementsKind::kKeysView;
  if (PyDictValues_Check(container)) return ElementsKind::kValuesView;
  if (PyDictItems_Check(container)) return ElementsKind::kItemsView;
  return IsScalar(container) || PyRange_Check(container) ? ElementsKind::kScalars : ElementsKind::kUnknown;
}

inline bool HasKnownElements(PyObject* container) {
  const ElementsKind kind = KindOfElements(container);
  if (kind == ElementsKind::kItemsView) return HoldsPlainItems(DictOfView(container));
  return kind != ElementsKind::kUnknown;
}

// Calls `f` with each element, or with each key of a dict. Returns false if the elements are unknown.
template <class F>
bool ForEachElement(PyObject* container, F&& f) {
  Py_ssize_t at = 0;
  PyObject *key, *value;
  Py_hash_t hash;
  switch (KindOfElements(container)) {
    case ElementsKind::kRow:
      for (; at < PySequence_Fast_GET_SIZE(container); ++at) f(PySequence_Fast_GET_ITEM(container, at));
      return true;
    case ElementsKind::kKeys:
      while (PyDict_Next(container, &at, &key, &value)) f(key);
      return true;
    case ElementsKind::kSet:
      while (_PySet_NextEntry(container, &at, &key, &hash)) f(key);
      return true;
    case ElementsKind::kDeque:
      for (; at < DequeLength(container); ++at) f(DequeItem(container, at));
      return true;
    case ElementsKind::kKeysView:
      return ForEachElement(DictOfView(container), f);
    case ElementsKind::kValuesView:
      while (PyDict_Next(DictOfView(container), &at, &key, &value)) f(value);
      return true;
    case ElementsKind::kItemsView:
      return HoldsPlainItems(DictOfView(container));
    case ElementsKind::kScalars:
      return true;
    case ElementsKind::kUnknown:
      return false;
  }
  return false;
}

// Returns whether each element is known and a scalar, or a tuple of these.
bool HoldsPlainValues(PyObject* container);

// Returns whether the object's class has this method in Python code, which comes as a frame.
inline bool HasMethodInPython(PyObject* object, PyObject* name) {
  PyObject* const found = _PyType_Lookup(Py_TYPE(object), name);
  return found != nullptr && PyFunction_Check(found);
}

// Reads the keys of a table that the call or display `e` has filled (L2).
void ReadTableOfIterator(Trace& trace, const Event& e, PyObject* result);

}  // namespace frametap
