// ImportModule: modules that our own code needs, whatever frame of the program runs.
//   I1  PyImport_ImportModule (and pybind11's module_::import) calls the `__import__` of the builtins of the running
//       frame. That is the program's: `exec` with builtins of its own has none (the `__new__` of every named tuple), and
//       others have one that must not be called by us.
#pragma once

#include <Python.h>

#include "guards/ref.h"
#include "guards/throw_if_null.h"

namespace frametap {

// The module of this dotted name. Empty with a Python exception.
inline Ref<> ImportModule(const char* name) {
  const Ref<> text = Ref<>::Steal(PyUnicode_FromString(name));
  // Gives the package, not the module that was asked for.
  const Ref<> package =
      text ? Ref<>::Steal(PyImport_ImportModuleLevelObject(text.get(), nullptr, nullptr, nullptr, 0)) : Ref<>();
  if (!package) return Ref<>();
  Ref<> module = Ref<>::Steal(PyImport_GetModule(text.get()));
  if (!module && PyErr_Occurred() == nullptr) PyErr_Format(PyExc_ImportError, "no module named %s", name);
  return module;
}

inline Ref<> MustImport(const char* name) { return Must(ImportModule(name).Release()); }

}  // namespace frametap
