// Layout312: the facts of frame_layout.h for CPython 3.12. frametap does not run on it yet.
// The README lists the missing parts.
#pragma once

#include <Python.h>

#include <cstddef>

#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE 1
#define FRAMETAP_UNDEF_BUILD_CORE
#endif
// Without this pycore_atomic.h takes C11's <stdatomic.h>, which C++ does not have.
#undef HAVE_STD_ATOMIC
// Outside of CPython the name stands for a function.
#undef _PyGC_FINALIZED
#include <internal/pycore_ceval.h>
#include <internal/pycore_dict.h>
#include <internal/pycore_frame.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
#ifdef FRAMETAP_UNDEF_BUILD_CORE
#undef Py_BUILD_CORE
#undef FRAMETAP_UNDEF_BUILD_CORE
#endif

#include "frame_eval/cpython/frame_layout.h"

namespace frametap {

struct Layout312 {
  using Frame = _PyInterpreterFrame;

  static PyCodeObject* Code(Frame* frame) { return frame->f_code; }
  static PyFunctionObject* Function(Frame* frame) { return reinterpret_cast<PyFunctionObject*>(frame->f_funcobj); }
  static PyObject* Globals(Frame* frame) { return frame->f_globals; }
  static PyObject* Builtins(Frame* frame) { return frame->f_builtins; }
  static PyObject** Objects(Frame* frame) { return frame->localsplus; }
  static Frame* Previous(Frame* frame) { return frame->previous; }
  static PyFrameObject* FrameObject(Frame* frame) { return frame->frame_obj; }
  static bool IsOfGenerator(Frame* frame) { return frame->owner == FRAME_OWNED_BY_GENERATOR; }

  static const uint16_t* Next(Frame* frame) { return reinterpret_cast<const uint16_t*>(frame->prev_instr + 1); }
  static void SetNext(Frame* frame, const uint16_t* unit) {
    frame->prev_instr = reinterpret_cast<_Py_CODEUNIT*>(const_cast<uint16_t*>(unit)) - 1;
  }
  static void SetActing(Frame* frame, const uint16_t* unit) {
    frame->prev_instr = reinterpret_cast<_Py_CODEUNIT*>(const_cast<uint16_t*>(unit));
  }
  static PyObject** Top(Frame* frame) { return _PyFrame_GetStackPointer(frame); }
  static void SetTop(Frame* frame, PyObject** top) { _PyFrame_SetStackPointer(frame, top); }
  static void HideStack(Frame* frame) { frame->stacktop = -1; }

  static Frame* Running(PyThreadState* ts) { return ts->cframe->current_frame; }
  static bool IsInterrupted(PyThreadState* ts) { return _Py_atomic_load_relaxed(&ts->interp->ceval.eval_breaker) != 0; }
  static PyObject* const* ErrorIndicator(PyThreadState* ts) { return &ts->current_exception; }

  static int& CollectorCount() { return PyInterpreterState_Get()->gc.generations[0].count; }
  static unsigned long& MainThread() { return _PyRuntime.main_thread; }

  static constexpr uint64_t kDictVersionStep = DICT_VERSION_INCREMENT;
};

static_assert(FrameLayout<Layout312>);
static_assert(sizeof(_Py_CODEUNIT) == sizeof(uint16_t));
static_assert(offsetof(_PyInterpreterFrame, localsplus) + sizeof(PyObject*) == sizeof(_PyInterpreterFrame));

}  // namespace frametap
