#include "frame_eval/cpython/signals.h"

#include <utility>

#include "frame_eval/cpython/3.11/raw_frame.h"

namespace frametap {
namespace signals {

unsigned long held = 0;
unsigned long* const main_thread = &_PyRuntime.main_thread;

namespace {

_ceval_state& State() { return PyInterpreterState_Main()->ceval; }

}  // namespace

const volatile int* const came = reinterpret_cast<const volatile int*>(&_PyRuntime.ceval.signals_pending._value);
const volatile int* const calls = reinterpret_cast<const volatile int*>(&State().pending.calls_to_do._value);

// The handler in C that noted the signal has found no thread that could serve it.
void ServeSoon() { _Py_atomic_store_relaxed(&State().eval_breaker, 1); }

}  // namespace signals

bool OnMainThread() { return PyThread_get_thread_ident() == _PyRuntime.main_thread; }

SignalsServed::SignalsServed() : served_(signals::held != 0 && PyThread_get_thread_ident() == signals::held) {
  if (served_) _PyRuntime.main_thread = std::exchange(signals::held, 0);
}

SignalsServed::~SignalsServed() {
  if (served_) signals::held = std::exchange(_PyRuntime.main_thread, 0);
}

}  // namespace frametap
