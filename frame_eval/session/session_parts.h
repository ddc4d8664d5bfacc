// Helpers that the session*.cc files share. For these files only.
#pragma once

#include <Python.h>
#include <c10/util/Exception.h>

#include <exception>
#include <stdexcept>
#include <string>

#include "frame_eval/checks/fault_observer.h"
#include "frame_eval/record/direct_calls.h"
#include "frame_eval/session/session.h"

namespace frametap {

// Code of ours at work: frames that come meanwhile (a finaliser's, a signal handler's) are no part of a recording.
// (Stands around each operation: calls of its own would cost more than what it does.)
struct OwnCode {
  [[gnu::always_inline]] explicit OwnCode(const Session::Thread& thread)
      : frames(thread.filter), ops(thread.aten_depth), signals(thread.is_main) {}
  [[gnu::always_inline]] ~OwnCode() {}
  HookPause frames;
  AtenPause ops;
  SignalsHeld signals;
  AllocZone allocations;
};

// A Python exception that was set inside of the recorder is a fault of ours (no memory, say), whatever was concluded
// after it.
inline void MustBeClean(const Session::Thread& thread) {
  if (*thread.error != nullptr) throw std::runtime_error("an exception inside of the recorder");
}

// Returns what the error says. An error of torch carries its C++ stack as well, which is left out.
inline std::string WordsOf(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
}

// Throws Break if a test ends the recording here.
inline void MayEndRecording(const SegmentCache& store) {
  if (fault_observer != nullptr) [[unlikely]]
    fault_observer->MayEndRecording(store.options().fullgraph);
}

// The one place that catches what a recording throws. Anything except a Break is a fault of ours.
// (Inline, as each event of a recording comes through here.)
template <class F, class G>
[[gnu::always_inline]] inline bool Session::Guarded(F&& step, G&& ends) {
  try {
    step();
    MustBeClean(thread_);
    return true;
  } catch (const Break& b) {
    ends(b, false);
  } catch (const std::exception& e) {
    ends(Break{Reason::internal_error, WordsOf(e)}, true);
  }
  return false;
}

template <class F>
[[gnu::always_inline]] inline bool Session::Step(F&& step) {
  return Guarded(step, [this](const Break& b, bool is_fault) { is_fault ? Internal(b.detail) : End(b); });
}

inline PyCodeObject* CodeOf(const FrameRestore& restore) {
  return reinterpret_cast<PyCodeObject*>(restore.segment->frame_codes[restore.frame].get());
}

inline bool IsAwaitedBy(const FrameNote& caller, PyCodeObject* code) {
  return !caller.entry.awaited.empty() && CodeOf(caller.entry.awaited.back()) == code;
}

// Returns whether an exit continues in this frame, which has just come.
inline bool IsAwaited(const FrameState& f) {
  const FrameState* caller = NoteOf(f).caller;
  return caller != nullptr && IsAwaitedBy(NoteOf(*caller), f.code) && IsDirectCall(*caller, f);
}

// A recording may continue in `caller` when `f` returns, and an exit may leave `f` for it.
inline bool MayGoOnIn(const FrameState& caller, const FrameState& f) {
  return caller.observed && caller.handlers == 0 && (!caller.is_generator || IsPlainGenerator(caller.code)) &&
         NoteOf(caller).entry.restore == nullptr && IsDirectCall(caller, f);
}

// Returns whether the frame has caught the exception that a refusal waits for, before a statement of an `except` block runs.
// Blocks that rethrow it (`finally`, `with`, `except` of other classes) run. Notes that a handler begins.
bool IsCaughtAt(const FrameState& f, EntryState::Handling* handling);

// Returns whether the handler that the frame is in does not catch its exception: the handler of a `with` block, or a
// `finally` block.
bool HandsOn(const FrameState& f);

}  // namespace frametap
