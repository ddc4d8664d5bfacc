#include "frame_eval/recorder.h"
#include "frame_eval/array_nodes.h"

#include <algorithm>
#include <cstring>

#include "frame_eval/break_words.h"
#include "frame_eval/callables/table.h"
#include "frame_eval/callers.h"
#include "frame_eval/cpython/exception_table.h"
#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/cpython/liveness.h"
#include "frame_eval/known_objects.h"
#include "frame_eval/module_calls.h"
#include "frame_eval/module_paths.h"
#include "frame_eval/quiet.h"
#include "frame_eval/repeated_calls.h"
#include "frame_eval/self_check.h"
#include "frame_eval/stress.h"
#include "guards/must.h"
#include "guards/tensor_door.h"
#include "ir/eager_state.h"
#include "ir/frame_slot.h"

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

bool Recorder::TakeResult(FrameState& f) {
  if (!awaited_.is_awaited) return true;
  awaited_.is_awaited = false;
  if (f.offset != awaited_.offset) return false;
  if (awaited_.object == nullptr) return f.depth == awaited_.depth;
  PyObject** place = f.objects + f.nlocalsplus + awaited_.depth;
  if (f.depth != awaited_.depth + 1 || *place != awaited_.object) return false;
  f.shadows[f.nlocalsplus + awaited_.depth] = awaited_.shadow;
  return true;
}

bool Recorder::expects_frame(const FrameState& f) const {
  if (checkpoint_ && checkpoint_->caller == frames_.back()) {
    return AwaitsCheckpointed(f.code) && pending_.function == reinterpret_cast<PyObject*>(f.function);
  }
  // Callees of a frame that is not recorded are not recorded either.
  const FrameState* const caller = NoteOf(f).caller;
  if (caller != nullptr && NoteOf(*caller).suspended) return false;
  const FrameNote& note = NoteOf(*frames_.back());
  // C code hashes a tensor: which object it is has been read (identity.cc).
  const bool hashes = f.code == Objects().tensor_hash_code && !has_pending_;
  return note.in_event && !note.opaque_operation && !hashes && !IsFinaliser(f);
}

bool Recorder::IsFinaliser(const FrameState& f) const {
  const bool direct = has_pending_ && pending_.function == reinterpret_cast<PyObject*>(f.function);
  PyObject* self = f.nlocalsplus > 0 ? f.objects[0] : nullptr;
  if (direct || self == nullptr) return false;
  if (f.code->co_argcount == 0) {  // *args
    if ((f.code->co_flags & CO_VARARGS) == 0 || !PyTuple_CheckExact(self) || PyTuple_GET_SIZE(self) == 0) return false;
    self = PyTuple_GET_ITEM(self, 0);
  }
  if (PyObject_TypeCheck(self, Objects().weak_reference)) return true;  // its callback
  PyTypeObject* const type = Py_TYPE(self);
  static PyObject* const name = InternedName("__del__");
  return (type->tp_finalize != nullptr || type->tp_del != nullptr) && HasPlainNames(type) &&
         _PyType_Lookup(type, name) == reinterpret_cast<PyObject*>(f.function);
}

bool Recorder::observes_inner_frames() const {
  return watches_ends() || SelfChecking() || Armed(Fault::kAbort) || Armed(Fault::kExit);
}

