// Named tuples (collections.namedtuple): their fields, and _replace. Numbers in them stay open, as in plain tuples.
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"

namespace frametap {

void NamedTupleField(Trace& trace, FrameNote& note, PyObject* owner, PyObject* field);
bool InvokeReplace(Trace& trace, Call& call);

}  // namespace frametap
