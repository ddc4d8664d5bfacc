// Must, OwnDict, InstanceDict, InternedName, Interned, ItemNamed: names, and results of the C-API that the process cannot do without. An answer of
// -1 is not taken for a no.
//   M1  A failure (no memory) is thrown as std::bad_alloc, with the Python exception still set. Session and GuardTree,
//       who call recorders and guards, catch it: the recording is given up, the verdict is a miss. Where there is no memory
//       for that either, the interpreter leaves the frame to plain Python and clears the exception.
//   M2  A name is kept in a static of its function: where it could not be made, the static is made at the next call.
#pragma once

#include <Python.h>

#include <new>

#include "guards/ref.h"

namespace frametap {

inline Ref<> Must(PyObject* owned) {
  if (owned == nullptr) throw std::bad_alloc();
  return Ref<>::Steal(owned);
}

// Returns a yes or no of the C-API. Its third answer, -1, is an error.
inline bool Must(int answer) {
  if (answer < 0) throw std::bad_alloc();
  return answer != 0;
}

// Returns the place of an object's own dict; null if it has none. An object with inline values is given its dict. CPython
// gives null, too, if there is not enough memory for that.
inline PyObject** OwnDict(PyObject* object) {
  PyObject** const dict = _PyObject_GetDictPtr(object);
  if (dict == nullptr && (Py_TYPE(object)->tp_flags & Py_TPFLAGS_MANAGED_DICT) != 0) throw std::bad_alloc();
  return dict;
}

// Returns the __dict__ of an instance. Borrowed; null if the object has none.
inline PyObject* InstanceDict(PyObject* object) {
  PyObject** const dict = OwnDict(object);
  return dict ? *dict : nullptr;
}

inline PyObject* InternedName(const char* text) { return Must(PyUnicode_InternFromString(text)).Release(); }

// Returns an item of a dict, borrowed. It is null if there is none, and with an exception set if it cannot be looked up.
// PyDict_GetItemString finds nothing, too, where there is no memory for the key.
inline PyObject* ItemOrError(PyObject* dict, const char* name) {
  const Ref<> key = Ref<>::Steal(PyUnicode_InternFromString(name));
  return key ? PyDict_GetItemWithError(dict, key.get()) : nullptr;
}

// The same by M1.
inline PyObject* ItemNamed(PyObject* dict, const char* name) {
  PyObject* const item = ItemOrError(dict, name);
  if (item == nullptr && PyErr_Occurred() != nullptr) throw std::bad_alloc();
  return item;
}

// The one string that stands for all equal to `name`, as instructions have it.
inline Ref<> Interned(PyObject* name) {
  PyObject* interned = Ref<>::New(name).Release();
  PyUnicode_InternInPlace(&interned);
  return Ref<>::Steal(interned);
}

}  // namespace frametap