void Recorder::EnterInlined(FrameState& f, FrameNote& note) {
  note.Join();
  note.containers_before = containers_.size();
  f.traced = true;
  guards_.ReadsNamesOf(f.code);
  const FrameState& caller = *frames_.back();
  if (checkpoint_ && checkpoint_->caller == &caller) {
    checkpoint_->has_begun = true;
    checkpoint_->since = aten_.mark();
    checkpoint_->state = CurrentEagerState();
    checkpoint_->state.autocast_cleared = aten_.autocast_cleared();
  }
  note.to_cross = IsModuleCall(f.code);
  f.observed = note.to_cross || observes_inner_frames();
  if (f.is_generator) {
    auto it = generators_.find(f.raw);
    if (it == generators_.end()) {
      frames_.push_back(&f);
      throw Break{Reason::foreign_generator, ""};
    }
    frames_.push_back(&f);
    std::copy(it->second.shadows.begin(), it->second.shadows.end(), f.shadows);
    MarkMutated(it->second.generator.get());
    note.rebuildable = NoteOf(caller).marked && CallsStraight(caller, f);
    return;
  }
  frames_.push_back(&f);
  FixCode(reinterpret_cast<PyObject*>(f.function));
  if (has_pending_ && pending_.function == reinterpret_cast<PyObject*>(f.function)) {
    note.direct = true;
    BindPending(f);
    // `self` of a new instance has not been seen before: None stands for it in the call.
    const bool has_first = f.nlocalsplus > 0 && f.objects[0] != nullptr && !PyCell_Check(f.objects[0]);
    const bool is_made = has_first && !pending_.args.empty() && pending_.args[0] == Py_None;
    if (has_first) is_made ? AdoptMade(f.objects[0]) : AdoptResult(f.objects[0]);
  } else if (note.is_kernel) {
    EnterKernel(f, NoteOf(caller));
  } else if (NoteOf(caller).marks.calls_function) {
    // The context, and what C code has put together for `forward` or `setup_context`.
    for (int i = 0; i < f.nlocalsplus; ++i) {
      PyObject* const object = f.objects[i];
      if (object == nullptr || KindOfSlot(f.code, i) == SlotKind::kFree || PyCell_Check(object)) continue;
      const bool is_context = PyObject_TypeCheck(object, Objects().function_base);
      if (is_context && Find(object) == nullptr) AddFresh(object, Known::State::kOpaque);
      if (!is_context) AdoptMade(object, true);
    }
  } else {
    auto& for_new = NoteOf(caller).for_new;
    const std::vector<Shadow> open(for_new.begin(), for_new.end());
    for_new.clear();
    for (const Shadow shadow : open) Force(nullptr, shadow);
    FixDefaults(f.function);
    for (int i = 0; i < f.nlocalsplus; ++i) {
      if (f.objects[i] != nullptr && KindOfSlot(f.code, i) != SlotKind::kFree && !PyCell_Check(f.objects[i])) {
        AdoptResult(f.objects[i]);
      }
    }
  }
  has_pending_ = false;
  if (f.code == Objects().module_call_code && f.objects[0] != nullptr) {
    note.module = Places::Module{SourceOf(f.objects[0]), ClassName(Py_TYPE(f.objects[0]))};
  }
  // (A method that was bound for it calls it straight.)
  note.rebuildable = NoteOf(caller).marked && ((note.direct && NoteOf(caller).passes_on) || CallsStraight(caller, f));
}

// The code that the function runs. A class determines the function (a method, a property, a slot), and not a later
// assignment to its code. An open one (IsOpen) is known by its code alone.
void Recorder::FixCode(PyObject* function) {
  if (Find(function) == nullptr) {
    PyObject*& recent = fixed_code_[(reinterpret_cast<uintptr_t>(function) >> 4) % fixed_code_.size()];
    if (recent != function && !guards_.IsPinned(function)) guards_.Pinned(function, CallableName(function));
    recent = function;
  } else if (IsOpen(function))
    guards_.Code(SourceOf(function), Here());
}

// C code calls a function that the trace has made. Which of its arguments are defaults is not reported.
void Recorder::FixDefaults(PyFunctionObject* function) {
  PyObject* const defaults = function->func_defaults;
  const Known* const known = defaults != nullptr ? Find(defaults) : nullptr;
  const bool is_made = known != nullptr && known->state != Known::State::kSource;
  for (size_t i = 0; is_made && i < known->items.size(); ++i) {
    Force(PyTuple_GET_ITEM(defaults, static_cast<Py_ssize_t>(i)), known->items[i]);
  }
  if (function->func_kwdefaults != nullptr) FixValues(function->func_kwdefaults);
}

