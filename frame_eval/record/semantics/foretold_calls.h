// A call of a function under functools.lru_cache with numbers that are not fixed. Its result is foretold. The recording
// follows the function that is under the cache, as if it were called. So the result is known as numbers of the graph.
// Then the program's own call is made, which asks the cache or fills it.
//   F1  The followed call only reads and computes. The recorder gives it up before an op or a switch of the thread's
//       state. It does so, too, before a change of an object from outside, and before a step of such an iterator.
//   F2  The result consists of numbers, strings, None, and of tuples, lists and dicts of them that the call has made. An
//       object that existed before is a part if it is the very object.
//   F3  A replay makes the call as an effect, and fits only if the cache has no entry for it, or an entry that is equal to
//       the foretold result. Both are right, as the facts that the followed call has read are guarded.
//   F4  The program has the cache's own objects. They are used by their value alone (MeetAsObject). The recording is
//       dropped where one of them is changed, is compared by identity, or must be made again. Later recordings guard the
//       entries of this function by their identity (cached_calls.h).
// Not here: who makes the call (session_foretell.cc), look-ups in the cache (cached_functions.h).
#pragma once

#include <Python.h>

#include <memory>
#include <vector>

#include "frame_eval/record/frame_note.h"
#include "frame_eval/record/trace.h"
#include "guards/ref.h"

namespace frametap {

struct ForetoldCall {
  enum class Stage : uint8_t {
    kWanted,    // the recorder has met the call
    kFollowed,  // the function under the cache runs
    kGivenUp,   // … and its frames are being left
    kForetold,  // the program's own call runs
  };
  Stage stage = Stage::kWanted;
  Ref<> cached, function;
  std::vector<Ref<>> args;  // keyword values last
  std::vector<Shadow> shadows;
  Ref<> names;  // keyword names, a tuple
  // As the followed call began:
  size_t frames = 0, effects = 0, decisions = 0, mutated = 0;
  int64_t taken = 0;
  uint32_t epoch = 0;
  ThreadChanges::Mark thread;
  const FrameNote* note = nullptr;  // kForetold: of the frame that makes the call

  Ref<> result;
  Shadow shadow;
  bool is_at_work() const { return stage == Stage::kFollowed || stage == Stage::kGivenUp; }
  std::vector<PyObject*> Arguments() const;
};

extern bool has_foretold;  // in some recording: each instruction asks, and nearly none has any
ForetoldCall* FindForetold(const Trace& trace);
// The call that is at work in a recording. Null if there is none.
inline ForetoldCall* ForetoldIn(const Trace& trace) { return has_foretold ? FindForetold(trace) : nullptr; }
void ForgetForetold(const Trace& trace);    // the call alone
void EndForetoldCalls(const Trace& trace);  // the recording ends

// Notes that a call of a function under functools.lru_cache is to be foretold. Returns false if it cannot be.
bool WantForetold(Trace& trace, const Call& call);
// Expects the frame of the function under the cache.
void BeginForetold(Trace& trace);
// Throws if the operation that is about to run is more than a read (F1).
void MeetInForetold(Trace& trace, const FrameNote& note, const Event& e);
// Records the call, as its result is known. Throws if it is not. Returns false if the cache has another result.
bool EndForetold(Trace& trace, FrameNote& note, PyObject* result);
// Whether the operation that is over in the frame is the program's own call.
bool HasAsked(const Trace& trace, const FrameNote& note);
// Records the result of the program's own call.
Shadow AskedResult(Trace& trace, PyObject* result);

// Whether the object is of a cache, and used by its value (F4).
bool IsLent(const Trace& trace, PyObject* object);
[[noreturn]] void ThrowLent(const Trace& trace, PyObject* object);
// Ends the recording if the object is of a cache: it is about to count as this very object.
inline void MeetAsObject(const Trace& trace, PyObject* object) {
  if (has_foretold && IsLent(trace, object)) [[unlikely]]
    ThrowLent(trace, object);
}

// Functions whose entries later recordings for this store guard by which objects they are.
void NoteByIdentity(const SegmentCache& store, PyObject* cached);
bool IsByIdentity(const SegmentCache& store, PyObject* cached);
// Returns the function because of which a recording has ended, once (MeetAsObject, EndForetold). Empty if there is none.
Ref<> TakeBlamed(const Break& reason);

}  // namespace frametap
