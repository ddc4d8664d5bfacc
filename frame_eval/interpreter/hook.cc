#include "frame_eval/interpreter/hook.h"

#ifdef __linux__
#include <pthread.h>
#endif

#include <algorithm>
#include <vector>

#include "frame_eval/cpython/frame_view.h"
#include "guards/objects/thread_end.h"

namespace frametap {

thread_local constinit hook::Thread hook::thread;

namespace {

using hook::thread;

// The scopes of this thread. Greenlets close theirs in any order.
struct Scoped {
  FrameFilter* filter;
  const void* stack;  // StackIdentity
};
thread_local constinit std::vector<Scoped> thread_scopes;

// Under the interpreter's lock:
int scopes = 0;
int suspended = 0;                     // frames that run without the hook (K4)
FrameFilter* common_filter = nullptr;  // HookAllThreads
EvalFunction previous = nullptr;       // what was installed before ours; null: CPython's own

extern "C" PyObject* FrametapEvalFrame(PyThreadState* ts, _PyInterpreterFrame* raw, int throwing) noexcept;

// Where the stack runs low that is CPython's own, whoever was before ours: only that one calls without C stack.
EvalFunction WithoutOurs() { return previous == nullptr || suspended > 0 ? EvalDefault() : previous; }

void Install() {
  EvalFunction current = GetEvalFunction();
  if (current == FrametapEvalFrame) return;
  if (current != WithoutOurs()) previous = current == EvalDefault() ? nullptr : current;
  SetEvalFunction(FrametapEvalFrame);
}

PyObject* PassOn(hook::Thread* here, PyThreadState* ts, _PyInterpreterFrame* raw, int throwing) noexcept {
  if (here->passed_on == raw || previous == nullptr) {
    return StayingAtThreadEnd([&] { return EvalDefault()(ts, raw, throwing); });
  }
  _PyInterpreterFrame* outer = here->passed_on;
  here->passed_on = raw;
  PyObject* result = StayingAtThreadEnd([&] { return previous(ts, raw, throwing); });
  here->passed_on = outer;
  return result;
}

// As in hook::Thread.
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
bool StackIsLow(hook::Thread* here, ptrdiff_t wanted = 0) {
  if (!here->has_mark) [[unlikely]] {
    here->stack_mark = StackMark();
    here->has_mark = true;
  }
  return static_cast<const char*>(__builtin_frame_address(0)) - here->stack_mark < wanted;
}

PyObject* RunWithoutHook(PyThreadState* ts, _PyInterpreterFrame* raw, int throwing) noexcept {
  ++suspended;
  SetEvalFunction(WithoutOurs());
  PyObject* result = StayingAtThreadEnd([&] { return EvalDefault()(ts, raw, throwing); });
  --suspended;
  if (scopes > 0) {
    if (GetEvalFunction() == EvalDefault()) SetEvalFunction(FrametapEvalFrame);
    Install();
  } else if (GetEvalFunction() == EvalDefault()) {
    SetEvalFunction(WithoutOurs());
  }
  return result;
}

FrameFilter* FilterOfGreenlet(const void* stack) {
  for (auto it = thread_scopes.rbegin(); it != thread_scopes.rend(); ++it) {
    if (it->stack == stack) return it->filter;
  }
  return nullptr;
}

bool IsWanted(FrameFilter* filter, _PyInterpreterFrame* raw) noexcept {
  try {
    return filter->Wants(FactsOf(raw));
  } catch (...) {
    return false;
  }
}

extern "C" PyObject* FrametapEvalFrame(PyThreadState* ts, _PyInterpreterFrame* raw, int throwing) noexcept {
  hook::Thread* const here = &thread;
  if (StackIsLow(here)) [[unlikely]]
    return RunWithoutHook(ts, raw, throwing);
  FrameFilter* filter = here->filter;
  if (filter == nullptr) {
    filter = common_filter;
  } else if (const void* stack = StackIdentity(ts); stack != here->stack) [[unlikely]] {
    filter = FilterOfGreenlet(stack);
  }
  if (filter == nullptr || throwing != 0 || here->passed_on == raw || IsTraced(ts) || !IsWanted(filter, raw)) {
    return PassOn(here, ts, raw, throwing);
  }
  return Interpret(ts, raw, filter->tracer());
}

}  // namespace

HookScope::HookScope(FrameFilter* filter)
    : filter_(filter),
      stack_(StackIdentity(PyThreadState_Get())),
      previous_(thread.filter),
      previous_stack_(thread.stack) {
  thread_scopes.push_back({filter_, stack_});
  thread.filter = filter_;
  thread.stack = stack_;
  if (scopes++ == 0) {
    Install();
  } else if (suspended > 0 && GetEvalFunction() == WithoutOurs()) {
    Install();
    reinstalled_ = true;
  }
}

HookScope::~HookScope() {
  const auto is_this = [this](const Scoped& one) { return one.filter == filter_ && one.stack == stack_; };
  const auto found = std::find_if(thread_scopes.rbegin(), thread_scopes.rend(), is_this);
  const bool innermost = found == thread_scopes.rbegin();
  thread_scopes.erase(std::next(found).base());
  if (innermost) {
    thread.filter = previous_;
    thread.stack = previous_stack_;
  }
  // Greenlets have closed their scopes in another order: the one before may be gone.
  if (thread.filter != nullptr && FilterOfGreenlet(thread.stack) != thread.filter) {
    const Scoped last = thread_scopes.empty() ? Scoped{nullptr, nullptr} : thread_scopes.back();
    thread.filter = last.filter;
    thread.stack = last.stack;
  }
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
  return !IsTraced(ts) && ts->recursion_remaining > depth + 1 && !StackIsLow(&thread, depth * kBytesOfCall) &&
         GetEvalFunction() == FrametapEvalFrame;
}

bool HookInstalled() { return scopes > 0; }

bool ThreadIsTraced() { return IsTraced(PyThreadState_Get()); }

}  // namespace frametap
