#include "frame_eval/session/session.h"

#include <algorithm>
#include <utility>

#include "frame_eval/checks/self_checking.h"
#include "frame_eval/cpython/exception_table.h"
#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/cpython/written_fields.h"
#include "frame_eval/record/fast_paths/module_calls.h"
#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/frames.h"
#include "frame_eval/record/objects/object_ends.h"
#include "frame_eval/record/shadow_check.h"
#include "frame_eval/record/trace/checkpoint_nodes.h"
#include "frame_eval/record/trace/kernel_nodes.h"
#include "frame_eval/session/session_parts.h"
#include "guards/kinds/world.h"
#include "guards/objects/value.h"

namespace frametap {
namespace {

// With the stacks (StackIdentity) that they live on: a session of another greenlet is not in memory.
thread_local constinit std::vector<std::pair<const void*, Session*>> sessions;

// The last of them; it calls the others.
FrameRestore TakeOutermost(std::vector<FrameRestore> restores) {
  FrameRestore restore = std::move(restores.back());
  restores.pop_back();
  restore.above = std::move(restores);
  return restore;
}

// Whether the instruction begins or ends the handling of an exception.
bool IsHandlerStep(const FrameState& f) {
  const InstructionRole role = InstructionAt(f.code, f.offset).role;
  return role == InstructionRole::kBeginsHandler || role == InstructionRole::kEndsHandler;
}

// Whether the instruction begins or closes a handler. Where blocks are nested, that code is covered by the outer block: an
// exception there would leave the handled one with the thread.
bool ClosesHandler(const FrameState& f) {
  const InstructionInfo at = InstructionAt(f.code, f.offset);
  return IsHandlerStep(f) || at.role == InstructionRole::kRethrows ||
         InstructionAt(f.code, at.next).role == InstructionRole::kEndsHandler;
}

// The code after a handler, `e = None; del e`, belongs to it: without it the exception, its traceback and the frame
// hold each other.
bool IsForgetting(const FrameState& f) {
  InstructionInfo at = InstructionAt(f.code, f.offset);
  if (at.role == InstructionRole::kLoadsConstant) at = InstructionAt(f.code, at.next);
  if (at.role == InstructionRole::kStoresLocal) at = InstructionAt(f.code, at.next);
  return at.role == InstructionRole::kDeletesLocal;
}

}  // namespace

Session::Session(std::shared_ptr<SegmentCache> store, PyObject* function)
    : store_(std::move(store)),
      library_(function),
      publisher_(*store_, refusal_),
      stack_(StackIdentity(PyThreadState_Get())) {
  sessions.emplace_back(stack_, this);
}

Session::~Session() {
  StopRecording({});
  sessions.erase(std::find(sessions.begin(), sessions.end(), std::pair<const void*, Session*>(stack_, this)));
}

bool Session::IsRecording() {
  if (sessions.empty()) return false;
  const void* stack = StackIdentity(PyThreadState_Get());
  for (auto it = sessions.rbegin(); it != sessions.rend(); ++it) {
    if (it->first == stack) return it->second->is_recording();
  }
  return false;
}

PyObject* Session::Run(PyObject* function, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  PyObject* result;
  called_ = function;
  {
    HookScope scope(this);
    result = PyObject_Vectorcall(function, args, nargsf, kwnames);
  }
  library_.TellOfSilence(*store_);
  if (raised_ && result != nullptr) RefuseEndOfGraph(raised_->reason, raised_->at);  // C code has caught it
  if (refusal_.is_set() && undo_ != nullptr) {
    RefusedCall::DropPending();
    Py_CLEAR(result);
    HookPause frames;
    undo_->TakeBack();
  }
  if (refusal_.is_set()) {
    // Even if the program caught it on the way. (If it did not, the traceback shows the way.)
    Py_XDECREF(result);
    RefusedCall::DropPending();
    refusal_.Raise();
    return nullptr;
  }
  return result;
}

// Python code below an op is the op's own. The recording continues in it (kernel_nodes.h), or the op ends the graph.
bool Session::WantsBelowOp(const FrameFacts& frame) {
  if (!is_recording()) return refusal_.insists();
  if (AwaitsCheckpointed(trace(), frame.code)) return true;
  if (MayFollowKernel(trace())) {
    if (!RunsForDispatcher(frame)) {
      if (!BelongsToImport(frame.code)) return true;
      trace().aten.pending = Break{Reason::done_once, "a kernel in Python imports a module"};
    }
  } else {
    trace().aten.MeetFrameBelow();
  }
  WatchAll(trace());
  if (trace().aten.refuses && trace().aten.pending) {
    OwnCode own(thread_);
    End(Break(*trace().aten.pending));
  }
  return refusal_.insists();
}

bool Session::Wants(const FrameFacts& frame) {
  if (refusal_.insists()) return true;  // N6
  if (IsInsideOp()) return WantsBelowOp(frame);
  if (is_recording()) return true;
  PyCodeObject* const code = frame.code;
  if (innermost_ != nullptr && IsAwaitedBy(NoteOf(*innermost_), code)) return true;
  if (is_left_alone()) return false;
  if (frame.is_generator || frame.resumed || (code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)))
    return false;
  if (library_.LeavesWhole(code, *store_)) return true;    // to leave alone what it calls
  if ((code->co_flags & CO_OPTIMIZED) == 0) return false;  // the body of a class
  if (library_.LeavesToPython(code)) {
    library_.NoteLeft(code);
    return false;
  }
  EntryPoint* entry = store_->Find(code, StartOffset(code));
  if (entry == nullptr || entry->denials < SegmentCache::kMaxDenials || !entry->empty()) return true;
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
    note->entry.restore = std::make_unique<FrameRestore>(TakeOutermost(std::move(NoteOf(*note->caller).entry.awaited)));
    f.observed = true;
    return;
  }
  if (refusal_.insists()) {
    f.observed = true;
    return;
  }
  if (!is_recording()) {
    if (!is_left_alone() && library_.LeavesWhole(f.code, *store_)) {
      state_ = LeftAlone{&f};
      return;
    }
    f.observed = !f.is_generator && !is_left_alone();
    note->entry.at_entry = f.observed;
    return;
  }
  OwnCode own(thread_);
  if (IsLeftByPrediction(*note) && !IsFinaliser(trace(), f)) [[unlikely]] {
    f.observed = true;
    return;
  }
  constexpr int kOfOwnCode = 1;
  const bool is_below = aten::depth > kOfOwnCode;
  if (!recorder().expects_frame(f)) {
    if (is_below) trace().aten.MeetFrameBelow();
    MeetUnrecorded(trace(), f);
    note->suspended.emplace();
    return;
  }
  // A generator that is given up ends with its blocks.
  if (f.is_generator && PyBytes_GET_SIZE(f.code->co_exceptiontable) > 0 && GiveUpPrediction()) [[unlikely]] {
    f.observed = true;
    return;
  }
  if (f.code == OwnExecutable() || PlansEinsum(f.code)) {
    f.code == OwnExecutable() ? End({Reason::own_executable, "a quantized model"}, &f)
                              : End({Reason::unknown_callable, "opt_einsum.contract_path"}, &f);
    f.observed = IsLeftByPrediction(*note);
    return;
  }
  if (AwaitsCheckpointed(trace(), f.code)) {
    note->lifted = std::exchange(aten::depth, kOfOwnCode) - kOfOwnCode;
  } else if (is_below) {
    note->lifted = std::exchange(aten::depth, kOfOwnCode) - kOfOwnCode;
    note->is_kernel = true;
    SeeOpsOfKernel(true);
  }
  Step([&] { recorder().EnterInlined(f, *note); });
  if (IsLeftByPrediction(*note)) [[unlikely]]
    f.observed = true;
}

