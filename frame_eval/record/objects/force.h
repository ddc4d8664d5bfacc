// Forcing: an operation may read the value of an object in any way. Open numbers in it are fixed, containers as a whole.
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"

namespace frametap {

void SpecializeDeep(Trace& trace, PyObject* object, Shadow shadow, bool tensors_allowed);
void SpecializeArguments(Trace& trace, const Call& call, size_t from, bool tensors_allowed);  // … from that one on
void SpecializeAll(Trace& trace, const Event& e);

}  // namespace frametap
