// Weak references to classes, by which a WeakKeyDictionary finds its item for a class (functools.singledispatch).
//   R1  A class that is compared and hashed by identity has one reference without a callback, which its base keeps. So a
//       reference to a fixed class is fixed, and a look-up by it runs no code.
// Not here: calls of weak references (weak_references.h).
#pragma once

#include "frame_eval/record/trace.h"

namespace frametap {

bool IsPlainClass(PyObject* object);  // compared and hashed by identity
bool IsReferenceToClass(PyObject* object);
// Returns the key of the dict that refers to the same class, borrowed, or null.
PyObject* KeyForClass(PyObject* dict, PyObject* reference);
void ReferToClass(Trace& trace, Call& call);  // weakref.ref(C)

}  // namespace frametap
