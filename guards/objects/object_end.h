// The end of objects: whether code runs when one dies, so that it must not be kept alive for longer than in plain
// Python.
// Not here: who watches such objects while recording (frame_eval/record/objects/object_ends.cc).
#pragma once

#include <Python.h>

#include <vector>

#include "guards/ref.h"

namespace frametap {

// Returns whether the object has a __del__ method, a finaliser of its type or a weak reference with a callback, or is a
// generator that may have blocks to leave. It ignores objects that are defined once, since abc and torch watch them by
// callbacks, and none of them dies in a recorded call.
bool EndRunsCode(PyObject* object);
bool IsDefinedOnce(PyObject* object);  // a class, a module, code, or a function that is not local to another one
bool IsGenerator(PyObject* object);    // or a coroutine, or an asynchronous generator

// Appends the objects that it holds, as the garbage collector finds them.
void AddHeld(PyObject* object, std::vector<PyObject*>* held);

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
