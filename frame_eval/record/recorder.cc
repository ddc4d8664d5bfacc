#include "frame_eval/record/recorder.h"
#include "frame_eval/record/trace/array_nodes.h"

#include <algorithm>
#include <cstring>

#include "frame_eval/checks/self_checking.h"
#include "frame_eval/cpython/exception_table.h"
#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/cpython/liveness.h"
#include "frame_eval/record/break_words.h"
#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/callers.h"
#include "frame_eval/record/fast_paths/module_calls.h"
#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/objects/module_paths.h"
#include "frame_eval/record/objects/quiet.h"
#include "guards/must.h"
#include "guards/objects/known_objects.h"
#include "guards/objects/tensor_door.h"
#include "ir/graph/eager_state.h"
#include "ir/segment/frame_slot.h"

namespace frametap {

// Objects of which nothing but which one they are is worth a guard. Instances of subclasses of int, float and str are
// among them (enumerations): their value is not compared by parts.
// The checks that walk the bases of a class come last.
bool Recorder::IsIdentityKind(PyObject* object) {
  constexpr unsigned long kByFlag =
      Py_TPFLAGS_TYPE_SUBCLASS | Py_TPFLAGS_LONG_SUBCLASS | Py_TPFLAGS_UNICODE_SUBCLASS | Py_TPFLAGS_BYTES_SUBCLASS;
  PyTypeObject* const type = Py_TYPE(object);
  if ((type->tp_flags & kByFlag) != 0 || PyFunction_Check(object) || PyMethod_Check(object) || PyCode_Check(object)) {
    return true;
  }
  if (type == &PyMethodDescr_Type || type == &PyWrapperDescr_Type || type == Objects().method_wrapper ||
      type == Objects().partial) {
    return true;
  }
  return PyObject_TypeCheck(object, Objects().module) || PyCFunction_Check(object) || PyModule_Check(object) ||
         PyFloat_Check(object) || PyComplex_Check(object);
}

bool Recorder::IsExchangeable(PyObject* object) const {
  return !store_.options().by_identity && PyObject_TypeCheck(object, Objects().module);
}

// A backend that takes sizes for constants gets the first ones as such, and other numbers until one has changed, as
// torch.compile does it.
Recorder::Open Recorder::OpenNumbers(Store& store, bool has_marks) {
  const Dynamic dynamic = store.options().dynamic;
  if (dynamic == Dynamic::kNever) return Open::kNone;
  if (dynamic == Dynamic::kAlways || !store.backend().assumptions().static_sizes) return Open::kAll;
  if (store.has_other_sizes() || has_marks) return Open::kAll;
  return store.has_changing_numbers() ? Open::kChanging : Open::kNone;
}

// Those of *args and **kwargs count too, if they are not many.
bool Recorder::HasMarkedArgument(const FrameState& base) {
  constexpr Py_ssize_t kMost = 64;
  const auto is_marked = [](PyObject* object) { return IsTensor(object) && HasSizeMarks(object); };
  for (int i = 0; i < base.nlocalsplus + base.depth; ++i) {
    PyObject* const object = base.objects[i];
    if (object == nullptr) continue;
    if (is_marked(object)) return true;
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_CheckExact(object) && PyDict_GET_SIZE(object) <= kMost && PyDict_Next(object, &at, &key, &value)) {
      if (is_marked(value)) return true;
    }
    while (PyTuple_CheckExact(object) && at < std::min(kMost, PyTuple_GET_SIZE(object))) {
      if (is_marked(PyTuple_GET_ITEM(object, at++))) return true;
    }
  }
  return false;
}

Recorder::Recorder(Store& store, FrameState& base, FrameNote& note, const WorldState& world)
    : store_(store),
      guards_(world),
      entry_state_(CurrentEagerState()),
      entry_backends_(world.backends),
      speculates_(store.speculates() && !store.options().by_identity),
      has_marks_(store.options().dynamic != Dynamic::kNever && HasMarkedArgument(base)),
      open_(OpenNumbers(store, has_marks_)),
      in_anomaly_mode_(world.anomaly_mode),
      repeated_calls_(RepeatedCalls::For(*this)),
      state_now_(entry_state_),
      backends_now_(entry_backends_) {
  aten_.foretells_sizes = store.backend().assumptions().static_sizes;
  aten_.place = [this] { return PlaceOf(frames_.size() - 1); };
  const Position entry = PositionOf(base.code, base.offset);
  entry_code_ = Ref<>::New(reinterpret_cast<PyObject*>(base.code));
  entry_globals_ = Ref<>::New(base.function->func_globals);
  entry_function_ = entry.function;
  began_at_break_ = base.offset > StartOffset(base.code);
  ExceptionHandler handler;
  entry_is_handled_ = FindHandler(base.code, base.offset / 2, &handler);
  entry_text_ =
      base.offset == StartOffset(base.code) ? "start" : std::to_string(entry.line) + ":" + std::to_string(entry.col);
  frames_.push_back(&base);
  note.Join();
  base.traced = true;
  guards_.ReadsNamesOf(base.code);
  RootShadows(base, base.depth);
  if (SelfChecking()) KeepEntry(base);
  StartInstruction();
  if (store.options().dynamic != Dynamic::kNever) {
    guards_.HeedMarks([this](const std::string& contradiction) {
      if (!aten_.pending) aten_.pending = Break{Reason::marked_size, contradiction};
    });
  }
  if (store.options().fullgraph || store.options().answers_by_replay || has_marks_) undo_ = std::make_unique<UndoLog>();
  if (store.backend().keeps_first_values()) first_values_ = std::make_unique<FirstValues>();
  if (undo_ != nullptr || first_values_ != nullptr) {
    aten_.before_write = [this](const at::Tensor& tensor) {
      if (undo_ != nullptr) undo_->Before(tensor);
      if (first_values_ != nullptr) first_values_->Before(tensor);
    };
    aten_.refuses = store.options().fullgraph;
  }
  aten_.Start();
}

