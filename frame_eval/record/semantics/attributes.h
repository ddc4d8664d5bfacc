// Attribute reads: the look-up order of CPython's generic getattr, of nn.Module and of modules and classes,
// step by step, so that each step that decided is guarded.
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"

namespace frametap {

// Guards what `owner.name` reads, and leaves in the note how its result is known.
void LoadAttribute(Trace& trace, FrameNote& note, PyObject* owner, Shadow shadow, PyObject* name);
// Does so for object.__getattribute__.
void GenericLoad(Trace& trace, FrameNote& note, PyObject* owner, PyObject* name);
// Returns whether attributes of its instances are looked up by object.__getattribute__.
bool HasGenericGet(PyTypeObject* type);
void FixDescriptorKind(Trace& trace, PyObject* in_class);
void Import(Trace& trace, FrameState& f, FrameNote& note, const Event& e);
void LeaveIntOfClassOpen(Trace& trace, PyTypeObject* type, PyObject* name, PyObject* value);
void AdoptOfClass(Trace& trace, PyObject* object, PyTypeObject* type, PyObject* name);

}  // namespace frametap
