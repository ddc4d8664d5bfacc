// Whether an object is a set or frozenset, or of a class derived from one.
#pragma once

#include <Python.h>

namespace frametap {

// Returns the answer of PyAnySet_Check, which walks the bases of each other object. A class with one of these flags derives
// from another built-in type. So it cannot derive from a set as well.
inline bool IsAnySet(PyObject* object) {
  constexpr unsigned long kOthers = Py_TPFLAGS_LONG_SUBCLASS | Py_TPFLAGS_LIST_SUBCLASS | Py_TPFLAGS_TUPLE_SUBCLASS |
                                    Py_TPFLAGS_BYTES_SUBCLASS | Py_TPFLAGS_UNICODE_SUBCLASS | Py_TPFLAGS_DICT_SUBCLASS |
                                    Py_TPFLAGS_BASE_EXC_SUBCLASS | Py_TPFLAGS_TYPE_SUBCLASS;
  return (Py_TYPE(object)->tp_flags & kOthers) == 0 && PyAnySet_Check(object);
}

}  // namespace frametap
