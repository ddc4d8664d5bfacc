// The part of Session at the end of a recording: a segment is compiled and published, or the recording is given up.

#include <algorithm>
#include <utility>

#include "frame_eval/checks/self_checking.h"
#include "frame_eval/record/break_words.h"
#include "frame_eval/record/finish/freeze.h"
#include "frame_eval/record/shadow_check.h"
#include "frame_eval/replay/reify.h"
#include "frame_eval/replay/run_graph.h"
#include "frame_eval/segment/event_log.h"
#include "frame_eval/session/library_code.h"
#include "frame_eval/session/session_parts.h"
#include "guards/objects/tensor_door.h"
#include "ir/text/text.h"

namespace frametap {
namespace {

// self_check/Y4: a recorder's graph is valid.
absl::StatusOr<std::unique_ptr<Executable>> CompileGraph(Backend& backend, Segment& segment) {
  if (backend.reads_words()) segment.Shown();
  if (SelfChecking()) {
    if (absl::Status valid = VerifyRunnable(segment.ir.graph); !valid.ok()) return valid;
  }
  return backend.CompileFor(segment.ir.graph, segment.examples);
}

}  // namespace

// The recording is of all that Run has called.
bool Session::IsWholeCall(const FrameState& f) const {
  return store_->options().answers_by_replay && &f == outermost_ && !went_on_ && !error_value_ &&
         entry_code_ == f.code && entry_offset_ == StartOffset(f.code) && !trace().entry.began_at_break;
}

// Null if there is none.
FrameState* Session::CallerToGoOnIn(const FrameState& f) const {
  FrameState* caller = NoteOf(f).caller;
  if (!trace().entry.began_at_break || caller == nullptr || trace().aten.pending || error_value_) return nullptr;
  return MayGoOnIn(*caller, f) && !store_->FindOrAdd(entry_code_, entry_offset_).alone ? caller : nullptr;
}

// The recording continues in the frame that has called this one.
bool Session::GoOnInCaller(FrameState& f, FrameEnd end, PyObject* value, Shadow shadow) {
  bool goes_on = true;
  const auto go_on = [&] {
    FrameState* const caller = CallerToGoOnIn(f);
    goes_on = caller != nullptr;
    if (!goes_on) return;
    went_on_ = true;
    recorder_->ContinueIn(*caller, NoteOf(*caller), f, end, value, shadow);
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
  if (raised && catching_ != nullptr) store_->FindOrAdd(entry_code_, entry_offset_).ends_at_handlers = true;
  ReleaseFrames(trace().frames.inlined);
  DropRecorder();
  Abort({raised ? Reason::exception_left : Reason::frame_left, ""}, at, !raised);
}

void Session::EndWithReturn(const FrameState& f, PyObject* value, Shadow shadow) {
  const Position at = BreakPosition(trace());
  Break why{Reason::internal_error, ""};
  const auto finish = [&] { return FinishReturn(trace(), value, shadow); };
  std::shared_ptr<Segment> segment = Finish(finish, &why);
  if (segment != nullptr && SelfChecking()) {
    const std::string fault = MisfitOf(trace(), *segment);
    if (!fault.empty()) {
      Misbelief(fault);
      segment = nullptr;
    }
  }
  const bool is_whole = segment != nullptr && IsWholeCall(f);
  const bool is_refused = segment == nullptr && IsRefused(why.reason);
  std::unique_ptr<UndoLog> undo = is_whole || is_refused ? recorder_->TakeUndo() : nullptr;
  ReleaseFrames(trace().frames.inlined);
  DropRecorder();
  if (is_refused) {
    undo_ = std::move(undo);
    TakeTime();
    return RefuseFullGraph(why, at);
  }
  if (segment == nullptr) return Abort(why, at, true);
  if (!Publish(segment, -1)) return;
  if (undo != nullptr && undo->IsComplete() && segment->executable->approximates()) {
    undo->TakeBack();
    is_taken_back_ = true;
  } else {
    segment->executable->NoteRecordedRun();
  }
}

void Session::GiveUp(const Break& given) {
  PyErr_Clear();
  const Break reason = InWordsOfUser(given, trace().frames.inlined);
  Position at = BreakPosition(trace());
  ReleaseFrames(trace().frames.inlined, 1);
  DropRecorder();
  Abort(reason, at, true);
}

// The entry frame handles an exception, and an exit cannot rebuild it. Later recordings end before the exception.
void Session::GiveUpInHandler(const Break& given) {
  const Break reason = InWordsOfUser(given, trace().frames.inlined);
  store_->FindOrAdd(entry_code_, entry_offset_).ends_at_handlers = true;
  left_alone_ = &trace().frames.base();
  const Position at = BreakPosition(trace());
  ReleaseFrames(trace().frames.inlined);
  DropRecorder();
  Abort(reason, at, false);
}

// Frames of an ended recording continue without a tracer; their next instruction is an entry point. The first `of_exit`
// frames come back in each replay. Frames of library code above these run without us in a call that replays, so segments
// of the frames that they call do not continue in them.
void Session::ReleaseFrames(const std::vector<FrameState*>& frames, size_t of_exit) {
  for (size_t i = 0; i < frames.size(); ++i) {
    FrameState* const f = frames[i];
    FrameNote& note = NoteOf(*f);
    note.Part();
    if (note.is_kernel && left_alone_ == nullptr) left_alone_ = f;  // the dispatcher has changed the thread's state
    note.entry.skip_one = false;
    note.entry.wait_offset = -1;
    const bool may_begin = !f->is_generator || (note.caller != nullptr && CallsStraight(*note.caller, *f));
    const bool is_left = IsLeftToPython(f->code);
    note.entry.at_entry = may_begin && left_alone_ == nullptr && !is_left;
    f->traced = false;
    f->observed = i < of_exit || !is_left;
  }
}

void Session::Abort(const Break& reason, Position at, bool deny) {
  EntryPoint& entry = store_->FindOrAdd(entry_code_, entry_offset_);
  if (went_on_ && !entry.alone) {
    entry.alone = true;  // it may have been the callers
  } else if (deny) {
    ++entry.denials;
  }
  TakeTime();
  const ReasonRow& row = RowOf(reason.reason);
  std::string text = row.text;
  if (!reason.detail.empty()) text += ": " + reason.detail;
  store_->Log({LogEntry::Kind::kAbort, at.function, row.name, text, row.advice, at, {}, reason.inside});
}

// Code of the program may run as what it held ends.
void Session::DropRecorder() {
  AllocZone outside(false);
  recorder_.reset();
  catching_ = nullptr;
}

void Session::Internal(const std::string& what) {
  if (recorder_ != nullptr) GiveUp({Reason::internal_error, what});
}

void Session::MustFit(const std::string& fault) {
  if (fault.empty()) return;
  Misbelief(fault);
  throw std::runtime_error("self-check");
}

// self_check/Y5.
void Session::Misbelief(const std::string& fault) {
  const std::string text = "frametap self-check: " + fault + " at " + ToString(BreakPosition(trace()));
  error_type_ = Ref<>::New(PyExc_SystemError);
  error_value_ = Ref<>::Steal(PyUnicode_FromString(text.c_str()));
}

bool Session::Compile(Segment& segment) {
  std::string problem;
  try {
    HookPause pause;  // a backend's own Python code is not the program's
    SignalsServed signals;
    NotePythonKernels();
    absl::StatusOr<std::unique_ptr<Executable>> executable = CompileGraph(store_->backend(), segment);
    segment.examples = {};
    if (executable.ok() && !segment.ir.decisions.outcomes.empty()) {
      static std::unique_ptr<Backend> native = MakeNativeBackend();
      absl::StatusOr<std::unique_ptr<Executable>> decisions = native->Compile(segment.ir.decisions.graph);
      if (decisions.ok())
        segment.decisions = std::move(*decisions);
      else
        executable = decisions.status();
    }
    if (executable.ok()) {
      segment.executable = std::move(*executable);
      return true;
    }
    problem = std::string(executable.status().message());
  } catch (...) {
    SetPythonErrorFromException();
  }
  if (PyErr_Occurred() == nullptr && Errors().backend != nullptr) {
    error_type_ = Ref<>::New(Errors().backend);
    error_value_ = Ref<>::Steal(PyObject_CallFunction(Errors().backend, "s", problem.c_str()));
  }
  TakePending(&error_type_, &error_value_);
  return false;
}

// The time of the recording that has not been accounted for.
double Session::TakeTime() {
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - std::exchange(began_, now)).count();
  store_->recording_seconds += seconds;
  return seconds;
}

bool Session::Publish(std::shared_ptr<Segment> segment, int offset, const std::string& inside) {
  const auto& nodes = segment->ir.graph.nodes;
  const bool has_ops = std::any_of(nodes.begin(), nodes.end(), [](const Node& node) { return node.op.has_value(); });
  EntryPoint& entry = store_->FindOrAdd(entry_code_, entry_offset_);
  if (!has_ops && entry.empty() && entry_is_below_ && IsPackageCode(entry_code_)) {
    // Work of a package between two breaks without any tensor is not a graph, and Python is as fast.
    entry.denials = Store::kMaxDenials;
    entry.holds_no_op = true;
    // At a start: segments that begin later in the frame, or continue in it, find it as they did in this recording.
    if (entry_offset_ == StartOffset(entry_code_) && !went_on_) entry.wait_offset = offset;
    TakeTime();
    return false;
  }
  segment->entry_offset = entry_offset_;
  if (!Compile(*segment)) {
    Abort({Reason::backend_failed, ""}, segment->ir.exit.at, true);
    return false;
  }
  segment->ir.name = store_->NextName(segment->ir.function);
  segment->recording_seconds = TakeTime();
  ++store_->recordings;
  if (IsAsked(LogEntry::Kind::kRecorded)) TellSegment(LogEntry::Kind::kRecorded, *segment);
  store_->Log({LogEntry::Kind::kRecorded, segment->ir.name, "", "", "", segment->ir.exit.at, {}});
  if (segment->ir.exit.kind == Exit::Kind::kResume) {
    std::string text, advice;
    for (int i = 0; i <= static_cast<int>(Reason::internal_error); ++i) {
      const ReasonRow& row = RowOf(static_cast<Reason>(i));
      if (segment->ir.exit.reason != row.name) continue;
      text = row.text;
      advice = row.advice;
    }
    if (!segment->ir.exit.detail.empty()) text += ": " + segment->ir.exit.detail;
    store_->Log({LogEntry::Kind::kBreak,
                 segment->ir.name,
                 segment->ir.exit.reason,
                 text,
                 advice,
                 segment->ir.exit.at,
                 {},
                 inside});
  }
  NoteFollowed(*segment);
  store_->Publish(std::move(segment));
  return true;
}

// Where a frame does not run under the hook from its start, its later entry points and its callees' segments are lost.
void Session::NoteFollowed(const Segment& segment) {
  store_->FindOrAdd(entry_code_, StartOffset(entry_code_)).is_followed = true;
  for (const Segment::Caller& caller : segment.callers) {
    auto* const code = reinterpret_cast<PyCodeObject*>(caller.code.get());
    store_->FindOrAdd(code, StartOffset(code)).is_followed = true;
  }
}

void Session::End(const Break& given) {
  ErrScope keep(thread_.error);
  if (catching_ != nullptr) return GiveUpInHandler(given);
  const Break reason = InWordsOfUser(given, trace().frames.inlined);
  Position at = BreakPosition(trace());
  const ReasonRow& row = RowOf(reason.reason);
  const int offset = recorder_->base_offset();
  const std::vector<FrameState*> frames =
      trace().frames.inlined;  // the end of the recording needs what is noted of them
  if (EntryPoint& entry = store_->FindOrAdd(entry_code_, entry_offset_); row.once && !entry.put_off) {
    entry.put_off = true;
    left_alone_ = &trace().frames.base();
    ReleaseFrames(frames);
    DropRecorder();
    Abort(reason, at, false);
    return;
  }
  if (IsRefused(reason.reason)) {
    const auto handles = [](const FrameState* f) { return f->handlers > 0; };
    const auto handler = std::find_if(frames.begin(), frames.end(), handles);
    if (handler != frames.end() && reason.reason != Reason::marked_size && HandsOn(**handler)) {
      return HandleInPlainPython(given, static_cast<size_t>(handler - frames.begin()));
    }
    undo_ = recorder_->TakeUndo();
    ReleaseFrames(frames);
    DropRecorder();
    TakeTime();
    RefuseFullGraph(reason, at);
    return;
  }
  const bool in_block = recorder_->is_in_inference_block();
  Break why{Reason::internal_error, ""};
  const auto finish = [&] { return FinishBreak(trace(), reason); };
  std::shared_ptr<Segment> segment = row.is_break ? Finish(finish, &why) : nullptr;
  // The new exception on the stack cannot be made again. The user reads about the exception, not about the object.
  if (!row.is_break || (reason.reason == Reason::exception_handling && why.reason == Reason::escaping_object)) {
    why = reason;
  }
  const bool holds_nothing = segment == nullptr || (segment->ir.graph.nodes.empty() && segment->ir.effects.empty());
  ReleaseFrames(frames, holds_nothing ? 1 : segment->ir.exit.frames.size());
  DropRecorder();
  // Only now: the end of the recorder may have run Python code that reset the store.
  EntryPoint& entry = store_->FindOrAdd(entry_code_, entry_offset_);
  if (segment == nullptr) {
    const bool is_first = in_block && !std::exchange(entry.ends_at_blocks, true);
    if (!is_first) entry.wait_offset = offset;
    Abort(why, at, !is_first);
    return;
  }
  if (holds_nothing) {
    // Nothing was recorded before the break: the entry point is where the frame continues after it.
    entry.wait_offset = offset;
    TakeTime();
    std::string text = row.text;
    if (!reason.detail.empty()) text += ": " + reason.detail;
    store_->Log({LogEntry::Kind::kBreak, at.function, row.name, text, row.advice, at, {}, reason.inside});
    return;
  }
  if (Publish(segment, offset, reason.inside)) segment->executable->NoteRecordedRun();
}

}  // namespace frametap
