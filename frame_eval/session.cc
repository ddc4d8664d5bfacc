#include "frame_eval/session.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "frame_eval/break_words.h"
#include "frame_eval/callers.h"
#include "frame_eval/checkpoint_nodes.h"
#include "frame_eval/cpython/exception_table.h"
#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/event_log.h"
#include "frame_eval/kernel_nodes.h"
#include "frame_eval/library_code.h"
#include "frame_eval/module_calls.h"
#include "frame_eval/reify.h"
#include "frame_eval/repeated_calls.h"
#include "frame_eval/self_check.h"
#include "frame_eval/stress.h"
#include "guards/import.h"
#include "guards/kinds/value.h"
#include "guards/kinds/world.h"
#include "guards/tensor_door.h"
#include "ir/text.h"

namespace frametap {
namespace {

// With the stacks (StackIdentity) that they live on: a session of another greenlet is not in memory.
thread_local constinit std::vector<std::pair<const void*, Session*>> sessions;

Position LineOf(Recorder& recorder) { return recorder.BreakPosition(); }

// The import system itself, and bodies of modules. Their callees run once: finders, decorators, tables being made.
bool BelongsToImport(PyCodeObject* code) {
  if ((code->co_flags & CO_OPTIMIZED) == 0) return PyUnicode_CompareWithASCIIString(code->co_name, "<module>") == 0;
  return PyUnicode_CompareWithASCIIString(code->co_filename, "<frozen importlib._bootstrap>") == 0;
}

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

// Ends a recording. A failure inside of it leaves no segment.
template <class F>
std::shared_ptr<Segment> Finish(const Session::Thread& thread, F&& finish, Break* why) {
  try {
    std::shared_ptr<Segment> segment = finish();
    MustBeClean(thread);
    return segment;
  } catch (const std::exception& e) {
    PyErr_Clear();
    *why = Break{Reason::internal_error, e.what()};
    return nullptr;
  }
}

// An exception that is pending, if any (the making of another has failed, say).
void TakePending(Ref<>* error_type, Ref<>* error_value) {
  if (PyErr_Occurred() == nullptr) return;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr) PyException_SetTraceback(value, traceback);
  *error_type = Ref<>::Steal(type);
  *error_value = Ref<>::Steal(value);
  Py_XDECREF(traceback);
}

void ReplaceStack(FrameState& f, std::vector<Ref<>> items) {
  for (int i = f.depth; i-- > 0;) Py_CLEAR(f.objects[f.nlocalsplus + i]);
  f.depth = static_cast<int>(items.size());
  for (int i = 0; i < f.depth; ++i) {
    f.objects[f.nlocalsplus + i] = items[static_cast<size_t>(i)].Release();
    f.shadows[f.nlocalsplus + i] = Shadow();
  }
}

Landing Returning(Ref<> result) {
  Landing landing;
  landing.leaves = true;
  landing.result = std::move(result);
  return landing;
}

PyCodeObject* CodeOf(const Landing& landing) {
  return reinterpret_cast<PyCodeObject*>(landing.segment->frame_codes[landing.frame].get());
}

// The last of them; it calls the others.
Landing TakeOutermost(std::vector<Landing> landings) {
  Landing landing = std::move(landings.back());
  landings.pop_back();
  landing.above = std::move(landings);
  return landing;
}

bool IsAwaitedBy(const FrameNote& caller, PyCodeObject* code) {
  return !caller.awaited.empty() && CodeOf(caller.awaited.back()) == code;
}

// A recording may continue in `caller` when `f` returns, and an exit may leave `f` for it.
bool MayGoOnIn(const FrameState& caller, const FrameState& f) {
  return caller.observed && caller.handlers == 0 && (!caller.is_generator || IsPlainGenerator(caller.code)) &&
         NoteOf(caller).landing == nullptr && CallsStraight(caller, f);
}

Roots RootsOf(const FrameState& f) {
  Roots roots;
  roots.localsplus = f.objects;
  roots.nlocalsplus = f.nlocalsplus;
  roots.stack = f.objects + f.nlocalsplus;
  roots.depth = f.depth;
  roots.function = reinterpret_cast<PyObject*>(f.function);
  return roots;
}

// The frames whose callers are what sources of an entry point's segments may lead to.
class RootChain {
 public:
  RootChain(const FrameState& f, const EntryPoint& entry) {
    frames_.push_back(&f);
    while (frames_.size() <= entry.callers()) {
      const FrameState* caller = NoteOf(*frames_.back()).caller;
      if (caller == nullptr || !MayGoOnIn(*caller, *frames_.back())) break;
      frames_.push_back(caller);
    }
    for (const FrameState* frame : frames_) roots_.push_back(RootsOf(*frame));
    for (size_t i = 1; i < roots_.size(); ++i) roots_[i - 1].caller = &roots_[i];
  }
  const Roots& roots() const { return roots_[0]; }
  bool Fits(const Segment& segment) const { return FirstMisfit(segment) == segment.callers.size(); }
  // In words, where the segment does not fit.
  MissReport Explain(const Segment& segment) const {
    const size_t i = FirstMisfit(segment);
    const Segment::Caller& caller = segment.callers[i];
    const Position want = PositionAt(reinterpret_cast<PyCodeObject*>(caller.code.get()), caller.offset);
    MissReport miss{"caller", "called by " + ToString(want), "called in another way", "", {}};
    if (i + 1 < frames_.size()) {
      miss.got = "called by " + ToString(PositionAt(frames_[i + 1]->code, frames_[i + 1]->offset));
    }
    miss.why = "the graph goes on in the function that called this one, and another call did";
    return miss;
  }

 private:
  size_t FirstMisfit(const Segment& segment) const {
    for (size_t i = 0; i < segment.callers.size(); ++i) {
      const Segment::Caller& caller = segment.callers[i];
      if (i + 1 >= frames_.size()) return i;
      const FrameState& frame = *frames_[i + 1];
      if (reinterpret_cast<PyObject*>(frame.code) != caller.code.get() || frame.offset != caller.offset ||
          frame.function->func_globals != caller.globals.get()) {
        return i;
      }
    }
    return segment.callers.size();
  }