std::unique_ptr<UndoLog> Recorder::TakeUndo() {
  aten_.Stop();
  if (undo_) undo_->NoteAutocastNesting(autocast_nesting_);
  return std::move(undo_);
}

Recorder::~Recorder() { aten_.Stop(); }

void Recorder::RootShadows(FrameState& f, int depth, const FrameState* left) {
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
    if (others > 0 && Find(object) == nullptr) return false;
    return HoldsAnEnd(object, if_large) && (others <= 0 || others <= CountOf(object, CountInEffects(object)));
  };
  for (int i = 0; i < f.nlocalsplus; ++i) {
    f.shadows[i] = Shadow();
    PyObject* object = f.objects[i];
    if (object == nullptr || KindOfSlot(f.code, i) != SlotKind::kLocal) continue;
    const bool ends = ends_here(object, Py_REFCNT(object) == 1);
    if (!live[static_cast<size_t>(i)] && !ends) {
      f.shadows[i].kind = Shadow::Kind::kUnread;
      bound_at_entry_.emplace_back(i, SourceId());
    } else {
      const SourceId id = guards_.Local(FrameSlot(level(), i), PyUnicode_AsUTF8(SlotName(f.code, i)), object);
      f.shadows[i] = FromSource(id, object, false);
      bound_at_entry_.emplace_back(i, id);
    }
    if (ends) NoteEnd(SourceOf(object));
  }
  for (int i = 0; i < depth; ++i) {
    PyObject* object = f.objects[f.nlocalsplus + i];
    f.shadows[f.nlocalsplus + i] = Shadow();
    if (object == nullptr) continue;
    // An iterator may hold a whole model. Each instruction would look at it if it were watched.
    const bool ends = ends_here(object, false);
    f.shadows[f.nlocalsplus + i] = FromSource(guards_.Stack(FrameSlot(level(), i), object), object, false);
    if (ends) NoteEnd(SourceOf(object));
  }
}

// ---- places and positions -------------------------------------------------------------------------------------------

const Position& Recorder::PositionOf(PyCodeObject* code, int offset) {
  const auto [it, is_new] = positions_.try_emplace({code, offset});
  if (is_new) it->second = tables_.try_emplace(code, code).first->second.At(offset);
  return it->second;
}

SharedText Recorder::ClassName(PyTypeObject* type) {
  SharedText& name = class_names_[type];
  if (name.empty()) name = type->tp_name;
  return name;
}

// May run without Python's lock, as PlaceOf may. If a recording begins at the captured function itself, there is
// nothing outside: sources give all paths.
PlaceId Recorder::PlaceOutside() {
  if (outside_) return *outside_;
  outside_ = kNowhere;
  const FrameState& base = *frames_[0];
  if (!began_at_break_ && NoteOf(base).caller == nullptr) return kNowhere;
  std::vector<PyObject*> modules;
  for (const FrameState* f = &base; f != nullptr; f = NoteOf(*f).caller) {
    outermost_ = f;
    if (f->code != Objects().module_call_code) continue;
    PyObject* const self = f->objects[0];  // a cell, once the frame has begun: closures in it read it
    PyObject* const module = self != nullptr && PyCell_Check(self) ? PyCell_GET(self) : self;
    if (module != nullptr) modules.push_back(module);
  }
  for (auto module = modules.rbegin(); module != modules.rend(); ++module) {
    outside_ = places_.AddOutside(*outside_, {SourceId(), ClassName(Py_TYPE(*module)), *module});
  }
  return *outside_;
}

void Recorder::NamePaths() {
  if (outermost_ == nullptr) return;
  const ModulePaths paths(*outermost_);
  const size_t sources = guards_.mark().sources;
  places_.NamePaths([&](const Places::Module& module) -> std::optional<SharedText> {
    if (module.outside != nullptr) return paths.Of(module.outside);
    if (!module.source.valid() || module.source.raw() >= sources) return std::nullopt;
    return paths.Of(guards_.seen(module.source));
  });
}

