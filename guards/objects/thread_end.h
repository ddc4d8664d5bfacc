// A thread that CPython ends in the middle of a call. Once the interpreter finalizes, CPython 3.11 leaves a thread that asks
// for its lock by pthread_exit, which unwinds the stack as an exception does that nothing may catch. Through our frames that
// must not pass: destructors would release objects without the lock, and `noexcept` ends the process ("terminate called
// without an active exception").
//   T1  Such a thread waits where it is until the process ends, as CPython 3.14 lets it.
#pragma once

#include <Python.h>
#include <cxxabi.h>

#include <utility>

namespace frametap {

[[noreturn]] void WaitForProcessEnd();

// `call()`, which may ask for the lock.
template <class F>
[[gnu::always_inline]] inline auto StayingAtThreadEnd(F&& call) {
  try {
    return std::forward<F>(call)();
  } catch (const abi::__forced_unwind&) {
    WaitForProcessEnd();
  }
}

// Gives the lock away while alive. Nothing of Python is touched meanwhile.
class UnlockedToThreadEnd {
 public:
  UnlockedToThreadEnd() = default;
  ~UnlockedToThreadEnd() {
    StayingAtThreadEnd([this] { PyEval_RestoreThread(state_); });
  }
  UnlockedToThreadEnd(const UnlockedToThreadEnd&) = delete;
  UnlockedToThreadEnd& operator=(const UnlockedToThreadEnd&) = delete;

 private:
  PyThreadState* const state_ = PyEval_SaveThread();
};

}  // namespace frametap