  absl::InlinedVector<const FrameState*, 4> frames_;
  absl::InlinedVector<Roots, 4> roots_;
};

MissReport WhyNot(Segment& segment, const RootChain& chain) {
  if (!chain.Fits(segment)) return chain.Explain(segment);
  if (reinterpret_cast<PyFunctionObject*>(chain.roots().function)->func_globals != segment.globals.get()) {
    return {"G", "the globals that it was recorded with", "others", "another function of this code runs", {}};
  }
  if (segment.refuted) {
    return {"the graph", "contiguous() and the like gave the tensor itself, or a copy", "the other of the two",
            "a tensor made on the way has other strides or sizes", segment.ir.exit.at};
  }
  MissReport miss = segment.guards->Explain(chain.roots());
  if (miss.source.empty() && segment.guards->Check(chain.roots()) == Verdict::kHit) DecisionsHold(segment, &miss);
  return miss;
}

// Why the latest segment could not be used. Numbers and sizes that kept others from it are noted as well: the latest may
// be for tensors of another kind.
MissReport NoteMisses(const EntryPoint& entry, const RootChain& chain, Store* store) {
  constexpr size_t kMost = 8;
  MissReport of_latest;
  for (size_t i = 0; i < std::min(kMost, entry.size()); ++i) {
    MissReport miss = WhyNot(*entry.segments()[i], chain);
    if (miss.of_number) store->NoteChanging(miss.source);
    for (const std::string& number : miss.other_numbers) store->NoteChanging(number);
    if (miss.of_size) store->NoteOtherSizes();
    if (i == 0) of_latest = std::move(miss);
  }
  return of_latest;
}

std::string WithFile(std::string message, const Position& at) {
  if (!at.file.empty()) message += "\n  File \"" + at.file.str() + "\", line " + std::to_string(at.line);
  return message;
}

// Whether the instruction begins or ends the handling of an exception.
bool IsHandlerStep(const FrameState& f) {
  const char* name = InstructionAt(f.code, f.offset).name;
  return name[0] == 'P' && (std::strcmp(name, "PUSH_EXC_INFO") == 0 || std::strcmp(name, "POP_EXCEPT") == 0);
}

// Whether the instruction begins or closes a handler. Where blocks are nested, that code is covered by the outer block: an
// exception there would leave the handled one with the thread.
bool ClosesHandler(const FrameState& f) {
  const InstructionInfo at = InstructionAt(f.code, f.offset);
  return IsHandlerStep(f) || std::strcmp(at.name, "RERAISE") == 0 ||
         std::strcmp(InstructionAt(f.code, at.next).name, "POP_EXCEPT") == 0;
}

// Returns whether the handler that the frame is in does not catch its exception: the handler of a `with` block, or a
// `finally` block.
bool HandsOn(const FrameState& f) {
  bool hands_on = false, is_first = false;
  for (int at = StartOffset(f.code); at <= f.offset;) {
    const InstructionInfo info = InstructionAt(f.code, at);
    const bool catches = std::strcmp(info.name, "CHECK_EXC_MATCH") == 0 ||
                         std::strcmp(info.name, "CHECK_EG_MATCH") == 0 ||
                         (is_first && std::strcmp(info.name, "POP_TOP") == 0);
    is_first = std::strcmp(info.name, "PUSH_EXC_INFO") == 0;
    if (is_first) hands_on = true;
    if (catches) hands_on = false;
    at = info.next;
  }
  return hands_on;
}

// The code after a handler, `e = None; del e`, belongs to it: without it the exception, its traceback and the frame
// hold each other.
bool IsForgetting(const FrameState& f) {
  InstructionInfo at = InstructionAt(f.code, f.offset);
  if (std::strcmp(at.name, "LOAD_CONST") == 0) at = InstructionAt(f.code, at.next);
  if (std::strcmp(at.name, "STORE_FAST") == 0) at = InstructionAt(f.code, at.next);
  return std::strcmp(at.name, "DELETE_FAST") == 0;
}

// Law Y4 of self_check.h: a recorder's graph is valid.
absl::StatusOr<std::unique_ptr<Executable>> CompileGraph(Backend& backend, Segment& segment) {
  if (backend.reads_words()) segment.Shown();
  if (SelfChecking()) {
    if (absl::Status valid = VerifyRunnable(segment.ir.graph); !valid.ok()) return valid;
  }
  return backend.CompileFor(segment.ir.graph, segment.examples);
}

}  // namespace

bool RecordingIsForbidden() {
  PyObject* value = nullptr;
  if (Errors().recording_forbidden == nullptr) return false;
  if (PyContextVar_Get(Errors().recording_forbidden, nullptr, &value) < 0) PyErr_Clear();
  const Ref<> held = Ref<>::Steal(value);
  return held.get() == Py_True;
}

ErrorClasses& Errors() {
  static ErrorClasses errors;
  return errors;
}

Session::Session(std::shared_ptr<Store> store, PyObject* function)
    : store_(std::move(store)),
      named_(PyFunction_Check(function) ? reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function)) : nullptr),
      stack_(StackIdentity(PyThreadState_Get())) {
  sessions.emplace_back(stack_, this);
}

Session::~Session() {
  DropRecorder();
  sessions.erase(std::find(sessions.begin(), sessions.end(), std::pair<const void*, Session*>(stack_, this)));
}

bool Session::Recording() {
  if (sessions.empty()) return false;
  const void* stack = StackIdentity(PyThreadState_Get());
  for (auto it = sessions.rbegin(); it != sessions.rend(); ++it) {
    if (it->first == stack) return it->second->recorder_ != nullptr;
  }
  return false;
}

bool Session::IsLeftWhole(PyCodeObject* code) const {
  return BelongsToImport(code) || code == OwnExecutable() ||
         (IsCheckpointCode(code) && !store_->backend().calls_python());
}

bool Session::IsLeftToPython(PyCodeObject* code) const { return code != named_ && IsLibraryCode(code); }

// Where a call leaves no word at all, something was left to Python from the beginning.
void Session::TellOfSilence() {
  if (!store_->log().empty()) return;
  PyCodeObject* const code = first_left_ ? reinterpret_cast<PyCodeObject*>(first_left_.get()) : named_;
  if (code == nullptr) return;
  const ErrScope keep(thread_.error);
  store_->LeftAlone(first_left_ ? Reason::library_code : Reason::no_frame, code, StartOffset(code));
}

