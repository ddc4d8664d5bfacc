// CompiledFunction: the Python object that stands for a captured function, method, module or callable object. Its
// vectorcall binds the arguments as CPython would, asks the guards of the start's segments, and replays without a frame.
//   F1  It never decides anything that plain Python would decide otherwise: if binding fails, the function itself is
//       called and raises; if no segment fits, the call is recorded; during another recording the function is simply
//       called.
//   F2  A module's call goes straight to `forward` only while nn.Module.__call__ would do nothing else: no hooks of its
//       own or global, no override of __call__. An exception has come through the frames of __call__ all the same.
//       Which __call__ the class of a module or a callable object has is asked at each call.
//   F3  It has what functions have: code, defaults and closure are those of the function (and are set there), copies are
//       itself, and it is pickled by name. Other objects are copied, and the copy is compiled.
//   F4  In a class it is bound as what was compiled is: functions are, partials and C functions are not, and objects as
//       their own __get__ and __set_name__ say. What an object's __get__ makes of it may call the original plainly.
//   F5  Attributes, equality, hash and truth of an object, a partial or a C function are the original's; a method's too,
//       but for attributes that are set on it.
// Not here: what happens in the frame (session.h).
#pragma once

#include <Python.h>

#include <memory>

#include "frame_eval/segment.h"

namespace frametap {

// kCallable: a partial or a C function, which has no Python code; `function` calls it.
enum class Callee : uint8_t { kFunction, kBoundMethod, kModule, kObject, kCallable };

// A new CompiledFunction. `self`: the instance of a bound method, the module, the object or callable; null for a
// function.
PyObject* NewCompiledFunction(PyObject* function, PyObject* self, Callee callee, std::shared_ptr<Store> store);

// What `__call__` is in the class of modules' compiled forms: calls what the object's class has under `_frametap`.
PyObject* NewCompiledModuleCall(PyTypeObject* type);

bool IsCompiledFunction(PyObject* object);
// The CompiledFunction that a call of the object is one of: itself, or what stands for a module. Borrowed, or null.
PyObject* CompiledFormOf(PyObject* object);
PyObject* SelfOf(PyObject* compiled);  // borrowed; null of functions
std::shared_ptr<Store> StoreOf(PyObject* compiled);
PyObject* FunctionOf(PyObject* compiled);  // borrowed
PyTypeObject* CompiledFunctionType();      // ready after the first call; null with a Python exception
PyTypeObject* CompiledObjectType();        // its subtype for what is no function and no module

}  // namespace frametap
