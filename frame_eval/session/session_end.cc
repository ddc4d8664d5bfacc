// The part of Session at the end of a recording: a segment is compiled and published, or the recording is given up.

#include <algorithm>
#include <utility>

#include "frame_eval/checks/self_checking.h"
#include "frame_eval/record/break_words.h"
#include "frame_eval/record/finish/freeze.h"
#include "frame_eval/record/shadow_check.h"
#include "frame_eval/replay/recorded_values.h"
#include "frame_eval/replay/run_graph.h"
#include "frame_eval/segment/event_log.h"
#include "frame_eval/session/session_parts.h"
#include "ir/dcheck.h"
#include "ir/text/text.h"

namespace frametap {

// self_check/Y5.
static std::string SelfCheckText(const std::string& fault, Trace& trace) {
  return "frametap self-check: " + fault + " at " + ToString(BreakPosition(trace));
}
// The call that was recorded has the values of a replay from here on, where the backend approximates.
static void AnswerRecorded(Segment& segment, const RecordedRun* run) {
  const bool is_wanted = run != nullptr && segment.executable->approximates();
  if (!is_wanted || !TakeReplayedValues(segment, *run)) segment.executable->NoteRecordedRun();
}

// The recording is of all that Run has called.
bool Session::IsWholeCall(const FrameState& f) const {
  return store_->options().answers_by_replay && &f == outermost_ && !publisher_.went_on() && !refusal_.is_set() &&
         publisher_.IsAtStartOf(f.code) && !trace().entry.began_at_break;
}

// Null if there is none.
FrameState* Session::CallerToGoOnIn(const FrameState& f) const {
  FrameState* caller = NoteOf(f).caller;
  if (!trace().entry.began_at_break || caller == nullptr || trace().aten.pending || refusal_.is_set()) return nullptr;
  return MayGoOnIn(*caller, f) && !publisher_.entry_point().alone ? caller : nullptr;
}

// The recording continues in the frame that has called this one.
bool Session::GoOnInCaller(FrameState& f, FrameEnd end, PyObject* value, Shadow shadow) {
  bool goes_on = true;
  const auto go_on = [&] {
    FrameState* const caller = CallerToGoOnIn(f);
    goes_on = caller != nullptr;
    if (!goes_on) return;
    publisher_.NoteCaller();
    recorder().ContinueIn(*caller, NoteOf(*caller), f, end, value, shadow);
  };
  Guarded(go_on, [&](const Break& b, bool) {
    goes_on = true;
    GiveUp(b);
  });
  return goes_on;
}

// Ends the recording. Returns null with `*why` set if it leaves no segment.
template <class F>
std::shared_ptr<Segment> Session::Finish(F&& finish, Break* why) {
  std::shared_ptr<Segment> segment;
  Guarded([&] { segment = finish(); },
          [&](const Break& b, bool) {
            const bool is_clean = *thread_.error == nullptr;
            PyErr_Clear();
            segment = nullptr;
            *why = is_clean ? b : Break{Reason::internal_error, "an exception inside of the recorder"};
          });
  return segment;
}

// The entry frame of the recording is left.
void Session::EndWithFrame(FrameState& f, FrameEnd end, PyObject* value, Shadow shadow) {
  const bool hands_over = end == FrameEnd::kReturned || end == FrameEnd::kYielded;
  if (hands_over && GoOnInCaller(f, end, value, shadow)) return;
  if (end == FrameEnd::kReturned) return EndWithReturn(f, value, shadow);
  const Position at = BreakPosition(trace());
  const bool raised = end == FrameEnd::kRaised;
  if (raised && is_catching()) publisher_.entry_point().ends_at_handlers = true;
  StopRecording(trace().frames.inlined);
  publisher_.Abort({raised ? Reason::exception_left : Reason::frame_left, ""}, at, !raised);
}

void Session::EndWithReturn(const FrameState& f, PyObject* value, Shadow shadow) {
  FT_DCHECK(&f == &trace().frames.base());
  const Position at = BreakPosition(trace());
  Break why{Reason::internal_error, ""};
  std::unique_ptr<RecordedRun> run;
  const auto finish = [&] {
    Finished finished = FinishReturn(trace(), value, shadow);
    run = std::move(finished.run);
    return std::move(finished.segment);
  };
  std::shared_ptr<Segment> segment = Finish(finish, &why);
  if (segment != nullptr && SelfChecking()) {
    const std::string fault = CheckSegment(trace(), *segment);
    if (!fault.empty()) {
      refusal_.Set(PyExc_SystemError, SelfCheckText(fault, trace()));
      segment = nullptr;
    }
  }
  const bool is_whole = segment != nullptr && IsWholeCall(f);
  const bool is_for_cache = segment == nullptr && NoteCache(why);
  const bool is_refused = segment == nullptr && !is_for_cache && RefusedCall::Is(*store_, why.reason);
  std::unique_ptr<UndoLog> undo = is_whole || is_refused ? recorder().TakeUndo() : nullptr;
  StopRecording(trace().frames.inlined);
  if (is_refused) {
    undo_ = std::move(undo);
    publisher_.TakeTime();
    return RefuseEndOfGraph(why, at);
  }
  if (segment == nullptr) return publisher_.Abort(why, at, !is_for_cache);
  if (!publisher_.Publish(segment, -1)) return;
  if (undo != nullptr && undo->IsComplete() && segment->executable->approximates()) {
    undo->TakeBack();
    is_taken_back_ = true;
  } else {
    AnswerRecorded(*segment, run.get());
  }
}

void Session::GiveUp(const Break& given) {
  if (GiveUpPrediction()) return;
  PyErr_Clear();
  const Break reason = InWordsOfUser(given, trace().frames.inlined);
  Position at = BreakPosition(trace());
  StopRecording(trace().frames.inlined, 1);
  publisher_.Abort(reason, at, true);
}

// The entry frame handles an exception, and an exit cannot rebuild it. Later recordings end before the exception.
void Session::GiveUpInHandler(const Break& given) {
  const Break reason = InWordsOfUser(given, trace().frames.inlined);
  publisher_.entry_point().ends_at_handlers = true;
  const Position at = BreakPosition(trace());
  StopRecording(trace().frames.inlined, SIZE_MAX, &trace().frames.base());
  publisher_.Abort(reason, at, false);
}

void Session::StopRecording(const std::vector<FrameState*>& frames, size_t of_exit, const FrameState* until) {
  for (size_t i = 0; i < frames.size(); ++i) {
    FrameState* const f = frames[i];
    FrameNote& note = NoteOf(*f);
    note.Part();
    if (note.is_kernel && until == nullptr) until = f;  // the dispatcher has changed the thread's state
    note.entry.skip_one = false;
    note.entry.wait_offset = -1;
    const bool may_begin = !f->is_generator || (note.caller != nullptr && IsDirectCall(*note.caller, *f));
    // In a call that replays, library code above the exit's frames runs without us. Segments of the frames that it calls do
    // not continue in it.
    const bool is_left = library_.LeavesToPython(f->code);
    note.entry.at_entry = may_begin && until == nullptr && !is_left;
    f->traced = false;
    f->observed = i < of_exit || !is_left;
  }
  if (!is_recording()) return;
  AllocZone outside(false);
  // Code of the program may run as what it holds ends.
  const std::unique_ptr<Recorder> last = std::move(recording()->recorder);
  if (until != nullptr) {
    state_ = LeftAlone{until};
  } else {
    state_ = Waiting{};
  }
}

void Session::Internal(const std::string& what) {
  if (is_recording()) GiveUp({Reason::internal_error, what});
}

void Session::MustFit(const std::string& fault) {
  if (fault.empty()) return;
  refusal_.Set(PyExc_SystemError, SelfCheckText(fault, trace()));
  throw std::runtime_error("self-check");
}

void Session::End(const Break& given, const FrameState* until) {
  ErrScope keep(thread_.error);
  if (GiveUpPrediction() || DropForCache(given)) return;
  if (is_catching()) return GiveUpInHandler(given);
  const Break reason = InWordsOfUser(given, trace().frames.inlined);
  Position at = BreakPosition(trace());
  const ReasonRow& row = RowOf(reason.reason);
  const int offset = recorder().base_offset();
  const std::vector<FrameState*> frames =
      trace().frames.inlined;  // the end of the recording needs what is noted of them
  // An import may run anything, which fullgraph refuses before it acts.
  const bool waits = row.once && !(reason.reason == Reason::import_statement && store_->options().fullgraph);
  if (EntryPoint& entry = publisher_.entry_point(); waits && !entry.put_off) {
    entry.put_off = true;
    return Drop(given);
  }
  if (RefusedCall::Is(*store_, reason.reason)) {
    const auto handles = [](const FrameState* f) { return f->handlers > 0; };
    const auto handler = std::find_if(frames.begin(), frames.end(), handles);
    if (handler != frames.end() && reason.reason != Reason::marked_size && HandsOn(**handler)) {
      return HandleInPlainPython(given, static_cast<size_t>(handler - frames.begin()));
    }
    undo_ = recorder().TakeUndo();
    StopRecording(frames, SIZE_MAX, until);
    publisher_.TakeTime();
    RefuseEndOfGraph(reason, at);
    return;
  }
  const bool in_block = recorder().is_in_inference_block();
  Break why{Reason::internal_error, ""};
  std::unique_ptr<RecordedRun> run;
  const auto finish = [&] {
    Finished finished = FinishBreak(trace(), reason);
    run = std::move(finished.run);
    return std::move(finished.segment);
  };
  std::shared_ptr<Segment> segment = row.is_break ? Finish(finish, &why) : nullptr;
  const bool cut_in_block = in_block || trace().thread.IsContextSet();
  // The new exception on the stack cannot be made again. The user reads about the exception, not about the object.
  if (!row.is_break || (reason.reason == Reason::exception_handling && why.reason == Reason::escaping_object)) {
    why = reason;
  }
  const bool holds_nothing = segment == nullptr || (segment->ir.graph.nodes.empty() && segment->ir.effects.empty());
  const bool is_for_cache = segment == nullptr && NoteCache(why);
  StopRecording(frames, holds_nothing ? 1 : segment->ir.exit.frames.size(), until);
  // Only now: the end of the recorder may have run Python code that reset the store.
  EntryPoint& entry = publisher_.entry_point();
  if (segment == nullptr) {
    const bool is_first = is_for_cache || (cut_in_block && !std::exchange(entry.ends_at_blocks, true));
    if (!is_first) entry.wait_offset = offset;
    publisher_.Abort(why, at, !is_first);
    return;
  }
  if (holds_nothing) return publisher_.NoteNoGraph(reason, at, offset);
  if (publisher_.Publish(segment, offset, &reason)) AnswerRecorded(*segment, run.get());
}

}  // namespace frametap
