// Operators that C code carries out unseen. A class may take them from C code (`__contains__ = words.__contains__`),
// and objects of extension types that existed before have them. Their reads cannot be guarded, so they end the
// segment.
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"

namespace frametap {

struct CallableRow;

// Returns whether it is an object of an extension type that existed before, whose content cannot be guarded, or of a class
// with such an operator.
bool IsForeign(Trace& trace, PyObject* object);
// Returns whether it is an enumeration of C++ code (pybind11::enum_). Its members are values that nothing changes, so each
// member that a source leads to is fixed.
bool IsNativeEnum(PyTypeObject* type);
// Returns whether it is the metaclass of pybind11's classes. It reads attributes as `type` does, except descriptors.
bool IsNativeMetaclass(PyTypeObject* meta);
// Returns whether its classes are made by Python code, down to `object`.
bool IsOfPythonClass(PyObject* object);
// Returns whether the class has an operator that is neither Python code nor that of a builtin base: C code without events.
bool HasForeignOperator(PyTypeObject* type);
[[noreturn]] void ThrowForeignOperator(PyObject* object);
inline bool HasForeignOperator(PyObject* object) {
  return (Py_TYPE(object)->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0 && HasForeignOperator(Py_TYPE(object));
}
inline void RefuseForeignOperator(PyObject* object) {
  if (HasForeignOperator(object)) [[unlikely]]
    ThrowForeignOperator(object);
}
// Returns the row of a class in C whose `with` blocks have one, or null.
const CallableRow* RowOfEnter(PyObject* manager);
// Does so for a key and its parts, if it is a slice or sequence: C code reads the hash or index of all of them.
void RefuseForeignKey(PyObject* key, int depth = 0);
void RefuseForeign(Trace& trace, const Event& e);

}  // namespace frametap
