// Objects of NumPy as values of a graph.
#pragma once

#include <ATen/core/ivalue.h>
#include <Python.h>

namespace frametap {

// Returns a value that holds the object.
c10::IValue ArrayAsValue(PyObject* object);

}  // namespace frametap