PyObject* Session::Run(PyObject* function, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  PyObject* result;
  called_ = function;
  {
    HookScope scope(this);
    result = PyObject_Vectorcall(function, args, nargsf, kwnames);
  }
  TellOfSilence();
  if (raised_ && result != nullptr) RefuseFullGraph(raised_->first, raised_->second);  // C code has caught it
  if (error_value_ && undo_ != nullptr) {
    Ref<> type, value;
    TakePending(&type, &value);
    Py_CLEAR(result);
    HookPause frames;
    undo_->TakeBack();
  }
  if (error_value_) {
    // Even if the program caught it on the way. (If it did not, the traceback shows the way.)
    Py_XDECREF(result);
    Ref<> type, value;
    TakePending(&type, &value);
    PyErr_SetObject(error_type_.get(), error_value_.get());
    return nullptr;
  }
  return result;
}

// Python code below an op is the op's own. The recording continues in it (kernel_nodes.h), or the op ends the graph.
bool Session::WantsBelowOp(const FrameFacts& frame) {
  if (recorder_ == nullptr) return refuses();
  if (recorder_->AwaitsCheckpointed(frame.code)) return true;
  if (recorder_->MayFollowKernel()) {
    if (!RunsForDispatcher(frame)) {
      if (!BelongsToImport(frame.code)) return true;
      recorder_->aten().pending = Break{Reason::done_once, "a kernel in Python imports a module"};
    }
  } else {
    recorder_->aten().MeetFrameBelow();
  }
  recorder_->WatchAll();
  if (recorder_->aten().refuses && recorder_->aten().pending) {
    OwnCode own(thread_);
    End(Break(*recorder_->aten().pending));
  }
  return refuses();
}

bool Session::Wants(const FrameFacts& frame) {
  if (refuses()) return true;  // N6
  if (AtenRecorder::InsideOp()) return WantsBelowOp(frame);
  if (recorder_ != nullptr) return true;
  PyCodeObject* const code = frame.code;
  if (innermost_ != nullptr && IsAwaitedBy(NoteOf(*innermost_), code)) return true;
  if (left_alone_ != nullptr) return false;
  if (frame.is_generator || frame.resumed || (code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)))
    return false;
  if (IsLeftWhole(code)) return true;                      // to leave alone what it calls
  if ((code->co_flags & CO_OPTIMIZED) == 0) return false;  // the body of a class
  if (IsLeftToPython(code)) {
    if (!first_left_) first_left_ = Ref<>::New(reinterpret_cast<PyObject*>(code));
    return false;
  }
  EntryPoint* entry = store_->Find(code, StartOffset(code));
  if (entry == nullptr || entry->denials < Store::kMaxDenials || !entry->empty()) return true;
  return entry->wait_offset >= 0 && (!entry->holds_no_op || entry->is_followed);
}

void Session::Enter(FrameState& f) {
  auto* note = new FrameNote();
  note->caller = std::exchange(innermost_, &f);
  f.tracer_data = note;
  f.traced = false;
  f.observed = false;
  if (PyObject* called = std::exchange(called_, nullptr); called == reinterpret_cast<PyObject*>(f.function)) {
    outermost_ = &f;
  }
  if (IsAwaited(f)) {
    note->landing = std::make_unique<Landing>(TakeOutermost(std::move(NoteOf(*note->caller).awaited)));
    f.observed = true;
    return;
  }
  if (refuses()) {
    f.observed = true;
    return;
  }
  if (recorder_ == nullptr) {
    if (left_alone_ == nullptr && IsLeftWhole(f.code)) {
      left_alone_ = &f;
      return;
    }
    f.observed = !f.is_generator && left_alone_ == nullptr;
    note->at_entry = f.observed;
    return;
  }
  OwnCode own(thread_);
  constexpr int kOfOwnCode = 1;
  const bool is_below = aten::depth > kOfOwnCode;
  if (!recorder_->expects_frame(f)) {
    if (is_below) recorder_->aten().MeetFrameBelow();
    recorder_->MeetUnrecorded(f);
    note->suspended.emplace();
    return;
  }
  if (f.code == OwnExecutable()) {
    left_alone_ = &f;
    return End({Reason::own_executable, "a quantized model"});
  }
  if (recorder_->AwaitsCheckpointed(f.code)) {
    note->lifted = std::exchange(aten::depth, kOfOwnCode) - kOfOwnCode;
  } else if (is_below) {
    note->lifted = std::exchange(aten::depth, kOfOwnCode) - kOfOwnCode;
    note->is_kernel = true;
    AtenRecorder::SeeOpsOfKernel(true);
  }
  try {
    recorder_->EnterInlined(f, *note);
    MustBeClean(thread_);
  } catch (const Break& b) {
    End(b);
  } catch (const std::exception& e) {
    Internal(e.what());
  }
}

