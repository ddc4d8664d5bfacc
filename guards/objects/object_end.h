// The end of objects: whether code runs when one dies, so that it must not be kept alive for longer than in plain
// Python.
// Not here: who watches such objects while recording (frame_eval/record/objects/object_ends.cc).
#pragma once

#include <Python.h>

#include "guards/ref.h"

namespace frametap {

// A __del__ method or a finaliser of its type, a weak reference with a callback, a generator that may have blocks to
// leave. Classes, modules, code, and functions that are not local to another one are left out. abc and torch watch
// them by callbacks (torch.compile nearly all that it has seen), and none of these dies in a recorded call.
bool EndRunsCode(PyObject* object);
bool IsDefinedOnce(PyObject* object);  // what is left out so: a module or a class holds it
bool IsGenerator(PyObject* object);    // or a coroutine, or an asynchronous generator

// Holds which object it was, and keeps it alive only where the object cannot be held weakly, or is a constant of
// programs: a function, a class, a module.
class ObjectIdentity {
 public:
  explicit ObjectIdentity(PyObject* object);
  PyObject* get() const;  // borrowed; null if it is gone
  bool Is(PyObject* object) const { return object == get(); }
  int Traverse(visitproc visit, void* arg) const;

 private:
  Ref<> held_;  // the object, or a weak reference to it
  bool weak_ = false;
};

}  // namespace frametap
