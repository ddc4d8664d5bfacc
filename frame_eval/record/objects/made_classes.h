// Classes that a call has made itself: the next call makes others, so no segment may be guarded to have them.
//   C1  A class counts only where nothing except the frame that got it leads to it. One in a registry or cache may come again.
//   C2  A wrong answer costs a graph break, or a recording that never fits. It changes no result.
//   C3  Keeping an object without reading it (a tuple, a cell, an argument of a Python function) is not a use of its
// class.
// Not here: the break (session.cc).
#pragma once

#include <Python.h>

#include "absl/container/flat_hash_set.h"
#include "frame_eval/interpreter/tracer.h"

namespace frametap {

class MadeClasses {
 public:
  // Notes the class, or the class of the instance, that an instruction has pushed which Python ran.
  void Meet(PyObject* pushed);
  bool empty() const { return classes_.empty(); }
  // The class that the operation uses, by itself or by an instance; null: none (C3).
  PyTypeObject* UsedBy(const Event& event) const;

 private:
  absl::flat_hash_set<PyTypeObject*> classes_;  // borrowed: they are compared only
};

}  // namespace frametap