void Session::Leave(FrameState& f, FrameEnd end, PyObject* value, Shadow shadow) {
  std::unique_ptr<FrameNote> note(&NoteOf(f));
  innermost_ = note->caller;
  if (suspected_frame_ == &f) [[unlikely]]
    ConfirmSuspicion(end == FrameEnd::kReturned);
  if (recorder_ != nullptr && note->inlined) {
    OwnCode own(thread_);
    ErrScope keep(thread_.error);
    if (recorder_->is_base(f)) {
      if ((end == FrameEnd::kReturned || end == FrameEnd::kYielded) && GoOnInCaller(f, end, value, shadow)) {
      } else if (end == FrameEnd::kReturned) {
        Position at = LineOf(*recorder_);
        Break why{Reason::internal_error, ""};
        std::shared_ptr<Segment> segment = Finish(
            thread_, [&] { return recorder_->FinishReturn(value, shadow, &why); }, &why);
        if (segment != nullptr && SelfChecking()) {
          const std::string fault = recorder_->MisfitOf(*segment);
          if (!fault.empty()) {
            Misbelief(fault);
            segment = nullptr;
          }
        }
        const bool is_whole = segment != nullptr && IsWholeCall(f);
        const bool is_refused = segment == nullptr && IsRefused(why.reason);
        std::unique_ptr<UndoLog> undo = is_whole || is_refused ? recorder_->TakeUndo() : nullptr;
        ReleaseFrames(recorder_->frames());
        DropRecorder();
        if (is_refused) {
          undo_ = std::move(undo);
          TakeTime();
          RefuseFullGraph(why, at);
        } else if (segment == nullptr) {
          Abort(why, at, true);
        } else if (Publish(segment, -1)) {
          if (undo != nullptr && undo->IsComplete() && segment->executable->approximates()) {
            undo->TakeBack();
            is_taken_back_ = true;
          } else {
            segment->executable->NoteRecordedRun();
          }
        }
      } else {
        Position at = LineOf(*recorder_);
        bool raised = end == FrameEnd::kRaised;
        if (raised && catching_ != nullptr) store_->FindOrAdd(entry_code_, entry_offset_).ends_at_handlers = true;
        ReleaseFrames(recorder_->frames());
        DropRecorder();
        Abort({raised ? Reason::exception_left : Reason::frame_left, ""}, at, !raised);
      }
    } else {
      try {
        recorder_->LeaveInlined(f, *note, end, value, shadow);
        MustBeClean(thread_);
      } catch (const Break& b) {
        End(b);
      } catch (const std::exception& e) {
        Internal(e.what());
      }
    }
  }
  aten::depth += note->lifted;
  if (note->is_kernel) AtenRecorder::SeeOpsOfKernel(false);
  if (left_alone_ == &f) left_alone_ = nullptr;
  if (raised_in_ == &f) {
    raised_in_ = nullptr;
    if (end == FrameEnd::kRaised && !error_value_) {  // the exception is the program's result
      raised_.reset();
      undo_.reset();
    }
  }
  f.tracer_data = nullptr;
}

// The recording is of all that Run has called.
bool Session::IsWholeCall(const FrameState& f) const {
  return store_->options().answers_by_replay && &f == outermost_ && !went_on_ && !error_value_ &&
         entry_code_ == f.code && entry_offset_ == StartOffset(f.code) && !recorder_->began_at_break();
}

// The frame that ran in plain Python as an op of a replay had raised is left: by returning, the op did not raise.
void Session::ConfirmSuspicion(bool returned) {
  suspected_frame_ = nullptr;
  if (!returned) return suspicion_.Drop();
  const ErrScope keep(thread_.error);
  if (!suspicion_.Confirm(*store_)) TakePending(&error_type_, &error_value_);
}

// Null if there is none.
FrameState* Session::CallerToGoOnIn(const FrameState& f) const {
  FrameState* caller = NoteOf(f).caller;
  if (!recorder_->began_at_break() || caller == nullptr || recorder_->aten().pending || error_value_) return nullptr;
  return MayGoOnIn(*caller, f) && !store_->FindOrAdd(entry_code_, entry_offset_).alone ? caller : nullptr;
}

// The recording continues in the frame that has called this one.
bool Session::GoOnInCaller(FrameState& f, FrameEnd end, PyObject* value, Shadow shadow) {
  try {
    FrameState* caller = CallerToGoOnIn(f);
    if (caller == nullptr) return false;
    went_on_ = true;
    recorder_->ContinueIn(*caller, NoteOf(*caller), f, end, value, shadow);
    MustBeClean(thread_);
  } catch (const Break& b) {
    GiveUp(b);
  } catch (const std::exception& e) {
    GiveUp({Reason::internal_error, e.what()});
  }
  return true;
}

