#include "frame_eval/record/recorder.h"

#include <algorithm>
#include <cstring>

#include "frame_eval/checks/self_checking.h"
#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/object_ends.h"
#include "frame_eval/record/semantics/generators.h"
#include "frame_eval/record/shadow_check.h"
#include "frame_eval/record/trace/array_nodes.h"
#include "ir/segment/frame_slot.h"

namespace frametap {

// Gives the base frame and the lowest `depth` slots of its stack their shadows. `left`: the frame that has just ended, or null.
static void RootShadows(Trace& trace, FrameState& f, int depth, const FrameState* left = nullptr) {
  // A value that is not read any more may be missing at a replay: a snapshot leaves it out.
  const std::vector<bool> live = LiveLocals(f.code, f.offset);
  const auto count_in = [](const FrameState& frame, PyObject* object) {
    return std::count(frame.objects, frame.objects + frame.nlocalsplus + frame.depth, object);
  };
  // Only the two frames hold it, and perhaps the recorder, which has met it in a frame above. The arguments of a call
  // are on the stack of the caller until it is over.
  const auto ends_here = [&](PyObject* object, bool if_large) {
    constexpr Py_ssize_t kFew = 16;
    if (Py_REFCNT(object) > kFew) return false;
    Py_ssize_t others = Py_REFCNT(object) - count_in(f, object);
    if (left != nullptr) others -= count_in(*left, object);
    if (others > 0 && trace.objects.Find(object) == nullptr) return false;
    return ReachesFinalizer(object, if_large) &&
           (others <= 0 || others <= CountOf(trace, object, CountInEffects(trace, object)));
  };
  for (int i = 0; i < f.nlocalsplus; ++i) {
    f.shadows[i] = Shadow();
    PyObject* object = f.objects[i];
    if (object == nullptr || KindOfSlot(f.code, i) != SlotKind::kLocal) continue;
    const bool ends = ends_here(object, Py_REFCNT(object) == 1);
    if (!live[static_cast<size_t>(i)] && !ends) {
      f.shadows[i].kind = Shadow::Kind::kUnread;
      trace.frames.bound_at_entry.emplace_back(i, SourceId());
    } else {
      const SourceId id =
          trace.guards.Local(FrameSlot(trace.frames.level(), i), PyUnicode_AsUTF8(SlotName(f.code, i)), object);
      f.shadows[i] = FromSource(trace, id, object, false);
      trace.frames.bound_at_entry.emplace_back(i, id);
    }
    if (ends) NoteEnd(trace, SourceOf(trace, object));
  }
  for (int i = 0; i < depth; ++i) {
    PyObject* object = f.objects[f.nlocalsplus + i];
    f.shadows[f.nlocalsplus + i] = Shadow();
    if (object == nullptr) continue;
    // An iterator may hold a whole model. Each instruction would look at it if it were watched.
    const bool ends = ends_here(object, false);
    f.shadows[f.nlocalsplus + i] =
        FromSource(trace, trace.guards.Stack(FrameSlot(trace.frames.level(), i), object), object, false);
    if (ends) NoteEnd(trace, SourceOf(trace, object));
  }
}

Recorder::Recorder(SegmentCache& store, FrameState& base, FrameNote& note, const WorldState& world)
    : trace_(store, base, world) {
  note.Join();
  base.traced = true;
  trace_.guards.ReadsNamesOf(base.code);
  RootShadows(trace_, base, base.depth);
  if (SelfChecking()) KeepEntry(trace_, base);
  StartInstruction();
  if (store.options().dynamic != Dynamic::kNever) {
    trace_.guards.HeedMarks([this](const std::string& contradiction) {
      if (!trace_.aten.pending) trace_.aten.pending = Break{Reason::marked_size, contradiction};
    });
  }
  Effects& effects = trace_.effects;
  if (store.options().fullgraph || store.options().answers_by_replay || trace_.entry.has_marks) {
    effects.undo = std::make_unique<UndoLog>();
  }
  if (store.backend().keeps_first_values() || store.options().answers_by_replay) {
    effects.first_values = std::make_unique<FirstValues>();
  }
  if (effects.undo != nullptr || effects.first_values != nullptr) {
    trace_.aten.before_write = [&effects](const at::Tensor& tensor) {
      if (effects.undo != nullptr) effects.undo->Before(tensor);
      if (effects.first_values != nullptr) effects.first_values->Before(tensor);
    };
    trace_.aten.refuses = store.options().fullgraph;
  }
  trace_.aten.Start();
}

std::unique_ptr<UndoLog> Recorder::TakeUndo() {
  trace_.aten.Stop();
  if (trace_.effects.undo) trace_.effects.undo->NoteAutocastNesting(trace_.thread.autocast_nesting);
  return std::move(trace_.effects.undo);
}

// ---- instructions ---------------------------------------------------------------------------------------------------

void Recorder::SetMark(FrameState& f, FrameNote& note) {
  Mark& mark = note.mark;
  mark.aten = trace_.aten.mark();
  mark.guards = trace_.guards.mark();
  mark.effects = trace_.effects.Now();
  mark.decisions = trace_.decisions.size();
  mark.offset = f.offset;
  mark.depth = f.depth;
  mark.thread = trace_.thread.Now();
  mark.epoch = ++trace_.epoch;
  note.marked = true;
}

void Recorder::StartInstruction() { SetMark(trace_.frames.base(), NoteOf(trace_.frames.base())); }

// Nothing is recorded between the start of an instruction and its first event. One that has several leaves its operands
// such that it may as well begin with a later one.
void Recorder::MarkInstruction(FrameState& f, FrameNote& note) {
  if (!note.rebuildable) return;
  note.marked = f.handlers == 0;
  if (note.marked) SetMark(f, note);
}

void Recorder::BeginWithoutBefore(FrameState& f, FrameNote& note) {
  MarkInstruction(f, note);
  note.op.ForgetOperands();
}

int Recorder::base_offset() const { return NoteOf(trace_.frames.base()).mark.offset; }

void Recorder::ContinueIn(FrameState& caller, FrameNote& note, const FrameState& left, FrameEnd end, PyObject* result,
                          Shadow shadow) {
  const Position at = PositionAt(caller.code, caller.offset);
  trace_.frames.inlined.assign(1, &caller);
  trace_.sites.outside.reset();
  if (trace_.repeated_calls) trace_.repeated_calls->Forget();
  for (PyObject* object : std::exchange(trace_.lifetimes.of_base_frame, {})) Watch(trace_, object);
  trace_.frames.callers.push_back(
      {Ref<>::New(reinterpret_cast<PyObject*>(caller.code)), Ref<>::New(caller.function->func_globals), caller.offset});
  trace_.entry.text += " in " + ToString(at);
  trace_.frames.bound_at_entry.clear();
  trace_.frames.ClearPending();
  note.Join();
  caller.traced = true;
  trace_.guards.ReadsNamesOf(caller.code);
  if (!left.is_generator) {
    const int below = CallSiteOf(caller).below;
    RootShadows(trace_, caller, below, &left);
    trace_.frames.awaited = {true, result, shadow, below, InstructionAt(caller.code, caller.offset).next};
  } else {
    RootShadows(trace_, caller, caller.depth);
    const TakeSite site = TakeSiteOf(caller);
    if (end == FrameEnd::kYielded) {
      LeaveGenerator(trace_, left, site.iterator);
      Specialize(trace_, result, shadow);
      trace_.frames.awaited = {true, result, AdoptResult(trace_, result), caller.depth, site.next};
    } else {
      trace_.frames.awaited = {true, nullptr, Shadow(), caller.depth - 1, site.end};
    }
  }
  if (SelfChecking()) KeepEntry(trace_, caller);
}

}  // namespace frametap
