#include "frame_eval/hook.h"

#ifdef __linux__
#include <pthread.h>
#endif

#include "frame_eval/cpython/eval_function.h"
#include "frame_eval/cpython/frame_view.h"

namespace frametap {

thread_local constinit FrameFilter* hook::thread_filter = nullptr;

namespace {

using hook::thread_filter;

// The frame that is on its way to the evaluation function that was installed before ours. If that one calls ours again
// (it was installed over ours once, and ours over it later), the chain has no end of its own.
thread_local constinit _PyInterpreterFrame* passed_on = nullptr;

// Under the interpreter's lock:
int scopes = 0;
int suspended = 0;                     // frames that run without the hook (K4)
FrameFilter* common_filter = nullptr;  // HookAllThreads
EvalFunction previous = nullptr;       // what was installed before ours; null: CPython's own

extern "C" PyObject* FrametapEvalFrame(PyThreadState* ts, _PyInterpreterFrame* raw, int throwing) noexcept;

EvalFunction WithoutOurs() { return previous == nullptr ? EvalDefault() : previous; }

void Install() {
  EvalFunction current = GetEvalFunction();
  if (current == FrametapEvalFrame) return;
  previous = current == EvalDefault() ? nullptr : current;
  SetEvalFunction(FrametapEvalFrame);
}

PyObject* PassOn(PyThreadState* ts, _PyInterpreterFrame* raw, int throwing) noexcept {
  if (passed_on == raw || previous == nullptr) return EvalDefault()(ts, raw, throwing);
  _PyInterpreterFrame* outer = passed_on;
  passed_on = raw;
  PyObject* result = previous(ts, raw, throwing);
  passed_on = outer;
  return result;
}

// The address below which a quarter of this thread's C stack is left.
const char* StackMark() {
#ifdef __linux__
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return nullptr;
  void* low = nullptr;
  size_t size = 0;
  int status = pthread_attr_getstack(&attributes, &low, &size);
  pthread_attr_destroy(&attributes);
  if (status == 0) return static_cast<const char*>(low) + size / 4;
#endif
  return nullptr;
}

// Whether less than `wanted` bytes are left above the mark.
bool StackIsLow(ptrdiff_t wanted = 0) {
  thread_local const char* const mark = StackMark();
  return static_cast<const char*>(__builtin_frame_address(0)) - mark < wanted;
}

PyObject* RunWithoutHook(PyThreadState* ts, _PyInterpreterFrame* raw, int throwing) noexcept {
  ++suspended;
  SetEvalFunction(WithoutOurs());
  PyObject* result = EvalDefault()(ts, raw, throwing);
  --suspended;
  if (scopes > 0) Install();
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
  if (StackIsLow()) [[unlikely]]
    return RunWithoutHook(ts, raw, throwing);
  FrameFilter* filter = thread_filter != nullptr ? thread_filter : common_filter;
  if (filter == nullptr || throwing != 0 || passed_on == raw || IsTraced(ts) || !IsWanted(filter, raw)) {
    return PassOn(ts, raw, throwing);
  }
  return Interpret(ts, raw, filter->tracer());
}

}  // namespace

HookScope::HookScope(FrameFilter* filter) : previous_(thread_filter) {
  thread_filter = filter;
  if (scopes++ == 0) {
    Install();
  } else if (suspended > 0 && GetEvalFunction() == WithoutOurs()) {
    Install();
    reinstalled_ = true;
  }
}

HookScope::~HookScope() {
  thread_filter = previous_;
  // Somebody who was installed over us may still call us: then we stay in their chain and pass everything on.
  if ((--scopes == 0 || reinstalled_) && GetEvalFunction() == FrametapEvalFrame) SetEvalFunction(WithoutOurs());
}

void HookAllThreads(FrameFilter* filter) {
  common_filter = filter;
  if (scopes++ == 0) Install();
}

bool MayCall(int depth) {
  constexpr ptrdiff_t kBytesOfCall = 16 * 1024;
  PyThreadState* ts = PyThreadState_Get();
  return !IsTraced(ts) && ts->recursion_remaining > depth + 1 && !StackIsLow(depth * kBytesOfCall) &&
         GetEvalFunction() == FrametapEvalFrame;
}

bool HookInstalled() { return scopes > 0; }

bool ThreadIsTraced() { return IsTraced(PyThreadState_Get()); }

}  // namespace frametap
