// types.SimpleNamespace: objects of C code that are their attributes, and nothing else.
#pragma once

#include <Python.h>

namespace frametap {

PyTypeObject* NamespaceType();
inline bool IsNamespace(PyObject* object) { return Py_TYPE(object) == NamespaceType(); }

}  // namespace frametap