void Session::GiveUp(const Break& given) {
  PyErr_Clear();
  const Break reason = InWordsOfUser(given, recorder_->frames());
  Position at = LineOf(*recorder_);
  ReleaseFrames(recorder_->frames(), 1);
  DropRecorder();
  Abort(reason, at, true);
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
    note.skip_one = false;
    note.wait_offset = -1;
    const bool may_begin = !f->is_generator || (note.caller != nullptr && CallsStraight(*note.caller, *f));
    const bool is_left = IsLeftToPython(f->code);
    note.at_entry = may_begin && left_alone_ == nullptr && !is_left;
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

void Session::Internal(const char* what) {
  if (recorder_ != nullptr) GiveUp({Reason::internal_error, what});
}

// Law Y5 of self_check.h.
void Session::Misbelief(const std::string& fault) {
  const std::string text = "frametap self-check: " + fault + " at " + ToString(LineOf(*recorder_));
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

// The call shall end with `type(message, **facts)`.
void Session::Fail(PyObject* type, const std::string& message, Ref<> facts) {
  if (type == nullptr) return;
  insists_ = true;
  HookPause pause;  // the exception's own __init__ is not the program's
  error_type_ = Ref<>::New(type);
  const Ref<> args = Ref<>::Steal(Py_BuildValue("(s)", message.c_str()));
  if (args && facts) error_value_ = Ref<>::Steal(PyObject_Call(type, args.get(), facts.get()));
  TakePending(&error_type_, &error_value_);
}

namespace {

Ref<> FactsOfRefusal(const ReasonRow& row, const std::string& where) {
  return Ref<>::Steal(
      Py_BuildValue("{s:s,s:s,s:s}", "reason", row.name, "position", where.c_str(), "advice", row.advice));
}

}  // namespace

void RaiseFullGraphError(Reason reason, PyCodeObject* code) {
  const ReasonRow& row = RowOf(reason);
  const Position at = PositionAt(code, StartOffset(code));
  const std::string where = ToString(at);
  const std::string text = "fullgraph=True, but there is no graph of " + at.function.str() + " because " + row.text;
  const Ref<> args = Ref<>::Steal(Py_BuildValue("(s)", WithFile(text, at).c_str()));
  const Ref<> facts = FactsOfRefusal(row, where);
  if (!args || !facts) return;
  const Ref<> error = Ref<>::Steal(PyObject_Call(Errors().full_graph, args.get(), facts.get()));
  if (error) PyErr_SetObject(Errors().full_graph, error.get());
}

void Session::RefuseFullGraph(const Break& reason, const Position& at) {
  const bool contradicts = reason.reason == Reason::marked_size;
  const ReasonRow& row = RowOf(reason.reason);
  const std::string where = ToString(at);
  std::string text = contradicts ? reason.detail : row.text;
  if (!contradicts && !reason.detail.empty()) text += " (" + reason.detail + ")";
  store_->Log({LogEntry::Kind::kBreak, at.function, row.name, text, row.advice, at, {}, reason.inside});
  if (!contradicts) text = "fullgraph=True, but the graph ends at " + where + " because " + text;
  Fail(contradicts ? Errors().constraint : Errors().full_graph, WithFile(text, at), FactsOfRefusal(row, where));
  raised_.reset();
}

// The recording ends, and the exception goes its way as if there had been none. Frames from `handling` on: the first one
// handles the exception, and the others are called by its handler.
void Session::HandleInPlainPython(Break reason, size_t handling) {
  const std::vector<FrameState*> frames = recorder_->frames();
  for (size_t i = 0; i < frames.size() && i <= handling; ++i) {
    const bool has_begun = i == handling;
    NoteOf(*frames[i]).handling = FrameNote::Handling{frames[i]->handlers - has_begun, has_begun, false};
  }
  raised_.emplace(InWordsOfUser(reason, frames), LineOf(*recorder_));
  raised_in_ = left_alone_ = frames.front();
  undo_ = recorder_->TakeUndo();
  ReleaseFrames(frames);
  DropRecorder();
  TakeTime();
}

// Returns whether the frame has caught the exception in `raised_`, before a statement of an `except` block runs.
// Blocks that rethrow it (`finally`, `with`, `except` of other classes) run.
bool Session::IsCaughtAt(const FrameState& f, FrameNote& note) const {
  FrameNote::Handling& handling = *note.handling;
  const char* name = InstructionAt(f.code, f.offset).name;
  const bool is_first = std::exchange(handling.is_first, false);
  if (std::strcmp(name, "PUSH_EXC_INFO") == 0) {
    handling.has_begun = handling.is_first = true;
    return false;
  }
  if (!handling.has_begun) return handling.handlers == 0;  // C code has caught it (one in a handler is not looked at)
  // After the handler: a `with` block has swallowed it, or `finally` returns.
  if (f.handlers <= handling.handlers) return std::strcmp(name, "RERAISE") != 0;
  if (f.handlers > handling.handlers + 1) return false;  // a `finally` block handles another one
  PyObject* const* top = f.objects + f.nlocalsplus + f.depth;
  if (std::strcmp(name, "CHECK_EXC_MATCH") == 0) return PyErr_GivenExceptionMatches(top[-2], top[-1]) != 0;
  return std::strcmp(name, "CHECK_EG_MATCH") == 0 ||
         (is_first && std::strcmp(name, "POP_TOP") == 0);  // a bare `except`
}

// Whether the call fails for this reason. Others that give a recording up say nothing of the function: a debugger follows
// the thread, a mode is active, the program has raised an exception of its own.
bool Session::IsRefused(Reason reason) const {
  if (reason == Reason::marked_size) return true;
  if (!store_->options().fullgraph) return false;
  return RowOf(reason).is_break || reason == Reason::escaping_object || reason == Reason::generator_dropped;
}

// The entry frame handles an exception, and an exit cannot rebuild it. Later recordings end before the exception.
void Session::GiveUpInHandler(const Break& given) {
  const Break reason = InWordsOfUser(given, recorder_->frames());
  store_->FindOrAdd(entry_code_, entry_offset_).ends_at_handlers = true;
  left_alone_ = &recorder_->base();
  const Position at = LineOf(*recorder_);
  ReleaseFrames(recorder_->frames());
  DropRecorder();
  Abort(reason, at, false);
}

void Session::End(const Break& given) {
  ErrScope keep(thread_.error);
  if (catching_ != nullptr) return GiveUpInHandler(given);
  const Break reason = InWordsOfUser(given, recorder_->frames());
  Position at = LineOf(*recorder_);
  const ReasonRow& row = RowOf(reason.reason);
  const int offset = recorder_->base_offset();
  const std::vector<FrameState*> frames = recorder_->frames();  // the end of the recording needs what is noted of them
  if (EntryPoint& entry = store_->FindOrAdd(entry_code_, entry_offset_); row.once && !entry.put_off) {
    entry.put_off = true;
    left_alone_ = &recorder_->base();
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
  std::shared_ptr<Segment> segment = row.is_break
                                         ? Finish(
                                               thread_, [&] { return recorder_->FinishBreak(reason, &why); }, &why)
                                         : nullptr;
  if (!row.is_break) why = reason;
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

// Where a recording may be looked at, and may end at any time.
void Session::Inspect(FrameState& f) {
  if (SelfChecking()) {
    std::string fault = recorder_->FaultIn(f);
    if (fault.empty()) fault = recorder_->FaultOfEnds();
    if (!fault.empty()) {
      Misbelief(fault);
      return Internal("self-check");
    }
  }
  try {
    if (recorder_->watches_ends()) recorder_->LetGo();
    MayEndRecording(store_->options().fullgraph);
  } catch (const Break& b) {
    End(b);
  } catch (const std::exception& e) {
    Internal(e.what());
  }
}

bool Session::Cross(FrameState& f, FrameNote& note) {
  if (!note.inlined || recorder_->is_base(f)) return false;
  ErrScope keep(thread_.error);
  try {
    recorder_->MarkInstruction(f, note);
    const bool crossed = recorder_->CrossModuleCall(f, note);
    MustBeClean(thread_);
    return crossed;
  } catch (const Break& b) {
    End(b);
  } catch (const std::exception& e) {
    Internal(e.what());
  }
  return false;
}

Tracer::Go Session::AtInstruction(FrameState& f) {
  FrameNote& note = NoteOf(f);
  if (note.landing != nullptr) return Arrive(f, note, std::move(*std::exchange(note.landing, nullptr)));
  // Our own exception comes where the program's could: what closes a handler (its POP_EXCEPT, the moves before it) is
  // not covered, and would leave the handled exception with the thread.
  ExceptionHandler covering;
  if (raised_ && note.handling && IsCaughtAt(f, note)) [[unlikely]] {
    RefuseFullGraph(raised_->first, raised_->second);
  }
  if (refuses() && !ClosesHandler(f) && (f.handlers == 0 || FindHandler(f.code, f.offset / 2, &covering))) {
    PyErr_SetObject(error_type_.get(), error_value_.get());
    return Go::kRaise;
  }
  if (recorder_ != nullptr) {
    OwnCode own(thread_);
    if (note.to_cross) {
      if (recorder_->MakeCells(f)) return Go::kReload;
      if (f.offset < StartOffset(f.code)) return Go::kOn;
      note.to_cross = false;
      f.observed = recorder_->observes_inner_frames();
      if (Cross(f, note)) return Go::kReload;
    }
    if (note.inlined && recorder_->is_base(f)) {
      if (catching_ != nullptr && (f.handlers > 0 || ClosesHandler(f))) {
        Inspect(f);
        return Go::kOn;
      }
      catching_ = nullptr;
      if (IsHandlerStep(f) && !store_->options().fullgraph) {
        // The entry frame handles an exception: its state is the frame's own business.
        recorder_->StartInstruction();
        End({Reason::exception_handling, ""});
        return Go::kOn;
      }
      if (!recorder_->TakeResult(f)) {
        GiveUp({Reason::frame_left, ""});
        return Go::kOn;
      }
      recorder_->StartInstruction();
    }
    if (note.inlined && !recorder_->is_base(f)) {
      // The segment may end here. The previous mark is stale: the operands it refers to have been popped.
      note.marked = false;
      if (!IsHandlerStep(f)) recorder_->MarkInstruction(f, note);
    }
    if (note.inlined) Inspect(f);
    return Go::kOn;
  }
  if (note.skip_one) {
    note.skip_one = false;
    note.at_entry = !IsLeftToPython(f.code);
    return Go::kOn;
  }
  note.awaited.clear();  // the call could not be made (no memory)
  if (note.wait_offset >= 0) {
    if (f.offset == note.wait_offset) {
      note.wait_offset = -1;
      note.at_entry = true;
    }
    return Go::kOn;
  }
  if (!note.at_entry || f.handlers > 0 || IsHandlerStep(f) || IsForgetting(f) || f.offset < StartOffset(f.code)) {
    return Go::kOn;
  }
  note.at_entry = false;
  return left_alone_ == nullptr ? EntryAt(f, note) : Go::kOn;
}

void Session::LogLimit(const EntryPoint& entry, const Position& at) {
  store_->Log({LogEntry::Kind::kAbort,
               at.function,
               "segment_limit",
               "this entry point has " + std::to_string(entry.size()) + " segments, the limit",
               "raise options={'segment_limit': n}, or make what differs a tensor",
               at,
               {}});
}

Tracer::Go Session::EntryAt(FrameState& f, FrameNote& note) {
  if (Strikes(Fault::kDrop)) store_->Reset();
  AllocZone zone;
  if (f.depth > 0) {
    if (PyObject* const pushed = f.objects[f.nlocalsplus + f.depth - 1]; pushed != nullptr) made_classes_.Meet(pushed);
  }
  EntryPoint* entry = store_->Find(f.code, f.offset);
  if (entry != nullptr) {
    const RootChain chain(f, *entry);
    const Roots& roots = chain.roots();
    const EntryPoint::Candidates candidates = entry->LookUp(roots);
    for (const std::shared_ptr<Segment>& segment : candidates) {
      if (segment->refuted) store_->StopSpeculating();
      if (!chain.Fits(*segment)) continue;
      const Verdict verdict = Fits(*segment, roots);
      if (verdict == Verdict::kError) return Go::kRaise;
      if (verdict != Verdict::kHit) continue;
      if (segment != candidates.front()) store_->MoveToFront(f.code, f.offset, *segment, roots);
      return Replay(f, note, segment);
    }
    entry = &store_->FindOrAdd(f.code, f.offset);  // the checks may have let other threads run
    if (entry->empty() && (entry->wait_offset >= 0 || entry->denials >= Store::kMaxDenials)) {
      note.wait_offset = entry->wait_offset;
      return Go::kOn;
    }
    bool is_full = static_cast<int>(entry->size()) >= store_->options().segment_limit;
    if (is_full && store_->options().answers_by_replay && !RecordingIsForbidden()) {
      LogLimit(*entry, PositionAt(f.code, f.offset));
      store_->Reset();
      entry = &store_->FindOrAdd(f.code, f.offset);
      is_full = false;
    }
    if (is_full) {
      if (!entry->limit_told) {
        entry->limit_told = true;
        LogLimit(*entry, PositionAt(f.code, f.offset));
      }
      if (!RecordingIsForbidden()) return Go::kOn;
    }
    if (!entry->empty()) {
      OwnCode own(thread_);
      ++store_->misses;
      const std::shared_ptr<Segment> latest = entry->latest();
      const MissReport miss = NoteMisses(*entry, chain, store_.get());
      store_->Log({LogEntry::Kind::kMiss, latest->ir.name, "", "", "", miss.line, miss});
      if (RecordingIsForbidden()) return Refuse(f, is_full ? "segment_limit" : "miss", latest->ir.name, miss);
    }
  }
  if (RecordingIsForbidden()) return Refuse(f, "not_recorded", "", {});
  Begin(f, note);
  return Go::kOn;
}

// Raises at the entry point: nothing has run from there. Blocks that the exception leaves run as with any other.
Tracer::Go Session::Refuse(const FrameState& f, const char* reason, const std::string& segment,
                           const MissReport& miss) {
  const Position at = PositionAt(f.code, f.offset);
  const std::string where = ToString(at), line = ToString(miss.line);
  Ref<> words = segment.empty()
                    ? Ref<>::New(Py_None)
                    : Ref<>::Steal(Py_BuildValue("{s:s,s:s,s:s,s:s,s:s,s:s}", "segment", segment.c_str(), "source",
                                                 miss.source.c_str(), "want", miss.want.c_str(), "got",
                                                 miss.got.c_str(), "why", miss.why.c_str(), "position", line.c_str()));
  Ref<> facts = words ? Ref<>::Steal(Py_BuildValue("{s:s,s:s,s:s,s:O}", "reason", reason, "position", where.c_str(),
                                                   "function", at.function.str().c_str(), "miss", words.get()))
                      : Ref<>();
  Fail(Errors().recording, WithFile("frametap.assert_no_recording: " + where + " would be recorded", at),
       std::move(facts));
  insists_ = false;
  PyErr_SetObject(error_type_.get(), error_value_.get());
  return Go::kRaise;
}

void Session::Begin(FrameState& f, FrameNote& note) {
  entry_code_ = f.code;
  entry_offset_ = f.offset;
  entry_is_below_ = note.caller != nullptr;
  went_on_ = false;
  began_ = std::chrono::steady_clock::now();
  OwnCode own(thread_);
  ErrScope keep(thread_.error);
  try {
    const WorldState world = WorldState::Now();
    if (!IsKnown(world)) return;
    if (world.modes_active) {
      // Every frame that runs meanwhile would say the same.
      const std::string active = ActiveModes();
      if (store_->FirstTold(active)) Abort({Reason::modes_active, active}, PositionAt(f.code, f.offset), false);
      return;
    }
    recorder_ = std::make_unique<Recorder>(*store_, f, note, world);
    // A backend that compiles gives what ops of such a block make, but not as inference tensors.
    const bool keeps_mode = store_->backend().calls_python();
    recorder_->ends_at_blocks = !keeps_mode || store_->FindOrAdd(entry_code_, entry_offset_).ends_at_blocks;
    MustBeClean(thread_);
  } catch (const Break& b) {
    note.inlined = false;
    f.traced = false;
    Abort(b, PositionAt(f.code, f.offset), true);
  } catch (const std::exception& e) {
    DropRecorder();
    note.inlined = false;
    f.traced = false;
    Abort({Reason::internal_error, e.what()}, PositionAt(f.code, f.offset), true);
  }
}

Tracer::Go Session::LeaveWith(FrameState& f, Landing landing) {
  ReplaceStack(f, std::move(landing.content.stack));
  f.result = landing.result.Release();
  if (landing.yields != nullptr) {
    for (size_t i = 0; i < landing.content.locals.size(); ++i) {
      const Ref<> old =
          Ref<>::Steal(std::exchange(f.objects[landing.yields->slots[i]], landing.content.locals[i].Release()));
    }
    f.offset = landing.yields->offset;
  }
  if (ascending_ != nullptr && last_to_leave_ == &f) ascending_.reset();
  return landing.yields != nullptr ? Go::kYield : Go::kReturn;
}

// Leaves as many frames as `leaving` says how, and does to the next one what `landing` says.
Tracer::Go Session::Ascend(FrameState& f, std::vector<Landing> leaving, Landing landing) {
  if (leaving.empty()) return Arrive(f, NoteOf(f), std::move(landing));
  FrameState* target = &f;
  ascending_ = std::make_unique<SignalsHeld>();
  for (Landing& one : leaving) {
    FrameState* left = std::exchange(target, NoteOf(*target).caller);
    NoteOf(*left).landing = std::make_unique<Landing>(std::move(one));
  }
  NoteOf(*target).landing = std::make_unique<Landing>(std::move(landing));
  last_to_leave_ = target;
  return Go::kReload;  // every frame is asked again
}

Tracer::Go Session::Arrive(FrameState& f, FrameNote& note, Landing landing) {
  if (landing.leaves) return LeaveWith(f, std::move(landing));
  ascending_.reset();
  Land(f, note, std::move(landing));
  return Go::kReload;
}

bool Session::IsAwaited(const FrameState& f) const {
  const FrameState* caller = NoteOf(f).caller;
  return caller != nullptr && IsAwaitedBy(NoteOf(*caller), f.code) && CallsStraight(*caller, f);
}

void Session::Land(FrameState& f, FrameNote& note, Landing landing) {
  const SnapshotFrame& frame = landing.segment->ir.exit.frames[landing.frame];
  const bool is_new = landing.frame > 0;
  if (is_new && f.function->func_closure != nullptr) {
    PyObject* closure = f.function->func_closure;
    const int first = f.nlocalsplus - static_cast<int>(PyTuple_GET_SIZE(closure));
    for (int i = first; i < f.nlocalsplus; ++i) {
      if (f.objects[i] == nullptr) f.objects[i] = Ref<>::New(PyTuple_GET_ITEM(closure, i - first)).Release();
    }
  }
  for (size_t i = 0; i < frame.slots.size(); ++i) {
    PyObject** slot = &f.objects[frame.slots[i]];
    if (!is_new && *slot != nullptr && KindOfSlot(f.code, frame.slots[i]) == SlotKind::kCell && PyCell_Check(*slot)) {
      PyCell_Set(*slot, landing.content.locals[i].get());
      continue;
    }
    PyObject* old = *slot;
    *slot = landing.content.locals[i].Release();
    Py_XDECREF(old);
  }
  ReplaceStack(f, std::move(landing.content.stack));
  f.offset = frame.offset;
  note.skip_one = true;
  note.awaited = std::move(landing.above);
}

Tracer::Go Session::Replay(FrameState& f, FrameNote& note, const std::shared_ptr<Segment>& shared) {
  Segment& segment = *shared;
  const Exit& exit = segment.ir.exit;
  const size_t up = segment.callers.size();
  if (exit.frames.size() > 1 && !MayCall(static_cast<int>(exit.frames.size()))) return Go::kOn;
  // A frame that is left keeps the variables that it has now. If they can be observed, it continues by itself.
  FrameState* ending = &f;
  for (size_t i = exit.kind == Exit::Kind::kReturn ? up + 1 : up; i > 0; --i, ending = NoteOf(*ending).caller) {
    if (IsHeldByOthers(*ending)) return Go::kOn;
  }
  Reifier reifier(segment);
  if (PyErr_Occurred() != nullptr) return Go::kRaise;
  std::vector<c10::IValue> outputs;
  if (const Ran ran = RunGraph(segment, &outputs); ran != Ran::kThrough) {
    if (ran == Ran::kRaised) return Go::kRaise;
    const bool is_fault = ran == Ran::kFault || ran == Ran::kBroken;
    if (is_fault && !TellFault(*store_, segment, ran == Ran::kFault)) return Go::kRaise;
    if (ran == Ran::kRefused) store_->LeftAlone(Reason::cannot_take_back, f.code, f.offset);
    if (ran == Ran::kOpRaised && suspected_frame_ == nullptr) {
      suspicion_.Take(shared);
      if (suspicion_.is_held()) suspected_frame_ = &f;
    }
    // Nothing has happened yet: plain Python raises the same exception, at the right place.
    PyErr_Clear();
    note.wait_offset = -1;
    return Go::kOn;
  }
  reifier.set_outputs(std::move(outputs));
  store_->Hit(segment);
  if (!reifier.Prepare()) return Go::kRaise;
  std::vector<Landing> leaving;
  for (FrameState* left = &f; leaving.size() < up; left = NoteOf(*left).caller) {
    Landing& landing = leaving.emplace_back(Returning(Ref<>::New(Py_None)));
    if (left->is_generator) landing.yields = reifier.TakeYield(left->raw, &landing.content);
    landing.segment = shared;
  }
  if (exit.kind == Exit::Kind::kReturn) {
    Ref<> result = reifier.Make(exit.result);
    if (!result || !reifier.Commit()) return Go::kRaise;
    return Ascend(f, std::move(leaving), Returning(std::move(result)));
  }
  Landing outermost;
  for (size_t i = 0; i < exit.frames.size(); ++i) {
    Landing& landing = i == 0 ? outermost : outermost.above.emplace_back();
    landing.segment = shared;
    landing.frame = i;
    if (!reifier.MakeContent(exit.frames[i], &landing.content)) return Go::kRaise;
  }
  if (!reifier.Commit()) return Go::kRaise;
  std::reverse(outermost.above.begin(), outermost.above.end());
  return Ascend(f, std::move(leaving), std::move(outermost));
}

void Session::BeforeInRecording(FrameState& f, FrameNote& note, const Event& event) {
  note.in_event = true;
  note.opaque_operation = false;
  note.own_effect = false;
  recorder_->ClearPending();
  OwnCode own(thread_);
  ErrScope keep(thread_.error);
  const size_t effects = recorder_->effect_count();
  try {
    recorder_->MarkInstruction(f, note);
    // The instruction has replaced its operands before: `f(*items)` has a tuple now. The reads for that count.
    if (event.op == Op::kCallEx && recorder_->is_base(f)) recorder_->StartInstruction();
    if (event.op == Op::kYield && recorder_->is_base(f) && CallerToGoOnIn(f) == nullptr) {
      throw Break{Reason::generator_or_async, ""};
    }
    if (!made_classes_.empty()) [[unlikely]] {
      PyTypeObject* const used = made_classes_.UsedBy(event);
      if (used != nullptr) throw Break{Reason::class_statement, "each call makes another " + TypeName(used)};
    }
    recorder_->Before(f, note, event);
    MustBeClean(thread_);
    if (SelfChecking()) [[unlikely]] {
      const std::string fault = recorder_->FaultOfAnswer(f, event);
      if (!fault.empty()) {
        Misbelief(fault);
        return Internal("self-check");
      }
    }
    note.own_effect = recorder_->effect_count() != effects;
    if (recorder_->may_be_undone() && recorder_->aten().pending) throw Break(*recorder_->aten().pending);
    MayEndRecording(store_->options().fullgraph);
  } catch (const Break& b) {
    End(b);
  } catch (const std::exception& e) {
    Internal(e.what());
  }
}

bool Session::Before(FrameState& f, const Event& event) {
  FrameNote& note = NoteOf(f);
  if (recorder_ == nullptr || !note.inlined) return true;
  BeforeInRecording(f, note, event);
  if (recorder_ != nullptr || !refuses()) return true;
  PyErr_SetObject(error_type_.get(), error_value_.get());
  return false;
}

Shadow Session::After(FrameState& f, const Event& event, PyObject* result) {
  FrameNote& note = NoteOf(f);
  const bool begun = std::exchange(note.in_event, false);
  if (recorder_ == nullptr || !note.inlined) return Shadow();
  // The recording has come from the frame below meanwhile: the operation was reported by another event, or not at all.
  if (recorder_->is_base(f) && recorder_->awaited_.is_awaited) return Shadow();
  OwnCode own(thread_);
  ErrScope keep(thread_.error);
  try {
    recorder_->aten().ExpectNothing();
    if (recorder_->aten().pending) throw Break(*recorder_->aten().pending);
    if (!begun) recorder_->BeginWithoutBefore(f, note);
    Shadow shadow = recorder_->After(f, note, event, result);
    MustBeClean(thread_);
    if (SelfChecking() && recorder_->repeated_calls() != nullptr && !recorder_->repeated_calls()->fault().empty())
        [[unlikely]] {
      Misbelief(recorder_->repeated_calls()->fault());
      Internal("self-check");
      return Shadow();
    }
    MayEndRecording(store_->options().fullgraph);
    return shadow;
  } catch (const Break& b) {
    End(b);
  } catch (const std::exception& e) {
    Internal(e.what());
  }
  return Shadow();
}

void Session::Raised(FrameState& f, const Event& event) {
  FrameNote& note = NoteOf(f);
  const bool begun = std::exchange(note.in_event, false);
  if (recorder_ == nullptr || !note.inlined) return;
  OwnCode own(thread_);
  ErrScope keep(thread_.error);
  recorder_->aten().ExpectNothing();
  if (!begun) recorder_->BeginWithoutBefore(f, note);
  recorder_->Raised(f, note, event);
  // The segment ends before the instruction that raises; whether anybody catches it is the frame's own business.
  if (store_->options().fullgraph) {
    if (!recorder_->aten().pending) return;
    if (recorder_->aten().has_refused) return End(Break(*recorder_->aten().pending));
    return HandleInPlainPython(*recorder_->aten().pending, recorder_->frames().size());
  }
  if (recorder_->aten().pending) return End(Break(*recorder_->aten().pending));
  if (!recorder_->is_base(f) || catching_ != nullptr) return;
  ExceptionHandler handler;
  if (FindHandler(f.code, f.offset / 2, &handler) && !store_->FindOrAdd(entry_code_, entry_offset_).ends_at_handlers) {
    catching_ = &f;
    return;
  }
  End({Reason::exception_handling, ""});
}

}  // namespace frametap
