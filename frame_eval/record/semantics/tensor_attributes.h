// Attributes of tensors: which of them are ops, and which are facts that a guard compares.
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"

namespace frametap {

bool MakesLeaves(const Trace& trace);  // a graph may make tensors that require grad
Shadow ParameterResult(Trace& trace, PyObject* parameter);
void TensorAttribute(Trace& trace, FrameNote& note, PyObject* owner, PyObject* name);
void StoreTensorAttribute(Trace& trace, FrameNote& note, PyObject* owner, PyObject* name, PyObject* value,
                          Shadow shadow);

}  // namespace frametap
