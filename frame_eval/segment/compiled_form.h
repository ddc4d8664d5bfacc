// CompiledFunction as a recording sees it: which objects are one, and what they stand for.
// Not here: its calls (session/compiled_function.h).
#pragma once

#include <Python.h>

#include <cstdint>
#include <memory>

namespace frametap {

class SegmentCache;
struct Route;

// kCallable: a partial or a C function, which has no Python code; `function` calls it.
enum class Callee : uint8_t { kFunction, kBoundMethod, kModule, kObject, kCallable };

// The object. `route` is of a module, and null of others.
struct CompiledFunction {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* function;
  PyObject* self;
  PyObject* callable;  // what kCallable stands for; `function` calls it
  PyObject* dict;
  PyObject* weakrefs;
  std::shared_ptr<SegmentCache>* store;
  Route* route;  // of a module; null of others
  Callee callee;
  bool capturable;  // generators and coroutines are not
};

// Null until the first of its kind is made.
struct CompiledTypes {
  PyTypeObject* function = nullptr;
  PyTypeObject* object = nullptr;
  const PyMethodDef* module_call = nullptr;  // `__call__` of modules' compiled forms
};
extern CompiledTypes compiled_types;

bool IsCompiledFunction(PyObject* object);
// Returns the CompiledFunction that a call of the object is one of: itself, or what stands for a module. Borrowed, or null.
PyObject* CompiledFormOf(PyObject* object);
PyObject* SelfOf(PyObject* compiled);  // borrowed; null of functions
std::shared_ptr<SegmentCache> StoreOf(PyObject* compiled);
PyObject* FunctionOf(PyObject* compiled);  // borrowed
// Returns the stand-in of a module whose compiled form is of the class. Borrowed; null for other classes.
PyObject* FunctionOfKind(PyTypeObject* kind);

}  // namespace frametap
