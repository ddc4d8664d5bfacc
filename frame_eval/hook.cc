#include "frame_eval/hook.h"

#include "frame_eval/cpython/eval_function.h"
#include "frame_eval/cpython/frame_view.h"

namespace frametap {
namespace {

thread_local FrameFilter* thread_filter = nullptr;
// The frame that is on its way to the evaluation function that was installed before ours. If that one calls ours again
// (it was installed over ours once, and ours over it later), the chain has no end of its own.
thread_local _PyInterpreterFrame* passed_on = nullptr;

int scopes = 0;  // under the interpreter's lock
EvalFunction previous = nullptr;

extern "C" PyObject* FrametapEvalFrame(PyThreadState* ts, _PyInterpreterFrame* raw, int throwing) noexcept;

PyObject* PassOn(PyThreadState* ts, _PyInterpreterFrame* raw, int throwing) noexcept {
  if (passed_on == raw || previous == nullptr) return EvalDefault()(ts, raw, throwing);
  _PyInterpreterFrame* outer = passed_on;
  passed_on = raw;
  PyObject* result = previous(ts, raw, throwing);
  passed_on = outer;
  return result;
}

bool IsWanted(FrameFilter* filter, _PyInterpreterFrame* raw) noexcept {
  FrameFacts facts = FactsOf(raw);
  try {
    return filter->Wants(facts.code, facts.is_generator, facts.resumed);
  } catch (...) {
    return false;
  }
}

extern "C" PyObject* FrametapEvalFrame(PyThreadState* ts, _PyInterpreterFrame* raw, int throwing) noexcept {
  FrameFilter* filter = thread_filter;
  if (filter == nullptr || throwing != 0 || passed_on == raw || IsTraced(ts) || !IsWanted(filter, raw)) {
    return PassOn(ts, raw, throwing);
  }
  return Interpret(ts, raw, filter->tracer());
}

}  // namespace

HookScope::HookScope(FrameFilter* filter) : previous_(thread_filter) {
  thread_filter = filter;
  if (scopes++ > 0) return;
  EvalFunction current = GetEvalFunction();
  if (current == FrametapEvalFrame) return;
  previous = current == EvalDefault() ? nullptr : current;
  SetEvalFunction(FrametapEvalFrame);
}

HookScope::~HookScope() {
  thread_filter = previous_;
  // Somebody who was installed over us may still call us: then we stay in their chain and pass everything on.
  if (--scopes > 0 || GetEvalFunction() != FrametapEvalFrame) return;
  SetEvalFunction(previous == nullptr ? EvalDefault() : previous);
}

HookPause::HookPause() : previous_(thread_filter) { thread_filter = nullptr; }
HookPause::~HookPause() { thread_filter = previous_; }

bool HookInstalled() { return scopes > 0; }

bool ThreadIsTraced() { return IsTraced(PyThreadState_Get()); }

}  // namespace frametap
