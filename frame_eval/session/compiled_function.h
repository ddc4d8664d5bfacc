// CompiledFunction: the Python object that stands for a captured function, method, module or callable object. Its
// vectorcall binds the arguments as CPython would, asks the guards of the start's segments, and replays without a frame.
//   F1  It never decides anything differently from plain Python. If binding fails, the function itself is called and
//       raises. If no segment fits, the call is recorded. During another recording the function is simply called.
//   F2  A module's call goes straight to `forward` only while nn.Module.__call__ would do nothing else: no hooks of its
//       own or global, no override of __call__. An exception has come through the frames of __call__ all the same.
//       Which __call__ the class of a module or a callable object has is asked at each call.
//   F3  It has the parts of functions: it shares code, defaults and closure with the function (and sets them there),
//       copies are itself, and it is pickled by name. Other objects are copied, and the copy is compiled.
//   F4  In a class it is bound like its original: functions are, partials and C functions are not, and objects follow
//       their own __get__ and __set_name__. The result of an object's __get__ may call the original plainly.
//   F5  An object, a partial or a C function shares attributes, equality, hash and truth with its original. A method
//       does, too, except for attributes that are set on it.
// Not here: the frame (session.h).
#pragma once

#include <Python.h>

#include <memory>

#include "frame_eval/segment/compiled_form.h"
#include "frame_eval/segment/segment.h"

namespace frametap {

// A new CompiledFunction. `self`: the instance of a bound method, the module, the object or callable; null for a
// function.
PyObject* NewCompiledFunction(PyObject* function, PyObject* self, Callee callee, std::shared_ptr<SegmentCache> store);

// The `__call__` in the class of modules' compiled forms: calls the value of `_frametap` in the object's class.
PyObject* NewCompiledModuleCall(PyTypeObject* type);

PyTypeObject* CompiledFunctionType();  // ready after the first call; null with a Python exception
PyTypeObject* CompiledObjectType();    // its subtype for an object that is neither a function nor a module

}  // namespace frametap
