// Numbers that are not fixed: sizes, arguments, and results computed from them. They are graph values. A decision on
// them is guarded as a relation; an op that takes them takes the graph value.
//   N1  The program always sees exact Python numbers, and ops run on these. Which number an op was given is concluded
//       afterwards, from the node that it left (BindSymbolicArgs), and only where the binding hands it on as it is.
//   N2  A number that is used in any other way is fixed (Force).
//   N3  Nothing is left open that would not change: numbers that modules and globals hold are fixed, until they have
//       been seen to change (IsDynamic).
// Not here: sizes of tensors (sizes.cc), how an op gets its numbers (symbolic_args.cc), rows of numbers (sequences.cc),
// torch.tensor and tolist (numbers_in_tensors.cc).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <Python.h>

#include <string_view>

#include "frame_eval/record/trace.h"
#include "ir/graph/builtin_op.h"

namespace frametap {

// An exact int of 64 bits or a float; no bool.
inline bool NumberOf(PyObject* object, Number* number) {
  if (PyFloat_CheckExact(object)) {
    *number = Number::Float(PyFloat_AS_DOUBLE(object));
    return true;
  }
  if (!PyLong_CheckExact(object)) return false;
  int overflow = 0;
  *number = Number::Int(PyLong_AsLongLongAndOverflow(object, &overflow));
  return overflow == 0;
}

inline c10::IValue ValueOf(const Number& number) {
  return number.is_float ? c10::IValue(number.f) : c10::IValue(number.i);
}

// Returns "add" for aten::add_ and aten::add. It is for the ops that a binding of torch makes on its way, whose names are a
// part of the binding. Facts of ops are in their rows (ops.def).
std::string_view BaseName(const c10::OperatorHandle& op);

void Specialize(Trace& trace, PyObject* object, Shadow shadow);  // fix the value of a scalar
void CompareValues(Trace& trace, FrameNote& note, PyObject* a, Shadow sa, PyObject* b, Shadow sb, int py_compare_op);
bool LeavesOpen(Trace& trace, PyObject* object, Shadow shadow);
Shadow KeepOpen(Trace& trace, PyObject* object, Shadow shadow, bool* open);
Shadow AddNumber(Trace& trace, BuiltinOp op, std::initializer_list<std::pair<PyObject*, Shadow>> operands);
bool DecideNumbers(Trace& trace, PyObject* a, Shadow sa, PyObject* b, Shadow sb, int py_compare_op, bool only_if_true);
inline bool IsNumber(PyObject* object) { return PyLong_CheckExact(object) || PyFloat_CheckExact(object); }
void FixType(Trace& trace, Shadow shadow);
void BinaryNumbers(Trace& trace, FrameNote& note, const Event& e);
bool ScalarNode(Trace& trace, FrameNote& note, const Event& e);
bool IsDynamic(Trace& trace, ValueId value);
void FixValue(Trace& trace, ValueId value, const TensorRead& read, absl::flat_hash_set<ValueId>* seen);
Shadow Canonical(const Trace& trace, Shadow shadow);
ValueId NumberValue(Trace& trace, Shadow shadow);
c10::IValue NumberAt(Trace& trace, ValueId value);

}  // namespace frametap