void Session::Leave(FrameState& f, FrameEnd end, PyObject* value, Shadow shadow) {
  std::unique_ptr<FrameNote> note(&NoteOf(f));
  innermost_ = note->caller;
  if (suspected_frame_ == &f) [[unlikely]]
    ConfirmSuspicion(end == FrameEnd::kReturned);
  if (is_recording() && note->inlined) {
    OwnCode own(thread_);
    ErrScope keep(thread_.error);
    if (trace().frames.is_base(f)) {
      EndWithFrame(f, end, value, shadow);
    } else {
      Step([&] { recorder().LeaveInlined(f, *note, end, value, shadow); });
    }
  }
  aten::depth += note->lifted;
  if (note->is_kernel) SeeOpsOfKernel(false);
  if (const auto* alone = std::get_if<LeftAlone>(&state_); alone != nullptr && alone->until == &f) state_ = Waiting{};
  if (raised_ && raised_->in == &f) {
    raised_->in = nullptr;
    if (end == FrameEnd::kRaised && !refusal_.is_set()) {  // the exception is the program's result
      raised_.reset();
      undo_.reset();
    }
  }
  f.tracer_data = nullptr;
}

// The frame that ran in plain Python as an op of a replay had raised is left: by returning, the op did not raise.
void Session::ConfirmSuspicion(bool returned) {
  suspected_frame_ = nullptr;
  if (!returned) return suspicion_.Drop();
  const ErrScope keep(thread_.error);
  if (!suspicion_.Confirm(*store_)) refusal_.TakePending();
}

