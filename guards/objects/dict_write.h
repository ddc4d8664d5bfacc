// Stores into dicts that call no code of their keys.
#pragma once

#include <Python.h>

namespace frametap {

// Whether it is a member of an enumeration that is compared by identity and hashed by the code of Enum alone.
bool IsPlainMember(PyObject* object);

// Whether `dict[key] = value` replaces the value under the very key, which only Enum's own code would hash.
bool StoresByIdentity(PyObject* dict, PyObject* key);

// Replaces the value under the very key, by the hash that the dict knows.
bool StoreByIdentity(PyObject* dict, PyObject* key, PyObject* value);

// Stores under a key with this hash. None stands for a hash that C code computes again.
bool PutQuietly(PyObject* dict, PyObject* key, PyObject* value, PyObject* hash);

}  // namespace frametap
