// The part of Session that follows the function under a cache before the program asks the cache (predicted_calls.h).

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "frame_eval/record/break_words.h"
#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/semantics/cached_calls.h"
#include "frame_eval/session/session_parts.h"

namespace frametap {

bool Session::is_predicting() const {
  if (!is_recording()) return false;
  const PredictedCall* const call = PredictedIn(trace());
  return call != nullptr && call->is_at_work();
}

// The call is a look-up with known arguments (cached_calls.h).
static void AskByIdentity(Trace& trace, FrameNote& note) {
  const PredictedCall& call = *PredictedIn(trace);
  const std::vector<PyObject*> args = call.Arguments(), names = call.Keywords();
  Call now{trace.frames.innermost(), note, call.cached.get(), {}, {}, {}};
  now.args.assign(args.begin(), args.end());
  now.names.assign(names.begin(), names.end());
  now.shadows.assign(call.shadows.begin(), call.shadows.end());
  InvokeCachedByIdentity(trace, now);
  note.op.own_effect = true;
  trace.predictions->call.reset();
}

bool Session::Predict(FrameNote& note, const Event& event) {
  {
    OwnCode own(thread_);
    ErrScope keep(thread_.error);
    bool is_followed = event.op == Op::kCall || event.op == Op::kCallEx;  // or the result is of another operation
    Step([&] { is_followed ? BeginPrediction(trace()) : AskByIdentity(trace(), note); });
    if (!is_predicting()) return true;
  }
  PredictedCall& call = *PredictedIn(trace());
  const std::vector<PyObject*> args = call.Arguments();
  const auto named = static_cast<size_t>(PyTuple_GET_SIZE(call.names.get()));
  Ref<> result = Ref<>::Steal(PyObject_Vectorcall(call.function.get(), args.data(), args.size() - named,
                                                  named > 0 ? call.names.get() : nullptr));
  trace().aten.admits_none = false;
  // An interruption of the program is raised where the call would be.
  const bool is_interrupted = !result && call.stage == PredictedCall::Stage::kFollowed && PyErr_Occurred() != nullptr &&
                              !PyErr_ExceptionMatches(PyExc_Exception);
  if (!is_interrupted) PyErr_Clear();
  OwnCode own(thread_);
  ErrScope keep(thread_.error);
  trace().frames.ClearPending();
  if (!result || call.stage == PredictedCall::Stage::kGivenUp) {
    // A call that raises may not do so the next time.
    const bool has_raised = call.stage == PredictedCall::Stage::kFollowed;
    const bool is_first = has_raised && store_->FirstTold(absl::StrCat("a cached function raises: ",
                                                                       reinterpret_cast<uintptr_t>(call.cached.get())));
    if (!is_first) store_->NoteByIdentity(call.cached.get());
    Drop({Reason::done_once, CallableName(call.cached.get())});
    return !is_interrupted;
  }
  Step([&] {
    if (!EndPrediction(trace(), note, result.get())) AskByIdentity(trace(), note);
  });
  return true;
}

bool Session::GiveUpPrediction() {
  if (!is_predicting()) return false;
  PredictedCall& call = *PredictedIn(trace());
  call.stage = PredictedCall::Stage::kGivenUp;
  std::vector<FrameState*>& inlined = trace().frames.inlined;
  for (size_t i = call.frames; i < inlined.size(); ++i) {
    NoteOf(*inlined[i]).Part();
    inlined[i]->traced = false;
    inlined[i]->observed = true;
  }
  inlined.resize(std::min(inlined.size(), call.frames));
  trace().aten.pending.reset();
  trace().aten.has_refused = false;
  trace().frames.ClearPending();
  return true;
}

void Session::RaiseGivenUp() { PyErr_SetString(PyExc_SystemError, "frametap: a followed call is given up"); }

void Session::Drop(const Break& given) {
  const Break reason = InWordsOfUser(given, trace().frames.inlined);
  const Position at = BreakPosition(trace());
  const std::vector<FrameState*> frames = trace().frames.inlined;
  StopRecording(frames, SIZE_MAX, frames.front());
  publisher_.Abort(reason, at, false);
}

bool Session::DropForCache(const Break& given) {
  if (!NoteCache(given)) return false;
  Drop(given);
  return true;
}

bool Session::NoteCache(const Break& why) {
  const Ref<> cached = TakeBlamed(trace(), why);
  if (cached) store_->NoteByIdentity(cached.get());
  return static_cast<bool>(cached);
}

}  // namespace frametap
