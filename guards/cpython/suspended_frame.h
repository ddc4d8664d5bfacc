// SuspendedFrame: what lies in the frame of a generator that waits to be resumed, read without running it.
//   F1  Nothing here runs Python code or changes the generator.
//   F2  Where frames lie is private to each version of CPython: frame_eval/cpython/3.x says how they are read.
// Not here: what a recording makes of it (frame_eval/record/semantics/generators.cc).
#pragma once

#include <Python.h>

namespace frametap {

struct SuspendedFrame {
  PyCodeObject* code = nullptr;
  PyFunctionObject* function = nullptr;
  PyObject** objects = nullptr;  // locals, cells and free variables, then the value stack
  int nlocalsplus = 0;
  int depth = 0;
  int offset = 0;  // byte offset of the instruction to continue with
};

// Returns false if it is not a generator, or it runs, or it is at its end.
using ReadSuspendedFrame = bool (*)(PyObject* generator, SuspendedFrame* frame);
extern constinit ReadSuspendedFrame read_suspended_frame;  // F2; null: none can be read

inline bool ReadSuspended(PyObject* generator, SuspendedFrame* frame) {
  return read_suspended_frame != nullptr && read_suspended_frame(generator, frame);
}

}  // namespace frametap
