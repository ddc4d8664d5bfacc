#include "frame_eval/record/semantics/generators.h"

#include <algorithm>

#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/record/finish/describe.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/object_ends.h"
#include "guards/cpython/suspended_frame.h"
#include "ir/segment/frame_slot.h"

namespace frametap {
namespace {

const bool told = (read_suspended_frame = SuspendedFrameOf, true);

}  // namespace

bool IsOutsideGenerator(const Trace& trace, PyObject* object) {
  return std::find(trace.iteration.outside_generators.begin(), trace.iteration.outside_generators.end(), object) !=
         trace.iteration.outside_generators.end();
}

// Before a loop takes from it.
void MeetGenerator(Trace& trace, PyObject* generator) {
  if (IsOutsideGenerator(trace, generator)) return;
  const SourceId source = SourceOf(trace, generator);
  SuspendedFrame frame;
  // Under fullgraph it could not be taken back.
  if (!source.valid() || trace.effects.undo != nullptr || !ReadSuspended(generator, &frame) ||
      !IsPlainGenerator(frame.code)) {
    throw Break{Reason::foreign_generator, ""};
  }
  GuardTypeOrIdentity(trace, generator);
  trace.guards.Add(GuardKind::kSuspended, source, trace.frames.Here());
  auto* function = reinterpret_cast<PyObject*>(frame.function);
  FromSource(trace, trace.guards.Child(source, Accessor::kFunc, 0, nullptr, function), function, false);
  SavedGenerator saved{Ref<>::New(generator), {}, Ref<>::New(function), false, trace.epoch};
  const std::vector<bool> live = LiveLocals(frame.code, frame.offset);
  for (int i = 0; i < frame.nlocalsplus + frame.depth; ++i) {
    PyObject* object = frame.objects[i];
    Shadow& shadow = saved.shadows.emplace_back();
    const bool is_free = i < frame.nlocalsplus && KindOfSlot(frame.code, i) == SlotKind::kFree;
    if (object == nullptr || is_free) continue;
    const bool ends_here = Py_REFCNT(object) == 1 && ReachesFinalizer(object);
    if (i < frame.nlocalsplus && !live[static_cast<size_t>(i)] && !ends_here) {
      shadow.kind = Shadow::Kind::kUnread;
      continue;
    }
    shadow = FromSource(trace, trace.guards.Child(source, Accessor::kFrame, i, nullptr, object), object, false);
    if (ends_here) NoteEnd(trace, SourceOf(trace, object));
  }
  trace.iteration.generators[FrameOfGenerator(generator)] = std::move(saved);
  trace.iteration.outside_generators.push_back(generator);
  trace.objects.mutated_sources.push_back(generator);
}

// The entry frame, a generator's, has yielded to the frame where the recording continues.
void LeaveGenerator(Trace& trace, const FrameState& left, PyObject* generator) {
  auto* function = reinterpret_cast<PyObject*>(left.function);
  FromSource(trace, trace.guards.Function(function, FrameSlot(trace.frames.level() - 1, 0)), function, false);
  // Above them is what it has yielded.
  SavedGenerator saved{Ref<>::New(generator), {}, Ref<>::New(function), true, trace.epoch};
  saved.shadows.assign(left.shadows, left.shadows + left.nlocalsplus + left.depth - 1);
  trace.iteration.generators[left.raw] = std::move(saved);
  trace.iteration.outside_generators.push_back(generator);
  trace.objects.mutated_sources.push_back(generator);
  MarkMutated(trace, generator);
}

static bool IsInFrames(const Trace& trace, PyObject* generator) {
  const _PyInterpreterFrame* raw = FrameOfGenerator(generator);
  return std::any_of(trace.frames.inlined.begin(), trace.frames.inlined.end(),
                     [raw](const FrameState* f) { return f->raw == raw; });
}

// Where it waits; one without a line if it is at its end.
static SnapshotFrame DescribeSuspended(Trace& trace, PyObject* generator) {
  SavedGenerator& saved = trace.iteration.generators.at(FrameOfGenerator(generator));
  SuspendedFrame frame;
  if (!ReadSuspended(generator, &frame)) {
    SnapshotFrame over;
    over.function = PositionAt(saved.code(), 0).function;
    return over;
  }
  FrameState f;
  f.raw = FrameOfGenerator(generator);
  f.code = frame.code;
  f.function = frame.function;
  f.objects = frame.objects;
  f.nlocalsplus = frame.nlocalsplus;
  f.shadows = saved.shadows.data();
  f.is_generator = true;
  Mark mark;
  mark.offset = frame.offset;
  mark.depth = frame.depth;
  SnapshotFrame described = DescribeFrame(trace, f, mark, true);  // anybody can look at its locals
  if (!IsOutsideGenerator(trace, generator)) return described;
  for (int i = 0; i < f.nlocalsplus; ++i) {
    const bool is_unbound = f.objects[i] == nullptr && KindOfSlot(f.code, i) == SlotKind::kLocal;
    const std::vector<int>& told = described.slots;
    if (!is_unbound || std::find(told.begin(), told.end(), i) != told.end()) continue;
    described.locals.emplace_back(PyUnicode_AsUTF8(SlotName(f.code, i)), Operand());
    described.slots.push_back(i);
  }
  return described;
}

Operand DescribeGenerator(Trace& trace, PyObject* generator) {
  const auto saved = trace.iteration.generators.find(FrameOfGenerator(generator));
  if (saved == trace.iteration.generators.end() || !IsPlainGenerator(saved->second.code())) {
    throw Break{Reason::escaping_object, "an object of type generator"};
  }
  Operand operand;
  operand.kind = Operand::Kind::kGenerator;
  operand.items.push_back(Describe(trace, saved->second.function.get(), Shadow()));
  if (!IsInFrames(trace, generator)) operand.frame.push_back(DescribeSuspended(trace, generator));
  return operand;
}

// How those that existed before are left.
void DescribeYields(Trace& trace, SegmentIr* ir) {
  for (PyObject* generator : trace.iteration.outside_generators) {
    const SavedGenerator& saved = trace.iteration.generators.at(FrameOfGenerator(generator));
    if (trace.frames.ends_with_break && saved.epoch >= trace.frames.cut.epoch)
      continue;  // first seen in the part that was cut away
    const ObjectRecord* known = trace.objects.Find(generator);
    const bool runs = IsInFrames(trace, generator);
    if (runs && !saved.is_left) continue;  // the exit goes through it
    if (!runs && trace.frames.ends_with_break && known->mutated_epoch >= trace.frames.cut.epoch) {
      throw Break{Reason::changed_during_call, "generator"};
    }
    Effect effect;
    effect.kind = Effect::Kind::kYield;
    effect.target = Describe(trace, generator, Shadow());
    if (runs) {
      // It is resumed by the exit, which says then what is in it.
      effect.frame.offset = StartOffset(saved.code());
      const Position at = PositionAt(saved.code(), effect.frame.offset);
      effect.frame.function = at.function;
      effect.frame.line = at.line;
    } else {
      effect.frame = DescribeSuspended(trace, generator);
      if (effect.frame.is_over() && saved.is_left) continue;  // its frame returns
      if (effect.frame.is_over()) {
        effect.kind = Effect::Kind::kCall;
        effect.name = "close";
        effect.value.kind = Operand::Kind::kTuple;
      }
    }
    ir->effects.push_back(std::move(effect));
  }
}

}  // namespace frametap
