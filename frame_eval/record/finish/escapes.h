// The end of a recording because of an object that no operand can describe.
#pragma once

#include <Python.h>

#include <string>

#include "frame_eval/segment/reasons.h"

namespace frametap {

inline Break Escapes(PyObject* object) {
  return Break{Reason::escaping_object, std::string("an object of type ") + Py_TYPE(object)->tp_name};
}

}  // namespace frametap
