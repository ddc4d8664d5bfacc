// ErrorClasses: the exceptions of the Python package that C++ code raises.
#pragma once

#include <Python.h>

namespace frametap {

// The exception that Python code of frametap raises for these; set at import by the bindings.
struct ErrorClasses {
  PyObject* full_graph = nullptr;           // called with (message, reason=, position=, advice=)
  PyObject* backend = nullptr;              // called with (message)
  PyObject* warning = nullptr;              // the category of a warning
  PyObject* constraint = nullptr;           // … as full_graph
  PyObject* recording = nullptr;            // called with (message, reason=, position=, function=, miss=)
  PyObject* recording_forbidden = nullptr;  // a context variable: True where `recording` is raised
};
ErrorClasses& Errors();

}  // namespace frametap