// Where a recording may be looked at, and may end at any time.
void Session::Inspect(FrameState& f) {
  Step([&] {
    if (SelfChecking()) {
      const std::string fault = FaultIn(trace(), f);
      MustFit(fault.empty() ? FaultOfEnds(trace()) : fault);
    }
    if (trace().lifetimes.watches()) {
      LetGo(trace());
      MeetReturn(trace(), f);
    }
    MayEndRecording(*store_);
  });
}

bool Session::Cross(FrameState& f, FrameNote& note) {
  if (!note.inlined || trace().frames.is_base(f)) return false;
  ErrScope keep(thread_.error);
  bool is_crossed = false;
  const bool is_done = Step([&] {
    recorder().MarkInstruction(f, note);
    is_crossed = CrossModuleCall(trace(), f, note);
  });
  return is_done && is_crossed;
}

Tracer::Go Session::AtInstruction(FrameState& f) {
  FrameNote& note = NoteOf(f);
  if (note.entry.restore != nullptr) return restorer_.Resume(f, std::move(*std::exchange(note.entry.restore, nullptr)));
  // Our own exception comes where the program's could: what closes a handler (its POP_EXCEPT, the moves before it) is
  // not covered, and would leave the handled exception with the thread.
  ExceptionHandler covering;
  if (raised_ && note.entry.handling && IsCaughtAt(f, &*note.entry.handling)) [[unlikely]] {
    RefuseEndOfGraph(raised_->reason, raised_->at);
  }
  if (refusal_.insists() && !ClosesHandler(f) && (f.handlers == 0 || FindHandler(f.code, f.offset / 2, &covering))) {
    refusal_.Raise();
    return Go::kRaise;
  }
  if (IsLeftByPrediction(note)) [[unlikely]] {
    if (ClosesHandler(f) || (f.handlers > 0 && !FindHandler(f.code, f.offset / 2, &covering))) return Go::kOn;
    RaiseGivenUp();
    return Go::kRaise;
  }
  if (is_recording()) {
    OwnCode own(thread_);
    if (note.to_cross) {
      if (MakeCells(trace(), f)) return Go::kReload;
      if (f.offset < StartOffset(f.code)) return Go::kOn;
      note.to_cross = false;
      f.observed = recorder().observes_inner_frames();
      if (Cross(f, note)) return Go::kReload;
    }
    if (note.inlined && trace().frames.is_base(f)) {
      if (is_catching() && (f.handlers > 0 || ClosesHandler(f))) {
        Inspect(f);
        return Go::kOn;
      }
      recording()->is_catching = false;
      if (IsHandlerStep(f) && !store_->options().fullgraph) {
        // The entry frame handles an exception: its state is the frame's own business.
        recorder().StartInstruction();
        End({Reason::exception_handling, ""});
        return Go::kOn;
      }
      if (!recorder().TakeResult(f)) {
        GiveUp({Reason::frame_left, ""});
        return Go::kOn;
      }
      recorder().StartInstruction();
    }
    if (note.inlined && !trace().frames.is_base(f)) {
      // The segment may end here. The previous mark is stale: the operands it refers to have been popped.
      note.marked = false;
      if (!IsHandlerStep(f)) recorder().MarkInstruction(f, note);
    }
    if (note.inlined) Inspect(f);
    if (IsLeftByPrediction(note)) [[unlikely]] {
      RaiseGivenUp();
      return Go::kRaise;
    }
    return Go::kOn;
  }
  if (note.entry.skip_one) {
    note.entry.skip_one = false;
    note.entry.at_entry = !library_.LeavesToPython(f.code);
    return Go::kOn;
  }
  note.entry.awaited.clear();  // the call could not be made (no memory)
  if (note.entry.wait_offset >= 0) {
    if (f.offset == note.entry.wait_offset) {
      note.entry.wait_offset = -1;
      note.entry.at_entry = true;
    }
    return Go::kOn;
  }
  if (!note.entry.at_entry || f.handlers > 0 || IsHandlerStep(f) || IsForgetting(f) || f.offset < StartOffset(f.code)) {
    return Go::kOn;
  }
  note.entry.at_entry = false;
  return !is_left_alone() ? EntryAt(f, note) : Go::kOn;
}

