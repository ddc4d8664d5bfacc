// The parts of attribute look-ups that reads and writes share.
#pragma once

#include <Python.h>

#include <cstring>
#include <initializer_list>
#include <string>

#include "guards/objects/value.h"
#include "guards/throw_if_null.h"

namespace frametap {

// Returns the text of a name; borrowed.
inline const char* Text(PyObject* name) { return PyUnicode_AsUTF8(name); }

// Returns `Model.scale`.
inline std::string Qualified(PyTypeObject* type, PyObject* name) { return TypeName(type) + "." + Text(name); }

// Returns whether the name is one of these.
inline bool OneOf(const char* name, std::initializer_list<const char*> names) {
  for (const char* n : names) {
    if (std::strcmp(n, name) == 0) return true;
  }
  return false;
}

struct SlotNames {
  PyObject* get = InternedName("__getattribute__");
  PyObject* set = InternedName("__setattr__");
  PyObject* del = InternedName("__delattr__");
};

inline const SlotNames& Slots() {
  static const SlotNames names;
  return names;
}

// Returns the type's own __getattribute__, __setattr__ or __delattr__, or null if it comes down to object's. (Builtin types
// repeat object's slot in their dict.)
inline PyObject* Override(PyTypeObject* type, PyObject* slot, void* generic) {
  PyObject* found = _PyType_Lookup(type, slot);
  if (found != nullptr && Py_TYPE(found) == &PyWrapperDescr_Type &&
      reinterpret_cast<PyWrapperDescrObject*>(found)->d_wrapped == generic) {
    return nullptr;
  }
  return found;
}

// Returns whether it is a slot under a second name (`C.b = C.a`): what is written by one name is read by the other.
inline bool IsSecondName(PyObject* descriptor, PyObject* name) {
  return Py_TYPE(descriptor) == &PyMemberDescr_Type &&
         (PyDescr_TYPE(descriptor)->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0 &&
         PyUnicode_Compare(PyDescr_NAME(descriptor), name) != 0;
}

}  // namespace frametap