void Recorder::BindPending(FrameState& f) {
  PyCodeObject* code = f.code;
  const int argcount = code->co_argcount;
  const int named = argcount + code->co_kwonlyargcount;
  const size_t positional = pending_.args.size() - pending_.names.size();
  const bool has_varargs = code->co_flags & CO_VARARGS;
  absl::InlinedVector<bool, 16> given(static_cast<size_t>(named));
  for (size_t i = 0; i < positional && i < static_cast<size_t>(argcount); ++i) {
    f.shadows[i] = pending_.shadows[i];
    given[i] = true;
  }
  if (has_varargs && f.objects[named] != nullptr && !IsConstantTuple(f.objects[named])) {
    Known& known = AddFresh(f.objects[named]);
    for (size_t i = static_cast<size_t>(argcount); i < positional; ++i) known.items.push_back(pending_.shadows[i]);
  }
  PyObject* kwargs = nullptr;
  if (code->co_flags & CO_VARKEYWORDS) {
    kwargs = f.objects[named + (has_varargs ? 1 : 0)];
    if (kwargs != nullptr) AddFresh(kwargs);
  }
  for (size_t k = 0; k < pending_.names.size(); ++k) {
    PyObject* name = pending_.names[k];
    Shadow shadow = pending_.shadows[positional + k];
    bool found = false;
    for (int i = code->co_posonlyargcount; i < named && !found; ++i) {
      PyObject* parameter = SlotName(code, i);
      if (parameter == name || PyUnicode_Compare(parameter, name) == 0) {
        f.shadows[i] = shadow;
        given[static_cast<size_t>(i)] = true;
        found = true;
      }
    }
    if (found) continue;
    PyObject* const value = pending_.args[positional + k];
    if (kwargs != nullptr && LeavesOpen(value, shadow)) {
      KeepValue(kwargs, name, shadow);
    } else {
      Force(value, shadow);
    }
  }
  // Defaults: fixed with the function, but a mutable one is an object that lives on. Those of a function that the trace
  // has made are what it was given.
  const bool is_fixed = IsFixedFunction(f);
  const Known* own = Find(reinterpret_cast<PyObject*>(f.function));
  const bool is_made = own != nullptr && own->state != Known::State::kSource;
  for (int i = 0; i < named; ++i) {
    if (given[static_cast<size_t>(i)] || f.objects[i] == nullptr) continue;
    PyObject* value = f.objects[i];
    if (PyCell_Check(value)) continue;
    if (is_made) {
      PyObject* holder = i < argcount ? f.function->func_defaults : f.function->func_kwdefaults;
      AdoptElements(holder);  // it may have existed before the recording, which began between the two
      if (i < argcount) {
        f.shadows[i] = ElementShadow(holder, i - argcount + PyTuple_GET_SIZE(holder));
      } else if (const Shadow* const open = StoredItem(holder, SlotName(code, i)); open != nullptr) {
        f.shadows[i] = *open;
      }
      AdoptResult(value);
      continue;
    }
    if (i >= argcount) {
      // Keyword-only defaults live in a dict that may change.
      RefuseMutatedDict(f.function->func_kwdefaults);
      SourceId source = guards_.Child(SourceOrPin(reinterpret_cast<PyObject*>(f.function)), Accessor::kKwDefault, 0,
                                      SlotName(code, i), value);
      f.shadows[i] = FromSource(source, value, is_fixed);
      continue;
    }
    if (!is_fixed) {
      const Py_ssize_t index = i - argcount + PyTuple_GET_SIZE(f.function->func_defaults);
      const SourceId function = SourceOf(reinterpret_cast<PyObject*>(f.function));
      f.shadows[i] = FromSource(guards_.Child(function, Accessor::kDefault, index, nullptr, value), value, false);
      continue;
    }
    if (IsScalar(value)) continue;
    AdoptPinned(value, std::string("default ") + PyUnicode_AsUTF8(SlotName(code, i)));
  }
}

