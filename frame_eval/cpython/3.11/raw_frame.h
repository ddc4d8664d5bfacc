// CPython 3.11: putting a frame on the thread's stack of frames and taking it off again, the way the evaluation loop
// does.
//   A1  While a frame runs its stacktop is -1: the garbage collector must not look at the value stack.
//   A2  prev_instr is the code unit of the instruction that acts (behind its prefixes) while it acts, and the unit
//       before the next instruction when the frame is left.
//   A3  Whoever called the evaluation function clears the frame: we leave it with an empty value stack.
#pragma once

#include <Python.h>

#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE 1
#define FRAMETAP_UNDEF_BUILD_CORE
#endif
// Without this pycore_atomic.h takes C11's <stdatomic.h>, which C++ does not have.
#undef HAVE_STD_ATOMIC
// Outside of CPython the name stands for an older function.
#undef _PyObject_LookupSpecial
#include <internal/pycore_ceval.h>
#include <internal/pycore_frame.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_object.h>
#include <internal/pycore_runtime.h>
#ifdef FRAMETAP_UNDEF_BUILD_CORE
#undef Py_BUILD_CORE
#undef FRAMETAP_UNDEF_BUILD_CORE
#endif

#include "frame_eval/interpreter/interpreter.h"

namespace frametap {

class Activation {
 public:
  Activation(PyThreadState* ts, _PyInterpreterFrame* raw)
      : ts_(ts), raw_(raw), breaker_(&ts->interp->ceval.eval_breaker) {}

  // Returns false if too deep; the error is set and the activation is over.
  bool Enter() {
    _PyCFrame* outer = ts_->cframe;
    cframe_.use_tracing = outer->use_tracing;
    cframe_.previous = outer;
    ts_->cframe = &cframe_;
    raw_->is_entry = true;
    raw_->previous = outer->current_frame;
    cframe_.current_frame = raw_;
    if (_Py_EnterRecursiveCallTstate(ts_, "")) {
      ts_->recursion_remaining--;
      Unlink();
      return false;
    }
    return true;
  }

  // After it the frame can be given to CPython or to the caller.
  void Leave(PyObject** top) {
    _PyFrame_SetStackPointer(raw_, top);
    Unlink();
  }

  bool tracing() const { return cframe_.use_tracing != 0; }
  bool interrupted() const { return _Py_atomic_load_relaxed(breaker_) != 0; }
  void SetActing(const uint16_t* unit) { raw_->prev_instr = const_cast<_Py_CODEUNIT*>(unit); }

  // Signals, pending calls, a wish for the lock, an exception sent by another thread, in this order.
  int HandlePending() {
    if (Py_MakePendingCalls() != 0) return -1;
    _ceval_state* state = &ts_->interp->ceval;
    if (_Py_atomic_load_relaxed(&state->gil_drop_request)) PyEval_RestoreThread(PyEval_SaveThread());
    if (ts_->async_exc != nullptr) {
      PyObject* exception = ts_->async_exc;
      ts_->async_exc = nullptr;
      state->pending.async_exc = 0;
      PyErr_SetNone(exception);
      Py_DECREF(exception);
      return -1;
    }
    return 0;
  }

  void AddTraceback() {
    if (PyFrameObject* frame = FrameObject()) PyTraceBack_Here(frame);
  }

  // A callee may have switched tracing on and raised: this frame's share of the events until CPython takes it over.
  void TraceException() {
    if (ts_->c_tracefunc == nullptr) return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (value == nullptr) value = Py_NewRef(Py_None);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyObject* told = PyTuple_Pack(3, type, value, traceback == nullptr ? Py_None : traceback);
    int status = told == nullptr ? 0 : Emit(ts_->c_tracefunc, ts_->c_traceobj, PyTrace_EXCEPTION, told);
    Py_XDECREF(told);
    Replace(status, type, value, traceback);
  }
  void TraceUnwinding() {
    if (!tracing()) return;
    for (bool profile : {false, true}) {
      Py_tracefunc function = profile ? ts_->c_profilefunc : ts_->c_tracefunc;
      if (function == nullptr) continue;
      PyObject *type, *value, *traceback;
      PyErr_Fetch(&type, &value, &traceback);
      int status = Emit(function, profile ? ts_->c_profileobj : ts_->c_traceobj, PyTrace_RETURN, nullptr);
      Replace(status, type, value, traceback);
      if (status < 0) return;
    }
  }

 private:
  // Borrowed. Making it can fail, and then clears the error that is set; null also while the frame is incomplete.
  PyFrameObject* FrameObject() {
    if (_PyFrame_IsIncomplete(raw_)) return nullptr;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyFrameObject* frame = PyEval_GetFrame();
    if (frame == nullptr) PyErr_Clear();
    PyErr_Restore(type, value, traceback);
    return frame;
  }

  int Emit(Py_tracefunc function, PyObject* object, int what, PyObject* told) {
    if (ts_->tracing) return 0;
    PyFrameObject* frame = FrameObject();
    if (frame == nullptr) return 0;
    int outer = ts_->tracing_what;
    ts_->tracing_what = what;
    PyThreadState_EnterTracing(ts_);
    int status = function(object, frame, what, told);
    PyThreadState_LeaveTracing(ts_);
    ts_->tracing_what = outer;
    return status;
  }

  // A trace function that raised has replaced the exception.
  static void Replace(int status, PyObject* type, PyObject* value, PyObject* traceback) {
    if (status == 0) {
      PyErr_Restore(type, value, traceback);
      return;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
  }

  void Unlink() {
    _Py_LeaveRecursiveCallTstate(ts_);
    ts_->cframe = cframe_.previous;
    ts_->cframe->use_tracing = cframe_.use_tracing;
  }

  PyThreadState* ts_;
  _PyInterpreterFrame* raw_;
  _Py_atomic_int* breaker_;
  _PyCFrame cframe_;
};

inline void SetResumePoint(_PyInterpreterFrame* raw, const uint16_t* next) {
  raw->prev_instr = const_cast<_Py_CODEUNIT*>(next) - 1;
}

inline bool IsGeneratorFrame(_PyInterpreterFrame* raw) { return raw->owner == FRAME_OWNED_BY_GENERATOR; }

inline void MarkSuspended(_PyInterpreterFrame* raw) { _PyFrame_GetGenerator(raw)->gi_frame_state = FRAME_SUSPENDED; }

// Reads the frame as its caller left it and marks it as running.
inline void Load(_PyInterpreterFrame* raw, Execution& m) {
  PyCodeObject* code = raw->f_code;
  m.raw = raw;
  m.code = code;
  m.function = raw->f_func;
  m.objects = raw->localsplus;
  m.nlocalsplus = code->co_nlocalsplus;
  m.base = raw->localsplus + code->co_nlocalsplus;
  m.top = _PyFrame_GetStackPointer(raw);
  m.first = _PyCode_CODE(code);
  m.next = raw->prev_instr + 1;
  m.names = code->co_names;
  m.consts = code->co_consts;
  m.globals = raw->f_globals;
  m.builtins = raw->f_builtins;
  raw->stacktop = -1;
}

inline PyObject* EvalInCPython(PyThreadState* ts, _PyInterpreterFrame* raw) {
  return _PyEval_EvalFrameDefault(ts, raw, 0);
}

}  // namespace frametap
