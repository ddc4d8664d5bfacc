// Python numbers as graphs have them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <Python.h>

#include <string_view>

#include "ir/graph/scalar.h"

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

std::string_view BaseName(const c10::OperatorHandle& op);  // "add" of aten::add_ and aten::add
// One of those that give their argument itself back where they drop nothing; in place or not. By their tags they might write
// to it as well, which they do in place only.
bool IsDropout(const c10::OperatorHandle& op);

}  // namespace frametap