// Returns whether C code gets what a frame hands over, and may read all that is in it: it compares keys, joins rows, asks
// for their truth. Operators, attributes, instances of classes, `next` and the like hand it on to bytecode as it is.
static bool GoesToC(const FrameState& caller, const FrameState& f) {
  if (PyObject* const callable = CallSiteOf(caller).callable; callable != nullptr) {
    const bool is_type =
        PyType_Check(callable) && !PyType_HasFeature(reinterpret_cast<PyTypeObject*>(callable), Py_TPFLAGS_HEAPTYPE);
    if (!is_type && !PyCFunction_Check(callable) && Py_TYPE(callable) != &PyMethodDescr_Type) return false;
    static constexpr std::string_view kHandOn[] = {"next", "getattr", "send", "__getattribute__", "__call__"};
    const CallableRow* const row = FindCallable(callable);
    return row == nullptr || std::find(std::begin(kHandOn), std::end(kHandOn), row->name) == std::end(kHandOn);
  }
  if (PyObject* const taken = TakeSiteOf(caller).iterator; taken != nullptr) {
    return !f.is_generator || !PyGen_CheckExact(taken) || FrameOfGenerator(taken) != f.raw;
  }
  const std::string_view name = InstructionAt(caller.code, caller.offset).name;
  return name == "CONTAINS_OP" || name == "LIST_EXTEND" || name == "SET_UPDATE" || name == "DICT_UPDATE" ||
         name == "DICT_MERGE" || name == "UNPACK_SEQUENCE" || name == "UNPACK_EX";
}

void Recorder::LeaveInlined(FrameState& f, FrameNote& note, FrameEnd end, PyObject* value, Shadow shadow) {
  frames_.pop_back();
  note.inlined = false;
  FrameNote& caller = *static_cast<FrameNote*>(frames_.back()->tracer_data);
  const auto hand_over = [&] {
    const bool has_content = PyTuple_Check(value) || PyList_Check(value) || PyDict_Check(value) || IsAnySet(value) ||
                             open_iterators_.contains(value);
    if (has_content && GoesToC(*frames_.back(), f)) return ForceDeep(value, shadow, true);
    Force(value, shadow);
  };
  if (end == FrameEnd::kGenerator) {
    // The frame moves into the generator object: that is how it is found when it is resumed.
    generators_[FrameOfGenerator(value)] = {Ref<>::New(value),
                                            std::vector<Shadow>(f.shadows, f.shadows + f.nlocalsplus),
                                            Ref<>::New(reinterpret_cast<PyObject*>(f.function)), false, 0};
    AddFresh(value, Known::State::kOpaque);
    caller.returned = value;
    caller.returned_shadow = Shadow();
    return;
  }
  if (end == FrameEnd::kYielded) {
    auto it = generators_.find(f.raw);
    if (it != generators_.end()) {
      // Locals, and the value stack below the value that was handed out: in its place comes what is sent in.
      it->second.shadows.assign(f.shadows, f.shadows + f.nlocalsplus + f.depth - 1);
    }
    hand_over();
    caller.returned = value;
    caller.returned_shadow = Shadow();
    return;
  }
  if (end == FrameEnd::kReturned && value != nullptr) {
    if (!note.direct) {
      hand_over();
      shadow = Shadow();
    }
    caller.returned = value;
    caller.returned_shadow = shadow;
  }
}

void Recorder::Raised(FrameState& f, FrameNote& note, const Event& e) {
  if (note.marks.switches_inference) AtenRecorder::SeeEveryOp(true);
  if (repeated_calls_) repeated_calls_->Forget();
  if (checkpoint_ && checkpoint_->caller == &f) {
    checkpoint_.reset();
    if (!aten_.pending) aten_.pending = Break{Reason::exception_from_op, ""};
  }
  const bool is_of_numpy = IsArrayCall(note);
  ForgetArrayCall(note);
  if (aten_.pending) return;
  if (note.expect.kind == Expect::Kind::kTorch || is_of_numpy) {
    aten_.pending = Break{Reason::exception_from_op, ""};
  } else if (ReadsVariable(e.op)) {
    // No guard can be on the value of a variable without one.
    aten_.pending = Break{Reason::unknown_operation, "a variable without a value"};
  } else if (e.op == Op::kRaise && e.n > 0 && PyExceptionInstance_Check(e.in[0]) && SourceOf(e.in[0]).valid()) {
    // A handler leaves it with another traceback and context.
    aten_.pending = Break{Reason::unknown_mutation, "an exception that existed before is raised"};
  } else if (note.own_effect || e.op == Op::kStoreAttr || e.op == Op::kDeleteAttr || e.op == Op::kStoreSubscr ||
             e.op == Op::kDeleteSubscr) {
    // Before has taken the change for done; it was not, or only in part.
    aten_.pending = Break{Reason::unknown_mutation, "it raised an exception"};
  }
}

}  // namespace frametap
