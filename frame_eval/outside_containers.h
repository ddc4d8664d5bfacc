// Queries about containers that existed before and are changed (outside_containers.cc).
#pragma once

#include <Python.h>

namespace frametap {

// Whether `dict[key] = value` is the store of dict or OrderedDict, and runs no code of the class.
bool HasPlainStore(PyObject* dict);
PyTypeObject* DefaultDict();  // collections.defaultdict
// Whether a key is a number, string or another scalar except NaN, or a tuple of plain keys.
bool IsPlainKey(PyObject* key, int depth = 0);

}  // namespace frametap
