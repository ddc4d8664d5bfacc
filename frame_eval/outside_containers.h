// Queries about containers that existed before and are changed (outside_containers.cc).
#pragma once

#include <Python.h>

namespace frametap {

// Whether `dict[key] = value` is the store of dict or OrderedDict, and runs no code of the class.
bool HasPlainStore(PyObject* dict);
PyTypeObject* DefaultDict();  // collections.defaultdict

}  // namespace frametap
