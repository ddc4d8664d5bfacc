// The PEP 523 hook: which frames come to our interpreter.
//   K1  It is installed only while at least one HookScope is alive in the process, and acts only on threads that have
//       one. Frames of other threads go straight to CPython.
//   K2  It never acts while the thread is traced or profiled (sys.settrace, sys.setprofile), nor on frames that begin
//       with an exception being thrown in.
//   K3  It is noexcept; a C++ exception inside hands the frame to CPython.
//   K4  Under the hook every Python call needs C stack. Where that runs low, the frame and all that it calls run
//       without the hook, so that a deep recursion that CPython can do is still done. The hook of another tool is left
//       out as well: under it a call needs C stack, too.
//   K5  A scope counts for the greenlet that opened it: while another one runs on the thread, what the scope points to
//       is not even in memory.
#pragma once

#include <Python.h>

#include <utility>

#include "frame_eval/cpython/eval_function.h"
#include "frame_eval/interpreter/tracer.h"

namespace frametap {

// Decides, for a thread, whether a frame is to be interpreted; asked for every Python frame that starts or resumes.
class FrameFilter {
 public:
  virtual ~FrameFilter() = default;
  virtual bool Wants(const FrameFacts& frame) = 0;
  virtual Tracer* tracer() = 0;  // may be null: run by our interpreter, report to no tracer
};

// While alive, frames of this thread, or of one greenlet of it, go through `filter`. Nests; the innermost counts.
class HookScope {
 public:
  explicit HookScope(FrameFilter* filter);
  ~HookScope();
  HookScope(const HookScope&) = delete;
  HookScope& operator=(const HookScope&) = delete;

 private:
  FrameFilter* filter_;
  const void* stack_;
  FrameFilter* previous_;
  const void* previous_stack_;
  bool reinstalled_ = false;
};

namespace hook {
// One object, as each thread-local variable costs each frame a call.
struct Thread {
  FrameFilter* filter = nullptr;  // of the innermost HookScope; null inside of a HookPause
  const void* stack = nullptr;    // StackIdentity of the innermost HookScope
  // The frame that is on its way to the evaluation function that was installed before ours. If that one calls ours again
  // (it was installed over ours once, and ours over it later), the chain has no end of its own.
  _PyInterpreterFrame* passed_on = nullptr;
  const char* stack_mark = nullptr;  // the address below which a quarter of the C stack is left, if that is known
  bool has_mark = false;
};
extern thread_local constinit Thread thread;
}  // namespace hook

// While alive, this thread's frames go straight to CPython.
class HookPause {
 public:
  explicit HookPause(FrameFilter*& filter = hook::thread.filter)  // for who has looked it up before
      : filter_(filter), previous_(std::exchange(filter, nullptr)) {}
  ~HookPause() { filter_ = previous_; }
  HookPause(const HookPause&) = delete;
  HookPause& operator=(const HookPause&) = delete;

 private:
  FrameFilter*& filter_;
  FrameFilter* previous_;
};

// From now on frames of threads without a scope of their own go through `filter`, for as long as the process lives. For
// running whole programs in our interpreter; K1 does not hold then.
void HookAllThreads(FrameFilter* filter);

// Whether `depth` calls of Python functions, one in the other, would surely come to the thread's filter.
bool MayCall(int depth);

bool HookInstalled();
bool ThreadIsTraced();  // a debugger, profiler or coverage is active on this thread

}  // namespace frametap
