// PEP 523 as this version of CPython has it: the evaluation function of the interpreter, and what the hook asks of a
// frame.
#pragma once

#include <Python.h>

struct _PyInterpreterFrame;

namespace frametap {

using EvalFunction = PyObject* (*)(PyThreadState*, _PyInterpreterFrame*, int throwing);

EvalFunction EvalDefault();
EvalFunction GetEvalFunction();
void SetEvalFunction(EvalFunction function);

bool IsTraced(PyThreadState* ts);  // a trace or profile function is active

// Returns the place of the thread's exception: null there says that none is set.
PyObject* const* ErrorIndicator(PyThreadState* ts);

// While alive, this thread's trace and profile functions get no events, also not from C code. One that is installed
// meanwhile stays.
class TracingPause {
 public:
  TracingPause();
  ~TracingPause();
  TracingPause(const TracingPause&) = delete;
  TracingPause& operator=(const TracingPause&) = delete;

 private:
  PyThreadState* const thread_;
  const Py_tracefunc trace_, profile_;
  PyObject *const trace_object_, *const profile_object_;  // compared only
  const int was_tracing_;
};

// Tells apart what runs on one thread by turns (greenlets): each has frames, and so a data stack, of its own. Unlike
// anything on the C stack it may be compared while its owner waits.
const void* StackIdentity(PyThreadState* ts);

// The frame that runs; another one runs while code of the program is called in between.
const void* RunningFrame(PyThreadState* ts);

struct FrameFacts {
  PyCodeObject* code;
  PyObject* globals;
  bool is_generator;  // a generator's or coroutine's frame
  bool resumed;       // it has run before
};
FrameFacts FactsOf(_PyInterpreterFrame* raw);

}  // namespace frametap
