// Instances of Python classes, and functions of the trace, as operands: content, attributes, slots.
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"

namespace frametap {

void DescribeAttributes(Trace& trace, PyObject* object, Operand* operand);
void DescribeFunctionFields(Trace& trace, PyObject* object, Operand* operand);
Operand DescribeInstance(Trace& trace, PyObject* object);

}  // namespace frametap
