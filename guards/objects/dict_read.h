// Reading dicts by key without running code of a user.
//   D1  A key is found by identity, or by hash and equality where both keys are of built-in immutable types. The answer
//       is kDoubt if only another type's __eq__ could decide. It is kDoubt, too, if such a key of the same hash lies
//       beside the found one, since the table may come to it first.
//   D2  The error indicator is not touched.
#pragma once

#include <Python.h>

#include "guards/cpython/watch.h"
#include "guards/ref.h"

namespace frametap {

enum class Found : uint8_t { kNo, kYes, kDoubt };

struct Key {
  Ref<> object;
  Py_hash_t hash = -1;  // -1 if unknown; then only identity can find it
  bool is_str = false;  // exact

  // `dict` (may be null) is where the key was read: it knows the hash of keys of any type.
  static Key Of(PyObject* object, PyObject* dict);
};

// `dict`: a dict or an instance of a subclass, whose overrides are not asked.
Found DictGet(PyObject* dict, const Key& key, PyObject** value);

// The value, borrowed, or null. For a dict that has only strings for keys (HasOnlyExactStrKeys), by one.
PyObject* StrDictGet(PyObject* dict, const Key& key);

// … by an exact string.
inline PyObject* StrDictGet(PyObject* dict, PyObject* name) {
  const Py_hash_t known = reinterpret_cast<PyASCIIObject*>(name)->hash;
  return _PyDict_GetItem_KnownHash(dict, name, known != -1 ? known : PyObject_Hash(name));
}

// Whether StrDictGet may be asked.
inline bool IsReadByName(PyObject* dict, PyObject* name) {
  return PyUnicode_CheckExact(name) && HasOnlyExactStrKeys(dict);
}

// … by any object. `*value` is borrowed, and null if it is not there.
Found NameGet(PyObject* dict, PyObject* name, PyObject** value);

// All keys are of built-in immutable types, so that a look-up by such a key runs no code.
bool HasOnlyBuiltinKeys(PyObject* dict);

Key NameKey(const char* name);  // interned

// Equality of keys as a dict sees it (1 == 1.0 == True); kDoubt as in D1.
Found SameKey(PyObject* a, PyObject* b);

}  // namespace frametap
