#include "frame_eval/cpython/signals.h"

#include <utility>

#include "frame_eval/cpython/3.11/raw_frame.h"

namespace frametap {
namespace {

// CPython asks "is this the main thread?" before it serves anything. Under Python's lock; 0: not held.
unsigned long held_main_thread = 0;

}  // namespace

bool OnMainThread() { return PyThread_get_thread_ident() == _PyRuntime.main_thread; }

SignalsHeld::SignalsHeld(bool on_main_thread) : held_(on_main_thread && _PyRuntime.main_thread != 0) {
  if (held_) held_main_thread = std::exchange(_PyRuntime.main_thread, 0);
}

SignalsHeld::~SignalsHeld() {
  if (!held_) return;
  _PyRuntime.main_thread = std::exchange(held_main_thread, 0);
  _ceval_state* state = &PyInterpreterState_Get()->ceval;
  // The handler in C that noted the signal has found no thread that could serve it.
  if (_Py_atomic_load_relaxed(&_PyRuntime.ceval.signals_pending) ||
      _Py_atomic_load_relaxed(&state->pending.calls_to_do)) {
    _Py_atomic_store_relaxed(&state->eval_breaker, 1);
  }
}

SignalsServed::SignalsServed() : served_(held_main_thread != 0 && PyThread_get_thread_ident() == held_main_thread) {
  if (served_) _PyRuntime.main_thread = std::exchange(held_main_thread, 0);
}

SignalsServed::~SignalsServed() {
  if (served_) held_main_thread = std::exchange(_PyRuntime.main_thread, 0);
}

}  // namespace frametap
