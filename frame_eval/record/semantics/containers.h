// Operators, comparisons, truth, subscripts: what each reads, fixes or writes, by the kind of its operands.
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"

namespace frametap {

void Subscript(Trace& trace, FrameNote& note, PyObject* container, PyObject* key, Shadow key_shadow,
               Shadow container_shadow);
void StoreSubscript(Trace& trace, FrameNote& note, PyObject* container, PyObject* key, PyObject* value,
                    Shadow key_shadow, Shadow value_shadow);
void Contains(Trace& trace, FrameNote& note, PyObject* container, PyObject* item);
void TruthOf(Trace& trace, FrameNote& note, PyObject* object, Shadow shadow);
void CompareIdentity(Trace& trace, PyObject* a, Shadow sa, PyObject* b, Shadow sb);
// Guards that an object is a function, method or partial, which is all that a test for None, for truth or for its type
// asks. Which one it is, and so what a method binds, does not matter, and `obj.method` is another object each time. Returns
// false if it is something else; then nothing has been read.
bool ReadKind(Trace& trace, PyObject* object);

}  // namespace frametap
