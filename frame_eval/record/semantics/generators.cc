// Generators: what is in their frames while they are suspended, and how a segment leaves them.
//   - One that the trace has made is made again, suspended where it was, if its frame is no more than its locals and its
//     stack (IsPlainGenerator).
//   - A generator that existed before is advanced by a `for` loop only. The content of its frame are sources of their
//     own (`S[0].<frame>[1]`), its position is a guard, and its new state is an effect (`yield`). Locals that the
//     effect does not name stay as they are.
//   - The entry frame may belong to a generator. When it yields to a caller in which the recording continues, it
//     counts as a generator that existed before, and is on that caller's stack.
#include <algorithm>

#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/record/recorder.h"
#include "guards/cpython/suspended_frame.h"
#include "ir/segment/frame_slot.h"

namespace frametap {
namespace {

const bool told = (read_suspended_frame = SuspendedFrameOf, true);

}  // namespace

bool Recorder::IsOutsideGenerator(PyObject* object) const {
  return std::find(outside_generators_.begin(), outside_generators_.end(), object) != outside_generators_.end();
}

// Before a loop takes from it.
void Recorder::MeetGenerator(PyObject* generator) {
  if (IsOutsideGenerator(generator)) return;
  const SourceId source = SourceOf(generator);
  SuspendedFrame frame;
  // Under fullgraph it could not be taken back.
  if (!source.valid() || undo_ != nullptr || !ReadSuspended(generator, &frame) || !IsPlainGenerator(frame.code)) {
    throw Break{Reason::foreign_generator, ""};
  }
  Touch(generator);
  guards_.Suspended(source, Here());
  auto* function = reinterpret_cast<PyObject*>(frame.function);
  FromSource(guards_.Child(source, Accessor::kFunc, 0, nullptr, function), function, false);
  SavedGenerator saved{Ref<>::New(generator), {}, Ref<>::New(function), false, epoch_};
  const std::vector<bool> live = LiveLocals(frame.code, frame.offset);
  for (int i = 0; i < frame.nlocalsplus + frame.depth; ++i) {
    PyObject* object = frame.objects[i];
    Shadow& shadow = saved.shadows.emplace_back();
    const bool is_free = i < frame.nlocalsplus && KindOfSlot(frame.code, i) == SlotKind::kFree;
    if (object == nullptr || is_free) continue;
    const bool ends_here = Py_REFCNT(object) == 1 && HoldsAnEnd(object);
    if (i < frame.nlocalsplus && !live[static_cast<size_t>(i)] && !ends_here) {
      shadow.kind = Shadow::Kind::kUnread;
      continue;
    }
    shadow = FromSource(guards_.Child(source, Accessor::kFrame, i, nullptr, object), object, false);
    if (ends_here) NoteEnd(SourceOf(object));
  }
  generators_[FrameOfGenerator(generator)] = std::move(saved);
  outside_generators_.push_back(generator);
  mutated_sources_.push_back(generator);
}

// The entry frame, a generator's, has yielded to the frame where the recording continues.
void Recorder::LeaveGenerator(const FrameState& left, PyObject* generator) {
  auto* function = reinterpret_cast<PyObject*>(left.function);
  FromSource(guards_.Function(function, FrameSlot(level() - 1, 0)), function, false);
  // Above them is what it has yielded.
  SavedGenerator saved{Ref<>::New(generator), {}, Ref<>::New(function), true, epoch_};
  saved.shadows.assign(left.shadows, left.shadows + left.nlocalsplus + left.depth - 1);
  generators_[left.raw] = std::move(saved);
  outside_generators_.push_back(generator);
  mutated_sources_.push_back(generator);
  MarkMutated(generator);
}

bool Recorder::IsInFrames(PyObject* generator) const {
  const _PyInterpreterFrame* raw = FrameOfGenerator(generator);
  return std::any_of(frames_.begin(), frames_.end(), [raw](const FrameState* f) { return f->raw == raw; });
}

// Where it waits; one without a line if it is at its end.
SnapshotFrame Recorder::DescribeSuspended(PyObject* generator) {
  SavedGenerator& saved = generators_.at(FrameOfGenerator(generator));
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
  SnapshotFrame described = DescribeFrame(f, mark, true);  // anybody can look at its locals
  if (!IsOutsideGenerator(generator)) return described;
  for (int i = 0; i < f.nlocalsplus; ++i) {
    const bool is_unbound = f.objects[i] == nullptr && KindOfSlot(f.code, i) == SlotKind::kLocal;
    const std::vector<int>& told = described.slots;
    if (!is_unbound || std::find(told.begin(), told.end(), i) != told.end()) continue;
    described.locals.emplace_back(PyUnicode_AsUTF8(SlotName(f.code, i)), Operand());
    described.slots.push_back(i);
  }
  return described;
}

Operand Recorder::DescribeGenerator(PyObject* generator) {
  const auto saved = generators_.find(FrameOfGenerator(generator));
  if (saved == generators_.end() || !IsPlainGenerator(saved->second.code())) {
    throw Break{Reason::escaping_object, "an object of type generator"};
  }
  Operand operand;
  operand.kind = Operand::Kind::kGenerator;
  operand.items.push_back(Describe(saved->second.function.get(), Shadow()));
  if (!IsInFrames(generator)) operand.frame.push_back(DescribeSuspended(generator));
  return operand;
}

// How those that existed before are left.
void Recorder::DescribeYields(SegmentIr* ir) {
  for (PyObject* generator : outside_generators_) {
    const SavedGenerator& saved = generators_.at(FrameOfGenerator(generator));
    if (ends_with_break_ && saved.epoch >= mark_.epoch) continue;  // first seen in the part that was cut away
    const Known* known = Find(generator);
    const bool runs = IsInFrames(generator);
    if (runs && !saved.is_left) continue;  // the exit goes through it
    if (!runs && ends_with_break_ && known->mutated_epoch >= mark_.epoch) {
      throw Break{Reason::changed_during_call, "generator"};
    }
    Effect effect;
    effect.kind = Effect::Kind::kYield;
    effect.target = Describe(generator, Shadow());
    if (runs) {
      // It is resumed by the exit, which says then what is in it.
      effect.frame.offset = StartOffset(saved.code());
      const Position at = PositionAt(saved.code(), effect.frame.offset);
      effect.frame.function = at.function;
      effect.frame.line = at.line;
    } else {
      effect.frame = DescribeSuspended(generator);
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
