#include "frame_eval/cpython/signals.h"

#include <utility>

#include "frame_eval/cpython/3.11/raw_frame.h"
#include "frame_eval/cpython/written_fields.h"

namespace frametap {
namespace signals {

unsigned long held = 0;
unsigned long* main_thread = &_PyRuntime.main_thread;

namespace {

_ceval_state& State() { return PyInterpreterState_Main()->ceval; }

}  // namespace

const volatile int* const came = reinterpret_cast<const volatile int*>(&_PyRuntime.ceval.signals_pending._value);
const volatile int* const calls = reinterpret_cast<const volatile int*>(&State().pending.calls_to_do._value);

// The handler in C that noted the signal has found no thread that could serve it.
void ServeSoon() { _Py_atomic_store_relaxed(&State().eval_breaker, 1); }

}  // namespace signals

bool written_fields::HoldsSignals() {
  if (!OnMainThread()) return _PyRuntime.main_thread != 0;
  static int made = 0;
  const auto make = +[](void*) {
    ++made;
    return 0;
  };
  // What waits already is served first, as the next instruction of the program would do it.
  if (Py_MakePendingCalls() != 0 || Py_AddPendingCall(make, nullptr) != 0) return false;
  {
    const SignalsHeld held;
    if (Py_MakePendingCalls() != 0 || made != 0) return false;
    const SignalsServed served;
    if (Py_MakePendingCalls() != 0 || made != 1) return false;
  }
  return OnMainThread();
}

void written_fields::LeaveSignalsAlone(bool on) {
  static unsigned long none = 0;
  signals::main_thread = on ? &none : &_PyRuntime.main_thread;
}

bool OnMainThread() { return PyThread_get_thread_ident() == _PyRuntime.main_thread; }

SignalsServed::SignalsServed() : served_(signals::held != 0 && PyThread_get_thread_ident() == signals::held) {
  if (served_) _PyRuntime.main_thread = std::exchange(signals::held, 0);
}

SignalsServed::~SignalsServed() {
  if (served_) signals::held = std::exchange(_PyRuntime.main_thread, 0);
}

}  // namespace frametap