void Session::Begin(FrameState& f, FrameNote& note) {
  publisher_.Begin(f.code, f.offset, note.caller != nullptr);
  OwnCode own(thread_);
  ErrScope keep(thread_.error);
  const auto begin = [&] {
    if (thread_.is_main && !CanHoldSignals()) {
      const std::string cause = "signals cannot be held back in this build of Python";
      if (store_->FirstTold(cause))
        publisher_.Abort({Reason::internal_error, cause}, PositionAt(f.code, f.offset), false);
      return;
    }
    const WorldState world = WorldState::Now();
    if (!IsKnown(world)) return;
    if (world.modes_active) {
      // Every frame that runs meanwhile would say the same.
      const std::string active = ActiveModes();
      if (store_->FirstTold(active))
        publisher_.Abort({Reason::modes_active, active}, PositionAt(f.code, f.offset), false);
      return;
    }
    state_ = Recording{std::make_unique<Recorder>(*store_, f, note, world)};
    // A backend that compiles gives what ops of such a block make, but not as inference tensors.
    const bool keeps_mode = store_->backend().calls_python();
    trace().ends_at_blocks = !keeps_mode || publisher_.entry_point().ends_at_blocks;
  };
  Guarded(begin, [&](const Break& b, bool) {
    StopRecording({});
    note.inlined = false;
    f.traced = false;
    publisher_.Abort(b, PositionAt(f.code, f.offset), true);
  });
}

