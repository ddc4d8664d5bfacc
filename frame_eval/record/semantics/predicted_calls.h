// A call of a function under functools.lru_cache with numbers that are not fixed. Its result is predicted. The recording
// follows the function that is under the cache, as if it were called. So the result is known as numbers of the graph.
// Then the program's own call is made, which asks the cache or fills it.
//   F1  The followed call only reads and computes. The recorder gives it up before an op or a switch of the thread's
//       state. It does so, too, before a change of an object from outside, and before a step of such an iterator.
//   F2  The result consists of numbers, strings, None, and of tuples, lists and dicts of them that the call has made. An
//       object that existed before is a part if it is the very object.
//   F3  A replay makes the call as an effect, and fits only if the cache has no entry for it, or an entry that is equal to
//       the predicted result. Both are right, as the facts that the followed call has read are guarded.
//   F4  The program has the cache's own objects. They are used by their value alone (MeetAsObject). The recording is
//       dropped where one of them is changed, is compared by identity, or must be made again. Later recordings guard the
//       entries of this function by their identity (cached_calls.h).
// Not here: who makes the call (session_predict.cc), look-ups in the cache (cached_functions.h).
#pragma once

#include <Python.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "frame_eval/record/frame_note.h"
#include "frame_eval/record/trace.h"
#include "guards/ref.h"

namespace frametap {

struct PredictedCall {
  enum class Stage : uint8_t {
    kWanted,    // the recorder has met the call
    kFollowed,  // the function under the cache runs
    kGivenUp,   // … and its frames are being left
    kAsked,     // the program's own call runs
  };
  Stage stage = Stage::kWanted;
  Ref<> cached, function;
  std::vector<Ref<>> args;  // keyword values last
  std::vector<Shadow> shadows;
  Ref<> names;  // keyword names, a tuple
  // As the followed call began:
  size_t frames = 0, effects = 0, decisions = 0, mutated = 0;
  uint32_t epoch = 0;
  ThreadChanges::Mark thread;
  const FrameNote* note = nullptr;  // kAsked: of the frame that makes the call

  Ref<> result;
  Shadow shadow;
  bool is_at_work() const { return stage == Stage::kFollowed || stage == Stage::kGivenUp; }
  std::vector<PyObject*> Arguments() const;
  std::vector<PyObject*> Keywords() const;
};

// A recording's predictions. Trace has null where no call is predicted.
struct Predictions {
  std::unique_ptr<PredictedCall> call;                           // the one at work
  absl::flat_hash_map<PyObject*, std::pair<Ref<>, Ref<>>> lent;  // objects of caches, with the functions
  Ref<> blamed;                                                  // TakeBlamed
};
inline PredictedCall* PredictedIn(const Trace& trace) {  // null if there is none
  return trace.predictions != nullptr ? trace.predictions->call.get() : nullptr;
}

// Notes that a call of a function under functools.lru_cache is to be predicted. Returns false if it cannot be.
bool WantPrediction(Trace& trace, const Call& call);
// Expects the frame of the function under the cache.
void BeginPrediction(Trace& trace);
// Throws if the operation that is about to run is more than a read (F1).
void MeetInPrediction(Trace& trace, const FrameNote& note, const Event& e);
// Records the call, as its result is known. Throws if it is not. Returns false if the cache has another result.
bool EndPrediction(Trace& trace, FrameNote& note, PyObject* result);
// Whether the operation that is over in the frame is the program's own call.
bool HasAsked(const Trace& trace, const FrameNote& note);
// Records the result of the program's own call.
Shadow AskedResult(Trace& trace, PyObject* result);

// Whether the object is of a cache, and used by its value (F4).
bool IsLent(const Trace& trace, PyObject* object);
[[noreturn]] void ThrowLent(const Trace& trace, PyObject* object);
// Ends the recording if the object is of a cache: it is about to count as this very object.
inline void MeetAsObject(const Trace& trace, PyObject* object) {
  if (trace.predictions != nullptr && IsLent(trace, object)) [[unlikely]]
    ThrowLent(trace, object);
}

// Returns the function because of which a recording has ended, once (MeetAsObject, EndPrediction). Empty if there is none.
Ref<> TakeBlamed(const Trace& trace, const Break& reason);

}  // namespace frametap
