// Writes to attributes: the look-up order of CPython's generic setattr and of nn.Module, and whose dict it is.
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"

namespace frametap {

void StoreAttribute(Trace& trace, FrameNote& note, PyObject* owner, PyObject* name, PyObject* value, Shadow shadow);
// nn.Module.__setattr__(module, name, value), as a class's own __setattr__ calls it. Returns false if its code has to be followed.
bool StoreByModule(Trace& trace, Call& call);
void DeleteAttribute(Trace& trace, FrameNote& note, PyObject* owner, PyObject* name);
bool GenericStore(Trace& trace, PyObject* owner, PyObject* name, PyObject* value, Shadow shadow);  // object.__setattr__
void GenericDelete(Trace& trace, FrameNote& note, PyObject* owner, PyObject* name);                // object.__delattr__
void HandOutDict(Trace& trace, PyObject* owner, PyObject* dict);
void SpecializeWritten(Trace& trace, PyObject* owner);

}  // namespace frametap