void Session::BeforeInRecording(FrameState& f, FrameNote& note, const Event& event) {
  note.op.in_event = true;
  note.op.opaque_operation = false;
  note.op.own_effect = false;
  trace().frames.ClearPending();
  OwnCode own(thread_);
  ErrScope keep(thread_.error);
  const size_t effects = trace().effects.pending.size();
  Step([&] {
    recorder().MarkInstruction(f, note);
    // The instruction has replaced its operands before: `f(*items)` has a tuple now. The reads for that count.
    if (event.op == Op::kCallEx && trace().frames.is_base(f)) recorder().StartInstruction();
    if (event.op == Op::kYield && trace().frames.is_base(f) && CallerToGoOnIn(f) == nullptr) {
      throw Break{Reason::generator_or_async, ""};
    }
    if (!made_classes_.empty()) [[unlikely]] {
      PyTypeObject* const used = made_classes_.UsedBy(event);
      if (used != nullptr) throw Break{Reason::class_statement, "each call makes another " + TypeName(used)};
    }
    const bool is_followed = PredictedIn(trace()) != nullptr;
    recorder().Before(f, note, event);
    if (is_followed) [[unlikely]]
      MeetInPrediction(trace(), note, event);
    if (SelfChecking()) [[unlikely]]
      MustFit(FaultOfAnswer(f, event));
    note.op.own_effect = trace().effects.pending.size() != effects;
    if (recorder().may_be_undone() && trace().aten.pending) throw Break(*trace().aten.pending);
    MayEndRecording(*store_);
  });
}

bool Session::Before(FrameState& f, const Event& event) {
  FrameNote& note = NoteOf(f);
  if (!is_recording() || !note.inlined) return true;
  BeforeInRecording(f, note, event);
  if (is_recording() && PredictedIn(trace()) != nullptr) [[unlikely]] {
    if (PredictedIn(trace())->stage == PredictedCall::Stage::kWanted) return Predict(note, event);
    if (IsLeftByPrediction(note)) {
      RaiseGivenUp();
      return false;
    }
  }
  if (is_recording() || !refusal_.insists()) return true;
  refusal_.Raise();
  return false;
}

Shadow Session::After(FrameState& f, const Event& event, PyObject* result) {
  FrameNote& note = NoteOf(f);
  const bool begun = std::exchange(note.op.in_event, false);
  if (!is_recording() || !note.inlined) return Shadow();
  // The recording has come from the frame below meanwhile: the operation was reported by another event, or not at all.
  if (trace().frames.is_base(f) && trace().frames.awaited.is_awaited) return Shadow();
  OwnCode own(thread_);
  ErrScope keep(thread_.error);
  Shadow shadow;
  const bool is_done = Step([&] {
    trace().aten.ExpectNothing();
    if (trace().aten.pending) throw Break(*trace().aten.pending);
    if (!begun) recorder().BeginWithoutBefore(f, note);
    shadow = recorder().After(f, note, event, result);
    if (SelfChecking() && trace().repeated_calls != nullptr) [[unlikely]]
      MustFit(trace().repeated_calls->fault());
    MayEndRecording(*store_);
  });
  return is_done ? shadow : Shadow();
}

void Session::Raised(FrameState& f, const Event& event) {
  FrameNote& note = NoteOf(f);
  const bool begun = std::exchange(note.op.in_event, false);
  if (!is_recording() || !note.inlined) return;
  OwnCode own(thread_);
  ErrScope keep(thread_.error);
  trace().aten.ExpectNothing();
  if (!begun) recorder().BeginWithoutBefore(f, note);
  recorder().Raised(f, note, event);
  if (PredictedIn(trace()) != nullptr) [[unlikely]] {
    if (is_predicting()) {
      if (trace().aten.pending) GiveUpPrediction();
      return;
    }
    trace().predictions->call.reset();  // the program's own call
  }
  // The segment ends before the instruction that raises; whether anybody catches it is the frame's own business.
  if (store_->options().fullgraph) {
    if (!trace().aten.pending) return;
    if (trace().aten.has_refused) return End(Break(*trace().aten.pending));
    return HandleInPlainPython(*trace().aten.pending, trace().frames.inlined.size());
  }
  if (trace().aten.pending) return End(Break(*trace().aten.pending));
  if (!trace().frames.is_base(f) || is_catching()) return;
  ExceptionHandler handler;
  if (FindHandler(f.code, f.offset / 2, &handler) && !publisher_.entry_point().ends_at_handlers) {
    recording()->is_catching = true;
    return;
  }
  End({Reason::exception_handling, ""});
}

}  // namespace frametap