PlaceId Recorder::PlaceOf(size_t frame) {
  const FrameState& f = *frames_[frame];
  FrameNote& note = NoteOf(f);
  if (note.place == kNowhere || note.place_offset != f.offset) {
    const PlaceId caller = frame == 0 ? PlaceOutside() : PlaceOf(frame - 1);
    note.place = places_.Add(caller, f.code, f.offset, note.module ? &*note.module : nullptr);
    note.place_offset = f.offset;
  }
  return note.place;
}

const Position& Recorder::BreakPosition() {
  const FrameState& f = *frames_[FrameOfUser(frames_)];
  return PositionOf(f.code, f.offset);
}

// ---- instructions ---------------------------------------------------------------------------------------------------

void Recorder::SetMark(FrameState& f, FrameNote& note) {
  Mark& mark = note.mark;
  mark.aten = aten_.mark();
  mark.guards = guards_.mark();
  mark.effects = effects_.size();
  mark.decisions = decisions_.size();
  mark.offset = f.offset;
  mark.depth = f.depth;
  mark.state = state_now_;
  mark.backends = backends_now_;
  mark.autocast_nesting = autocast_nesting_;
  mark.context_sets = context_sets_.size();
  mark.epoch = ++epoch_;
  note.marked = true;
}

// After both were taken back to these marks.
void Recorder::ForgetSince(const GuardRecorder::Mark& guards, const AtenRecorder::Mark& aten) {
  const auto is_gone = [&](uint32_t value) { return value >= aten.values; };
  const auto is_gone_shadow = [&](Shadow shadow) {
    return shadow.kind == Shadow::Kind::kSource ? shadow.id >= guards.sources
                                                : shadow.kind == Shadow::Kind::kValue && is_gone(shadow.id);
  };
  const auto is_gone_operand = [&](const std::pair<int, int64_t>& operand) {
    return operand.first != static_cast<int>(Shadow::Kind::kNone) &&
           is_gone_shadow({static_cast<Shadow::Kind>(operand.first), static_cast<uint32_t>(operand.second)});
  };
  absl::erase_if(traced_sizes_,
                 [&](const auto& one) { return is_gone(one.first.first) || is_gone_shadow(one.second); });
  std::erase_if(ruled_sizes_, [&](const auto& one) { return is_gone(one.first); });
  absl::erase_if(int_ops_, [&](const auto& one) {
    return is_gone_shadow(one.second) || is_gone_operand(std::get<1>(one.first)) ||
           is_gone_operand(std::get<2>(one.first));
  });
  absl::erase_if(not_negative_, [&](ValueId value) { return is_gone(value.raw()); });
  absl::erase_if(number_inputs_, [&](const auto& one) { return is_gone(one.first); });
  absl::erase_if(number_values_,
                 [&](const auto& one) { return one.first >= guards.sources || is_gone(one.second.raw()); });
  absl::erase_if(numbers_, [&](const auto& one) { return is_gone(one.first); });
  sizes_read_.clear();
  strides_read_.clear();
}

void Recorder::ReadState() {
  state_now_ = CurrentEagerState();
  backends_now_ = WorldState::BackendsNow();
}

void Recorder::StartInstruction() { SetMark(base(), NoteOf(base())); }

// Nothing is recorded between the start of an instruction and its first event. One that has several leaves its operands
// such that it may as well begin with a later one.
void Recorder::MarkInstruction(FrameState& f, FrameNote& note) {
  if (!note.rebuildable) return;
  note.marked = f.handlers == 0;
  if (note.marked) SetMark(f, note);
}

void Recorder::BeginWithoutBefore(FrameState& f, FrameNote& note) {
  MarkInstruction(f, note);
  note.ForgetOperands();
}

int Recorder::base_offset() const { return NoteOf(*frames_.front()).mark.offset; }

void Recorder::ContinueIn(FrameState& caller, FrameNote& note, const FrameState& left, FrameEnd end, PyObject* result,
                          Shadow shadow) {
  const Position at = PositionAt(caller.code, caller.offset);
  frames_.assign(1, &caller);
  outside_.reset();
  if (repeated_calls_) repeated_calls_->Forget();
  for (PyObject* object : std::exchange(frame_ends_, {})) Watch(object);
  callers_.push_back(
      {Ref<>::New(reinterpret_cast<PyObject*>(caller.code)), Ref<>::New(caller.function->func_globals), caller.offset});
  entry_text_ += " in " + ToString(at);
  bound_at_entry_.clear();
  has_pending_ = false;
  note.Join();
  caller.traced = true;
  guards_.ReadsNamesOf(caller.code);
  if (!left.is_generator) {
    const int below = CallSiteOf(caller).below;
    RootShadows(caller, below, &left);
    awaited_ = {true, result, shadow, below, InstructionAt(caller.code, caller.offset).next};
  } else {
    RootShadows(caller, caller.depth);
    const TakeSite site = TakeSiteOf(caller);
    if (end == FrameEnd::kYielded) {
      LeaveGenerator(left, site.iterator);
      Force(result, shadow);
      awaited_ = {true, result, AdoptResult(result), caller.depth, site.next};
    } else {
      awaited_ = {true, nullptr, Shadow(), caller.depth - 1, site.end};
    }
  }
  if (SelfChecking()) KeepEntry(caller);
}

}  // namespace frametap
