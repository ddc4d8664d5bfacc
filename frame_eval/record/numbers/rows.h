// Tuples, lists and slices as rows of items: what numbers.cc and rows.cc ask of them.
#pragma once

#include <Python.h>

#include <array>

#include "frame_eval/interpreter/shadow.h"

namespace frametap {

// A tuple that is no more than its items: no class of Python gives it operators of its own.
inline bool IsPlainTuple(PyObject* object) {
  return PyTuple_Check(object) && !PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_HEAPTYPE);
}

// A tuple or list that iteration gives by place: no class of Python has an __iter__ of its own.
inline bool IteratesByPlace(PyObject* object) {
  if (PyTuple_Check(object)) return Py_TYPE(object)->tp_iter == PyTuple_Type.tp_iter;
  return PyList_Check(object) && Py_TYPE(object)->tp_iter == PyList_Type.tp_iter;
}

class Recorder;
// Notes that an iterator of C code gives what is in these rows, now or later: numbers that their lists get from here on are
// fixed.
void ViewRows(Recorder& recorder, PyObject* rows);

// Fixes what such a list is about to get, and returns whether it is one.
bool FixIfViewed(Recorder& recorder, PyObject* list, PyObject* item, Shadow shadow);

inline std::array<PyObject*, 3> PartsOf(PyObject* slice) {
  auto* parts = reinterpret_cast<PySliceObject*>(slice);
  return {parts->start, parts->stop, parts->step};
}

}  // namespace frametap
