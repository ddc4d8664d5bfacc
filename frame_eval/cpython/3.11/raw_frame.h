// CPython 3.11: putting a frame on the thread's stack of frames and taking it off again, the way the evaluation loop
// does.
//   A1  While a frame runs its stacktop is -1: the garbage collector must not look at the value stack.
//   A2  prev_instr is the code unit of the instruction that acts (behind its prefixes) while it acts, and the unit
//       before the next instruction when the frame is left.
//   A3  Whoever called the evaluation function clears the frame: we leave it with an empty value stack.
#pragma once

#include <Python.h>

#include <initializer_list>

#include "frame_eval/cpython/3.11/layout.h"
#include "frame_eval/interpreter/interpreter.h"

namespace frametap {

class Activation {
 public:
  Activation(PyThreadState* ts, _PyInterpreterFrame* raw) : ts_(ts), raw_(raw) {}

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
    Layout311::SetTop(raw_, top);
    Unlink();
  }

  bool tracing() const { return cframe_.use_tracing != 0; }
  bool interrupted() const { return Layout311::IsInterrupted(ts_); }
  void SetActing(const uint16_t* unit) { Layout311::SetActing(raw_, unit); }

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
  _PyCFrame cframe_;
};

inline void SetResumePoint(_PyInterpreterFrame* raw, const uint16_t* next) { Layout311::SetNext(raw, next); }

inline bool IsGeneratorFrame(_PyInterpreterFrame* raw) { return Layout311::IsOfGenerator(raw); }

inline void MarkSuspended(_PyInterpreterFrame* raw) { _PyFrame_GetGenerator(raw)->gi_frame_state = FRAME_SUSPENDED; }

// Reads the frame as its caller left it and marks it as running.
inline void Load(_PyInterpreterFrame* raw, Execution& m) {
  PyCodeObject* code = Layout311::Code(raw);
  m.raw = raw;
  m.code = code;
  m.function = Layout311::Function(raw);
  m.objects = Layout311::Objects(raw);
  m.nlocalsplus = code->co_nlocalsplus;
  m.base = m.objects + code->co_nlocalsplus;
  m.top = Layout311::Top(raw);
  m.first = _PyCode_CODE(code);
  m.next = Layout311::Next(raw);
  m.names = code->co_names;
  m.consts = code->co_consts;
  m.globals = Layout311::Globals(raw);
  m.builtins = Layout311::Builtins(raw);
  Layout311::HideStack(raw);
}

inline PyObject* EvalInCPython(PyThreadState* ts, _PyInterpreterFrame* raw) {
  return _PyEval_EvalFrameDefault(ts, raw, 0);
}

}  // namespace frametap
