// The exception table of a code object (3.11 and later): which instruction handles an exception raised by another one.
#pragma once

#include <Python.h>

#include <vector>

namespace frametap {

struct ExceptionHandler {
  int start = 0, end = 0;  // code units covered
  int target = 0;          // code unit of the handler
  int depth = 0;           // of the value stack when the handler begins
  bool push_last = false;  // the index of the raising instruction is pushed first
};

// The handler of the code unit `index`; false: the exception leaves the frame.
bool FindHandler(PyCodeObject* code, int index, ExceptionHandler* found);

std::vector<ExceptionHandler> AllHandlers(PyCodeObject* code);

}  // namespace frametap
