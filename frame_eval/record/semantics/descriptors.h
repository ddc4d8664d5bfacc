// Descriptors: the functions of properties, static and class methods of a class.
// Not here: whether one is found, and of which kind it is (attributes.cc).
#pragma once

#include <Python.h>

#include "guards/ref.h"

namespace frametap {

// Whether a property calls C code, which no frame shows, to do what `part` ("fget") is for.
bool CallsC(PyObject* descriptor, const char* part);

// For a static or class method.
Ref<> WrappedFunction(PyObject* method);

}  // namespace frametap
