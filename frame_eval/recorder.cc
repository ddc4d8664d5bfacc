#include "frame_eval/recorder.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "frame_eval/callables/table.h"
#include "frame_eval/callers.h"
#include "frame_eval/cpython/exception_table.h"
#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/known_objects.h"
#include "frame_eval/module_calls.h"
#include "frame_eval/self_check.h"
#include "frame_eval/stress.h"
#include "guards/must.h"
#include "guards/object_end.h"
#include "guards/tensor_door.h"
#include "guards/watch.h"
#include "ir/frame_slot.h"
#include "ir/ops/op_facts.h"

namespace frametap {

// Objects of which nothing but which one they are is worth a guard. Instances of subclasses of int, float and str are
// among them (enumerations): their value is not compared by parts.
bool Recorder::IsIdentityKind(PyObject* object) {
  return PyFunction_Check(object) || PyCFunction_Check(object) || PyType_Check(object) || PyModule_Check(object) ||
         PyCode_Check(object) || PyMethod_Check(object) || Py_TYPE(object) == &PyMethodDescr_Type ||
         Py_TYPE(object) == &PyWrapperDescr_Type || Py_TYPE(object) == Objects().method_wrapper ||
         PyObject_TypeCheck(object, Objects().module) || Py_TYPE(object) == Objects().partial || PyLong_Check(object) ||
         PyFloat_Check(object) || PyUnicode_Check(object) || PyBytes_Check(object) || PyComplex_Check(object);
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
      entry_state_(AtenRecorder::StateNow()),
      entry_backends_(world.backends),
      speculates_(store.speculates() && !store.options().by_identity),
      has_marks_(store.options().dynamic != Dynamic::kNever && HasMarkedArgument(base)),
      open_(OpenNumbers(store, has_marks_)) {
  objects_.reserve(1024);  // of one model
  aten_.place = [this] { return PlaceOf(frames_.size() - 1); };
  Position entry = PositionAt(base.code, base.offset);
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
  RootShadows(base, base.depth);
  if (SelfChecking()) KeepEntry(base);
  StartInstruction();
  if (store.options().dynamic != Dynamic::kNever) {
    guards_.HeedMarks([this](const std::string& contradiction) {
      if (!aten_.pending) aten_.pending = Break{Reason::marked_size, contradiction};
    });
  }
  if (store.options().fullgraph || has_marks_) {
    undo_ = std::make_unique<UndoLog>();
    aten_.before_write = [this](const at::Tensor& tensor) { undo_->Before(tensor); };
  }
  aten_.Start();
}

void Recorder::Undo() {
  aten_.Stop();
  if (undo_) undo_->TakeBack();
}

Recorder::~Recorder() { aten_.Stop(); }

// Of the base frame and the lowest `depth` slots of its stack.
void Recorder::RootShadows(FrameState& f, int depth) {
  // What nobody reads any more may be missing at a replay: a snapshot leaves it out.
  const std::vector<bool> live = LiveLocals(f.code, f.offset);
  for (int i = 0; i < f.nlocalsplus; ++i) {
    f.shadows[i] = Shadow();
    PyObject* object = f.objects[i];
    if (object == nullptr || KindOfSlot(f.code, i) != SlotKind::kLocal) continue;
    const bool ends_here = Py_REFCNT(object) == 1 && HoldsAnEnd(object);
    if (!live[static_cast<size_t>(i)] && !ends_here) {
      f.shadows[i].kind = Shadow::Kind::kUnread;
      bound_at_entry_.emplace_back(i, SourceId());
    } else {
      const SourceId id = guards_.Local(FrameSlot(level(), i), PyUnicode_AsUTF8(SlotName(f.code, i)), object);
      f.shadows[i] = FromSource(id, object, false);
      bound_at_entry_.emplace_back(i, id);
    }
    if (ends_here) WatchHolder(object);
  }
  for (int i = 0; i < depth; ++i) {
    PyObject* object = f.objects[f.nlocalsplus + i];
    f.shadows[f.nlocalsplus + i] = Shadow();
    if (object == nullptr) continue;
    f.shadows[f.nlocalsplus + i] = FromSource(guards_.Stack(FrameSlot(level(), i), object), object, false);
  }
}

// ---- places and positions -------------------------------------------------------------------------------------------

const Position& Recorder::PositionOf(PyCodeObject* code, int offset) {
  const auto [it, is_new] = positions_.try_emplace({code, offset});
  if (is_new) it->second = tables_.try_emplace(code, code).first->second.At(offset);
  return it->second;
}

PlaceId Recorder::PlaceOf(size_t frame) {
  const FrameState& f = *frames_[frame];
  FrameNote& note = NoteOf(f);
  if (note.place == kNowhere || note.place_offset != f.offset) {
    const PlaceId caller = frame == 0 ? kNowhere : PlaceOf(frame - 1);
    note.place = places_.Add(caller, f.code, f.offset, note.module ? &*note.module : nullptr);
    note.place_offset = f.offset;
  }
  return note.place;
}

Position Recorder::BreakPosition() const {
  // The innermost frame outside of installed packages tells a user most; else the entry frame.
  for (auto it = frames_.rbegin(); it != frames_.rend(); ++it) {
    Position at = PositionAt((*it)->code, (*it)->offset);
    const std::string& file = at.file;
    if (file.find("site-packages") == std::string::npos && file.find("/lib/python3") == std::string::npos) return at;
  }
  return PositionAt(frames_.front()->code, frames_.front()->offset);
}

// ---- knowledge ------------------------------------------------------------------------------------------------------

bool Recorder::IsScalarType(PyTypeObject* type) {
  // Most questions are about a few types. Those that come here are static: they live for ever.
  struct Answer {
    PyTypeObject* type = nullptr;
    bool is_scalar = false;
  };
  static std::array<Answer, 64> answers;
  Answer& answer = answers[(reinterpret_cast<uintptr_t>(type) >> 5) % answers.size()];
  if (answer.type != type) answer = {type, IsOneOfScalarTypes(type)};
  return answer.is_scalar;
}

bool Recorder::IsOneOfScalarTypes(PyTypeObject* type) {
  if (type == Py_TYPE(Py_None) || type == &PyBool_Type || type == &PyLong_Type || type == &PyUnicode_Type ||
      type == &PyFloat_Type || type == &PyBytes_Type || type == &PyComplex_Type || type == &PyEllipsis_Type ||
      type == Py_TYPE(Py_NotImplemented)) {
    return true;
  }
  for (PyTypeObject* const* t = Objects().scalar_types; *t != nullptr; ++t) {
    if (type == *t) return true;
  }
  return false;
}

Known* Recorder::FindAnew(PyObject* object, Recent* recent) {
  auto it = objects_.find(object);
  *recent = {object, it == objects_.end() ? nullptr : it->second};  // AddFresh changes that
  return recent->known;
}

// Of objects that the trace makes: containers, and what is bound to a tensor or goes over some. Not those that other
// parts of the recorder know by address: code and modules (places), generators, variables of the context.
static bool MayHoldTensors(PyObject* object) {
  if (PyTuple_CheckExact(object)) return PyTuple_GET_SIZE(object) > 0;
  return PyType_IS_GC(Py_TYPE(object)) && !PyFunction_Check(object) && !PyType_Check(object) &&
         !PyModule_Check(object) && !IsGenerator(object) && !PyContextVar_CheckExact(object) &&
         !PyObject_TypeCheck(object, Objects().module);
}

Known& Recorder::AddFresh(PyObject* object, Known::State state) {
  Known& known = vacant_.empty() ? known_.emplace_back() : *vacant_.back();
  if (!vacant_.empty()) vacant_.pop_back();
  known.state = state;
  known.epoch = epoch_;
  known.pin = Ref<>::New(object);
  objects_[object] = &known;
  RecentOf(object) = {object, &known};
  knows_ordered_dicts_ |= PyDict_Check(object) && PyODict_Check(object);
  if (state == Known::State::kSource) return known;
  if (Py_TYPE(object)->tp_finalize != nullptr) [[unlikely]]
    WatchMade(object);
  if (MayHoldTensors(object)) containers_.push_back(&known);
  return known;
}

void Recorder::Forget(PyObject* object) {
  objects_.erase(object);
  if (!open_iterators_.empty()) open_iterators_.erase(object);
  RecentOf(object) = Recent();
}

void Recorder::RegisterTensor(PyObject* object, SourceId id) {
  const at::Tensor& tensor = TensorOf(object);
  AtenRecorder::KnownTensor* known = aten_.Find(tensor);
  if (known == nullptr) {
    if (!IsExactTensor(object)) throw Break{Reason::tensor_subclass, Py_TYPE(object)->tp_name};
    if (tensor.is_nested()) throw Break{Reason::nested_tensor, ""};
    aten_.AddSource(tensor, id);
    guards_.Tensor(id, TensorRead(), Here());
    if (EndRunsCode(object)) WatchSource(id);
  } else if (known->source.valid() && known->source != id) {
    guards_.SameObject(known->source, id, true, Here());
  }
}

Shadow Recorder::FromSource(SourceId id, PyObject* object, bool pinned) {
  if (pinned_.size() <= id.raw()) pinned_.resize(id.raw() + 16);
  pinned_[id.raw()] = pinned;
  if (IsScalar(object)) return Shadow{Shadow::Kind::kSource, id.raw()};
  if (IsTensor(object)) {
    RegisterTensor(object, id);
    return Shadow();
  }
  if (PyTuple_CheckExact(object) && IsConstantTuple(object)) [[unlikely]] {
    // There is one of no items: its value says which object it is.
    PyTuple_GET_SIZE(object) == 0 ? guards_.Value(id, Here()) : guards_.Identity(id, Here());
    return Shadow();
  }
  if (Known* known = Find(object)) {
    // The same object by another path: replay reaches it by the first one, or has it as a constant.
    if (known->state != Known::State::kSource) {
      if (IsIdentityKind(object)) guards_.Identity(id, Here());
      if (PyDict_Check(object)) RefuseWrittenDict(object);  // of globals
    } else if (known->source != id) {
      if (known->pinned && pinned) {
        // The steps before the last one lead to the same objects always; the last may lead elsewhere, either of them.
        guards_.Identity(known->source, Here());
        guards_.Identity(id, Here());
      } else {
        guards_.SameObject(known->source, id, true, Here());
      }
    }
    return Shadow();
  }
  Known& known = AddFresh(object, Known::State::kSource);
  known.source = id;
  known.pinned = pinned;
  // Where a module or class holds it, it does not end (object_end.h).
  if (EndRunsCode(object) && !(pinned && IsIdentityKind(object))) [[unlikely]]
    WatchSource(id);
  if (PyIter_Check(object)) MeetIterator(object, id);
  return Shadow();
}

// A tuple that a path led to before is both from now on: it is the very object, so either description is right. One that
// is met by a path later is a constant still (FromSource).
void Recorder::MeetConstant(PyObject* tuple) {
  if (PyTuple_GET_SIZE(tuple) == 0 || !code_tuples_.try_emplace(tuple, Ref<>::New(tuple)).second) return;
  if (const SourceId source = SourceOf(tuple); source.valid()) guards_.Identity(source, Here());
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    if (PyObject* item = PyTuple_GET_ITEM(tuple, i); PyTuple_CheckExact(item)) MeetConstant(item);
  }
}

bool Recorder::IsConstantTuple(PyObject* object) const {
  if (!PyTuple_CheckExact(object)) return false;
  return PyTuple_GET_SIZE(object) == 0 || (!code_tuples_.empty() && code_tuples_.contains(object));
}

void Recorder::AdoptPinned(PyObject* object, const std::string& text) {
  if (IsScalar(object) || IsConstantTuple(object)) return;
  if (Known* known = Find(object)) {
    // The same object is known by a path that may lead elsewhere at replay; here it is a constant.
    if (known->state == Known::State::kSource && guards_.accessor(known->source) != Accessor::kPinned) {
      guards_.Identity(known->source, Here());
    }
    return;
  }
  FromSource(guards_.Pinned(object, text.empty() ? CallableName(object) : text), object, true);
}

// inspect.signature is not watched (builtins.cc): what it gives, and what is in that, was made by it.
static bool IsPartOfSignature(PyObject* object) {
  const PyTypeObject* type = Py_TYPE(object);
  return type == &PyDictProxy_Type || type == Objects().signature || type == Objects().signature_part;
}

// What is reached through guarded reads only and is a constant then: what is read of it is guarded by itself, or cannot
// change, or is in it (a tuple, a method).
static bool IsConstant(PyObject* object) {
  if (PyCFunction_Check(object)) return IsModuleFunction(object);
  if (PyTuple_Check(object)) return Py_TYPE(object)->tp_dictoffset == 0;
  return PyFunction_Check(object) || PyMethod_Check(object) || PyType_Check(object) || PyModule_Check(object) ||
         PyCode_Check(object) || Py_TYPE(object) == &PyMethodDescr_Type || Py_TYPE(object) == &PyWrapperDescr_Type;
}

// What C code has just made is held by nobody else. Anything else that is met here for the first time existed before, and
// no read says where it is to be found.
Shadow Recorder::AdoptResult(PyObject* object) {
  if (IsScalar(object) || IsTensor(object) || Find(object) != nullptr) return AdoptMade(object);
  const bool is_new = Py_REFCNT(object) == 1 || IsConstant(object) || IsGenerator(object) || IsPartOfSignature(object);
  if (is_new) return AdoptMade(object);
  if (!PyObject_TypeCheck(object, Objects().enumeration)) {
    throw Break{Reason::object_from_nowhere, Py_TYPE(object)->tp_name};
  }
  AdoptPinned(object, Py_TYPE(object)->tp_name);
  return Shadow();
}

// The object is the trace's own. `all`: so is what it holds, whoever else has that.
Shadow Recorder::AdoptMade(PyObject* object, bool all) {
  const auto adopt = [&](PyObject* item) { all ? AdoptMade(item, true) : AdoptResult(item); };
  if (IsScalar(object)) return Shadow();
  if (IsTensor(object)) {
    if (aten_.Find(TensorOf(object)) == nullptr) throw Break{Reason::tensor_from_nowhere, ""};
    return Shadow();
  }
  if (Find(object) != nullptr || IsConstantTuple(object)) return Shadow();
  if (PyTuple_Check(object)) {
    AddFresh(object);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) adopt(PyTuple_GET_ITEM(object, i));
  } else if (PyList_Check(object)) {
    AddFresh(object);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(object); ++i) adopt(PyList_GET_ITEM(object, i));
  } else if (PyDict_Check(object)) {
    AddFresh(object);
    Py_ssize_t at = 0;
    PyObject *key, *value;
    while (PyDict_Next(object, &at, &key, &value)) {
      adopt(key);
      adopt(value);
    }
  } else if (PyAnySet_Check(object)) {
    AddFresh(object);
    Py_ssize_t at = 0;
    PyObject* item;
    Py_hash_t hash;
    while (_PySet_NextEntry(object, &at, &item, &hash)) adopt(item);
  } else if (PyMethod_Check(object)) {
    AddFresh(object);
    adopt(PyMethod_GET_SELF(object));
  } else if (PyFunction_Check(object)) {
    AdoptPinned(object);  // reached through guarded reads only, which do not say what its code is
  } else if (IsIdentityKind(object)) {
    AddFresh(object);  // types and modules, reached likewise: constants; and new ones of the other kinds
  } else {
    AddFresh(object, PySlice_Check(object) || Py_TYPE(object)->tp_flags & Py_TPFLAGS_HEAPTYPE ? Known::State::kFresh
                                                                                              : Known::State::kOpaque);
  }
  return Shadow();
}

// What a method binds, of Python code or of C: known by the path to the method, if the trace has not bound it itself.
Shadow Recorder::MeetSelf(PyObject* method, PyObject* self) {
  const Known* known = Find(method);
  if (known != nullptr && known->state == Known::State::kSource) {
    const SourceId source = guards_.Child(known->source, Accessor::kSelf, 0, nullptr, self);
    return FromSource(source, self, known->pinned);
  }
  return AdoptResult(self);
}

void Recorder::Touch(PyObject* object) {
  Known* known = Find(object);
  if (known == nullptr || known->state != Known::State::kSource || known->touched) return;
  known->touched = true;
  if (PySlice_Check(object) || PyRange_Check(object)) {
    return guards_.Value(known->source, Here());  // its bounds are all there is to it
  }
  if (known->pinned || (IsIdentityKind(object) && !IsExchangeable(object))) {
    Fix(*known);
    if (PyType_Check(object)) return TouchMetaclass(reinterpret_cast<PyTypeObject*>(object));
    // The very object of a builtin type has no more to say.
    if (PyFunction_Check(object) || PyModule_CheckExact(object) ||
        (Py_TYPE(object)->tp_flags & Py_TPFLAGS_IMMUTABLETYPE)) {
      return;
    }
  }
  guards_.Type(known->source, Here());
}

// What is done with a class asks the class of the class: isinstance, truth, ==, len.
void Recorder::TouchMetaclass(PyTypeObject* type) {
  PyTypeObject* const meta = Py_TYPE(type);
  if ((meta->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0) guards_.Class(meta, Here());
}

void Recorder::Fix(Known& known) {
  guards_.Identity(known.source, Here());
  known.pinned = true;
  pinned_[known.source.raw()] = true;
}

void Recorder::ForceAll(const Event& e) {
  for (int i = 0; i < e.n; ++i) {
    if (e.in[i] == nullptr) continue;
    Force(e.in[i], e.shadows[i]);
    Touch(e.in[i]);
  }
}

// Containers may hold each other, and themselves.
struct Recorder::DeepWalk {
  bool tensors_allowed;
  int depth = 0;
  absl::InlinedVector<PyObject*, 8> first;  // most hold a few
  absl::flat_hash_set<PyObject*> others;
  bool Visit(PyObject* container) {
    if (std::find(first.begin(), first.end(), container) != first.end()) return false;
    if (first.size() == 8) return others.insert(container).second;
    first.push_back(container);
    return true;
  }
};

void Recorder::ForceDeep(PyObject* object, Shadow shadow, bool tensors_allowed) {
  if (object != nullptr && IsScalar(object)) return Force(object, shadow);
  DeepWalk walk{tensors_allowed, 0, {}, {}};
  ForceDeep(object, shadow, &walk);
}

void Recorder::ForceArguments(const Call& call, size_t from, bool tensors_allowed) {
  for (size_t i = from; i < call.args.size(); ++i) ForceDeep(call.args[i], call.shadows[i], tensors_allowed);
}

void Recorder::ForceDeep(PyObject* object, Shadow shadow, DeepWalk* walk) {
  constexpr int kDeepest = 200;
  if (object == nullptr) return;
  Force(object, shadow);
  if (IsScalar(object)) return;
  if (IsTensor(object)) {
    if (!walk->tensors_allowed) throw Break{Reason::unknown_operation, "a tensor in plain Python code"};
    if (!IsExactTensor(object)) throw Break{Reason::tensor_subclass, Py_TYPE(object)->tp_name};
    return;
  }
  RefuseForeignOperator(object);
  bool is_row = PyTuple_Check(object) || PyList_Check(object);
  if (is_row || PyDict_Check(object)) {
    if (!walk->Visit(object)) return;
    if (++walk->depth > kDeepest) throw Break{Reason::unknown_operation, "an object nested very deeply"};
  }
  if (is_row) {
    AdoptElements(object);
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      ForceDeep(PySequence_Fast_GET_ITEM(object, i), ElementShadow(object, i), walk);
    }
    --walk->depth;
  } else if (PyDict_Check(object)) {
    AdoptElements(object);
    Py_ssize_t at = 0;
    PyObject *key, *value;
    while (PyDict_Next(object, &at, &key, &value)) ForceDeep(value, Shadow(), walk);
    --walk->depth;
  } else {
    if (PyAnySet_Check(object)) {
      AdoptElements(object);
      ReadOrder(object);
    }
    if (PySlice_Check(object)) ForceItems(object);
    if (!open_iterators_.empty()) CloseIterator(object);
    if (IsForeign(object)) {
      throw Break{Reason::unknown_operation, std::string("an object of type ") + Py_TYPE(object)->tp_name};
    }
    Touch(object);
  }
}

Shadow Recorder::ElementShadow(PyObject* container, Py_ssize_t index) {
  Known* known = Find(container);
  if (known == nullptr || index < 0 || static_cast<size_t>(index) >= known->items.size()) return Shadow();
  return known->items[static_cast<size_t>(index)];
}

// Of a key: whether it is made of more than plain values, which the guard of the dict's keys compares.
static bool HoldsObjects(PyObject* key, int depth = 0) {
  constexpr int kDeepest = 100;
  if (Recorder::IsScalar(key)) return false;
  if (PyFrozenSet_Check(key)) {
    Py_ssize_t at = 0;
    PyObject* element;
    Py_hash_t hash;
    while (_PySet_NextEntry(key, &at, &element, &hash)) {
      if (HoldsObjects(element, depth + 1)) return true;
    }
    return false;
  }
  if (!PyTuple_Check(key) || depth > kDeepest) return depth > 0;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); ++i) {
    if (HoldsObjects(PyTuple_GET_ITEM(key, i), depth + 1)) return true;
  }
  return false;
}

void Recorder::AdoptElements(PyObject* container) {
  Known* known = Find(container);
  if (known == nullptr || known->state != Known::State::kSource || known->adopted) return;
  if (PyDict_Check(container)) RefuseWrittenDict(container);
  known->adopted = true;
  known->touched = true;
  bool pinned = known->pinned;
  SourceId source = known->source;
  if (pinned) guards_.Identity(source, Here());
  guards_.Type(source, Here());
  if (PyTuple_Check(container) || PyList_Check(container)) {
    guards_.Length(source, Here());
    Py_ssize_t n = PySequence_Fast_GET_SIZE(container);
    // What a subclass of list does to its items is not always seen: its numbers are fixed now.
    const bool keeps = PyTuple_Check(container) || PyList_CheckExact(container);
    absl::InlinedVector<Shadow, 2> items(keeps ? static_cast<size_t>(n) : 0);
    for (Py_ssize_t i = 0; i < n; ++i) {
      PyObject* item = PySequence_Fast_GET_ITEM(container, i);
      Shadow shadow = FromSource(guards_.Child(source, Accessor::kItem, i, nullptr, item), item, pinned);
      if (keeps)
        items[static_cast<size_t>(i)] = shadow;
      else
        Force(item, shadow);
    }
    if (keeps) Find(container)->items = std::move(items);
  } else if (PyDict_Check(container)) {
    guards_.Keys(source, Here());
    Py_ssize_t at = 0, i = 0;
    PyObject *key, *value;
    while (PyDict_Next(container, &at, &key, &value)) {
      if (!IsScalar(key)) {
        // A key is an object the program can get at (iteration): known by its place. So is what a tuple is made of: a
        // look-up by another tuple compares them.
        FromSource(guards_.Child(source, Accessor::kDictKeyAt, i, nullptr, key), key, pinned);
        Touch(key);
        if (HoldsObjects(key)) ForceDeep(key, Shadow(), true);
      }
      Force(value, FromSource(guards_.Child(source, Accessor::kKey, 0, key, value), value, pinned));
      ++i;
    }
  } else if (PyFrozenSet_CheckExact(container)) {
    guards_.Value(source, Here());
  } else if (PySet_CheckExact(container)) {
    Py_ssize_t at = 0;
    PyObject* element;
    Py_hash_t hash;
    while (_PySet_NextEntry(container, &at, &element, &hash)) {
      if (!IsScalar(element)) throw Break{Reason::set_from_outside, ""};
    }
    guards_.Elements(source, Here());
  } else if (PyAnySet_Check(container)) {
    throw Break{Reason::set_from_outside, ""};
  }
}

void Recorder::MarkMutated(PyObject* object) {
  if (Known* known = Find(object)) {
    if (!known->items.empty() && PyList_Check(object)) [[unlikely]]
      ForceItems(object);  // they are known by their places
    if (!open_iterators_.empty()) [[unlikely]]
      CloseIterator(object);
    known->MutatedIn(epoch_);
  }
}

// It takes from other iterators in turn. Where the segment is cut in the middle of that, none is what it was.
void Recorder::MarkAdvanced(PyObject* object) {
  Known* known = PyIter_Check(object) ? Find(object) : nullptr;
  if (known == nullptr || known->mutated_epoch == epoch_) return;
  MarkMutated(object);
  if (Py_TYPE(object)->tp_traverse == nullptr) return;
  auto visit = [](PyObject* part, void* recorder) {
    static_cast<Recorder*>(recorder)->MarkAdvanced(part);
    return 0;
  };
  Py_TYPE(object)->tp_traverse(object, visit, this);
}

void Recorder::Own(PyObject* container) {
  Known* known = Find(container);
  if (known == nullptr) throw Break{Reason::unknown_mutation, Py_TYPE(container)->tp_name};
  if (known->state == Known::State::kSource) {
    if (guards_.accessor(known->source) == Accessor::kDict) {
      throw Break{Reason::unknown_mutation, "an object's __dict__ is written to"};
    }
    if (PyDict_Check(container)) {
      // What was written by a name (a global, a buffer) is kept apart.
      if (known->written != nullptr && PyDict_CheckExact(container)) {
        throw Break{Reason::unknown_operation, "a dict whose object was written to"};
      }
      has_mutated_dicts_ = true;
    }
    AdoptElements(container);
    if (!known->mutated) mutated_sources_.push_back(container);
  }
  MarkMutated(container);
}

bool Recorder::IsMutatedDict(PyObject* dict) {
  const Known* known = dict != nullptr ? Find(dict) : nullptr;
  return known != nullptr && known->state == Known::State::kSource && known->mutated;
}

void Recorder::ThrowMutatedDict() {
  throw Break{Reason::unknown_operation, "a name in a dict that was written to as a dict"};
}

SourceId Recorder::SourceOf(PyObject* object) {
  if (IsTensor(object)) {
    AtenRecorder::KnownTensor* known = aten_.Find(TensorOf(object));
    return known ? known->source : SourceId();
  }
  Known* known = Find(object);
  return known && known->state == Known::State::kSource ? known->source : SourceId();
}

void Recorder::ReadTensor(PyObject* object, bool sizes, bool strides) {
  AtenRecorder::KnownTensor* known = aten_.Find(TensorOf(object));
  if (known == nullptr) throw Break{Reason::tensor_from_nowhere, ""};
  if (known->strides_read || (known->metadata_read && !strides)) return;
  known->metadata_read = true;
  known->strides_read = strides;
  TensorRead read;
  read.sizes = sizes || strides;
  read.strides = strides;
  if (known->source.valid()) {
    guards_.Tensor(known->source, read, Here());
    return;
  }
  if (!known->value.valid()) throw Break{Reason::data_dependent_size, ""};
  FixValue(known->value, read, strides ? &strides_read_ : &sizes_read_);
}

void Recorder::ReadRank(PyObject* object) {
  AtenRecorder::KnownTensor* known = aten_.Find(TensorOf(object));
  if (known == nullptr) throw Break{Reason::tensor_from_nowhere, ""};
  if (known->value.valid()) FixRank(known->value);
}

void Recorder::ReadAllTensors(PyObject* object, bool strides) {
  if (object == nullptr) return;
  if (IsTensor(object)) {
    ReadTensor(object, true, strides);
  } else if (PyTuple_Check(object) || PyList_Check(object)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      ReadAllTensors(PySequence_Fast_GET_ITEM(object, i), strides);
    }
  }
}

Shadow* Recorder::WrittenShadow(PyObject* owner, PyObject* name) {
  Known* known = Find(owner);
  if (known == nullptr || !known->written) return nullptr;
  // Names are interned, as those in code are; one that was computed may not be.
  const bool is_computed = PyUnicode_CheckExact(name) && !PyUnicode_CHECK_INTERNED(name);
  auto it = known->written->find(is_computed ? Interned(name).get() : name);
  return it == known->written->end() ? nullptr : &it->second;
}

void Recorder::SetWritten(PyObject* owner, PyObject* name, Shadow shadow) {
  Known* known = Find(owner);
  const bool is_computed = PyUnicode_CheckExact(name) && !PyUnicode_CHECK_INTERNED(name);
  if (is_computed) computed_names_.push_back(Interned(name));
  if (!known->written) known->written = std::make_unique<absl::flat_hash_map<PyObject*, Shadow>>();
  (*known->written)[is_computed ? computed_names_.back().get() : name] = shadow;
}

SourceId Recorder::SourceOrPin(PyObject* object) {
  SourceId source = SourceOf(object);
  if (source.valid()) return source;
  FromSource(guards_.Pinned(object, Py_TYPE(object)->tp_name), object, true);
  source = SourceOf(object);
  return source.valid() ? source : guards_.Pinned(object, Py_TYPE(object)->tp_name);
}

void Recorder::AddEffect(Effect::Kind kind, PyObject* target, const std::string& name, std::vector<PyObject*> values,
                         std::vector<Shadow> shadows) {
  if (undo_) undo_->Before(kind, target, name);
  WatchReplaced(kind, target, name, values.empty() ? nullptr : values[0]);
  PendingEffect effect;
  effect.kind = kind;
  effect.target = Ref<>::New(target);
  effect.name = name;
  for (PyObject* value : values) effect.values.push_back(Ref<>::New(value));
  effect.shadows = std::move(shadows);
  effect.nodes_before = node_count();
  effect.at = PositionOf(frames_.back()->code, frames_.back()->offset);
  if (watches_ends()) {
    auto count = [this](PyObject* held) {
      if (auto it = watched_.find(held); it != watched_.end()) ++it->second;
    };
    count(target);
    for (PyObject* value : values) count(value);
  }
  effects_.push_back(std::move(effect));
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

void Recorder::ReadState() {
  state_now_ = AtenRecorder::StateNow();
  backends_now_ = WorldState::BackendsNow();
}

void Recorder::StartInstruction() {
  ReadState();
  SetMark(base(), NoteOf(base()));
}

// Nothing is recorded between the start of an instruction and its first event. One that has several leaves its operands
// such that it may as well begin with a later one.
void Recorder::MarkInstruction(FrameState& f, FrameNote& note) {
  if (!note.rebuildable) return;
  note.marked = f.handlers == 0;
  if (note.marked) SetMark(f, note);
}

int Recorder::base_offset() const { return NoteOf(*frames_.front()).mark.offset; }

void Recorder::ContinueIn(FrameState& caller, FrameNote& note, const FrameState& left, FrameEnd end, PyObject* result,
                          Shadow shadow) {
  const Position at = PositionAt(caller.code, caller.offset);
  frames_.assign(1, &caller);
  callers_.push_back(
      {Ref<>::New(reinterpret_cast<PyObject*>(caller.code)), Ref<>::New(caller.function->func_globals), caller.offset});
  entry_text_ += " in " + ToString(at);
  bound_at_entry_.clear();
  has_pending_ = false;
  note.Join();
  note.in_event = false;
  caller.traced = true;
  if (!left.is_generator) {
    const int below = CallSiteOf(caller).below;
    RootShadows(caller, below);
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

bool Recorder::expects_frame(FrameState& f) const {
  const FrameState* caller = frames_.back();
  const FrameNote* note = static_cast<const FrameNote*>(caller->tracer_data);
  if (!note->in_event || note->opaque_operation) return false;
  PyObject* const name = f.function != nullptr ? f.function->func_name : nullptr;
  constexpr Py_ssize_t kLength = std::char_traits<char>::length("__del__");
  if (name != nullptr && PyUnicode_Check(name) && PyUnicode_GET_LENGTH(name) == kLength &&
      PyUnicode_CompareWithASCIIString(name, "__del__") == 0) {
    return false;
  }
  bool direct = has_pending_ && pending_.function == reinterpret_cast<PyObject*>(f.function);
  if (!direct && f.code->co_argcount > 0 && f.nlocalsplus > 0 && f.objects[0] != nullptr &&
      PyObject_TypeCheck(f.objects[0], Objects().weak_reference)) {
    return false;  // a weak reference's callback
  }
  return true;
}

bool Recorder::observes_inner_frames() const {
  return watches_ends() || SelfChecking() || Armed(Fault::kAbort) || Armed(Fault::kExit);
}

void Recorder::EnterInlined(FrameState& f, FrameNote& note) {
  note.Join();
  f.traced = true;
  const FrameState& caller = *frames_.back();
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
  } else {
    for (int i = 0; i < f.nlocalsplus; ++i) {
      if (f.objects[i] != nullptr && KindOfSlot(f.code, i) != SlotKind::kFree && !PyCell_Check(f.objects[i])) {
        AdoptResult(f.objects[i]);
      }
    }
  }
  has_pending_ = false;
  if (f.code == Objects().module_call_code && f.objects[0] != nullptr) {
    SharedText& klass = class_names_[Py_TYPE(f.objects[0])];
    if (klass.empty()) klass = Py_TYPE(f.objects[0])->tp_name;
    note.module = Places::Module{SourceOf(f.objects[0]), klass};
  }
  note.rebuildable = NoteOf(caller).marked && CallsStraight(caller, f);
}

// What the function runs. A class says which function it gives (a method, a property, a slot), and not what was assigned
// to its code; an open one (IsOpen) is known by its code alone.
void Recorder::FixCode(PyObject* function) {
  if (Find(function) == nullptr) {
    PyObject*& recent = fixed_code_[(reinterpret_cast<uintptr_t>(function) >> 4) % fixed_code_.size()];
    if (recent != function && !guards_.IsPinned(function)) guards_.Pinned(function, CallableName(function));
    recent = function;
  } else if (IsOpen(function))
    guards_.Code(SourceOf(function), Here());
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
    if (!found) Force(pending_.args[positional + k], shadow);
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
      if (i < argcount) f.shadows[i] = ElementShadow(holder, i - argcount + PyTuple_GET_SIZE(holder));
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

void Recorder::LeaveInlined(FrameState& f, FrameNote& note, FrameEnd end, PyObject* value, Shadow shadow) {
  frames_.pop_back();
  note.inlined = false;
  FrameNote& caller = *static_cast<FrameNote*>(frames_.back()->tracer_data);
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
    Force(value, shadow);
    caller.returned = value;
    caller.returned_shadow = Shadow();
    return;
  }
  if (end == FrameEnd::kReturned && value != nullptr) {
    if (!note.direct) {
      Force(value, shadow);
      shadow = Shadow();
    }
    caller.returned = value;
    caller.returned_shadow = shadow;
  }
}

void Recorder::Raised(FrameState&, FrameNote& note, const Event& e) {
  if (aten_.pending) return;
  if (note.expect.kind == Expect::Kind::kTorch) {
    aten_.pending = Break{Reason::exception_from_op, ""};
  } else if (note.own_effect || e.op == Op::kStoreAttr || e.op == Op::kDeleteAttr || e.op == Op::kStoreSubscr ||
             e.op == Op::kDeleteSubscr) {
    // Before has taken the change for done; it was not, or only in part.
    aten_.pending = Break{Reason::unknown_mutation, "it raised an exception"};
  }
}

// The dict of a function's globals, named after its module; that of the entry frame is G.
SourceId Recorder::GlobalsOf(FrameState& f) {
  PyObject* globals = f.function->func_globals;
  if (globals == entry_globals_.get()) return guards_.Pinned(globals, "G");
  PyObject* name = PyDict_GetItemString(globals, "__name__");
  PyObject* modules = PyImport_GetModuleDict();
  PyObject* module = name && PyUnicode_Check(name) ? PyDict_GetItemWithError(modules, name) : nullptr;
  if (module != nullptr && PyModule_CheckExact(module) && PyModule_GetDict(module) == globals) {
    return guards_.Pinned(module, PyUnicode_AsUTF8(name));
  }
  PyErr_Clear();
  return guards_.Pinned(globals, name && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : "?");
}

PyObject* Recorder::ReadGlobal(FrameState& f, FrameNote& note, PyObject* name, Shadow* out) {
  PyObject* value = PyDict_GetItemWithError(f.function->func_globals, name);
  if (value == nullptr) return nullptr;
  Event read;
  read.op = Op::kLoadGlobal;
  read.name = name;
  LoadGlobal(f, note, read, value, out);
  return value;
}

void Recorder::LoadGlobal(FrameState& f, FrameNote&, const Event& e, PyObject* result, Shadow* out) {
  PyObject* globals = f.function->func_globals;
  if (Shadow* written = WrittenShadow(globals, e.name)) {
    *out = *written;
    return;
  }
  PyObject* builtins = e.arg == 0 ? nullptr : f.function->func_builtins;
  RefuseMutatedDict(globals);
  if (builtins != nullptr) RefuseMutatedDict(builtins);
  SourceId& read = globals_read_[{globals, builtins, e.name}];
  if (read.valid() && guards_.seen(read) == result) {
    if (IsScalar(result)) *out = Shadow{Shadow::Kind::kSource, read.raw()};
    return;
  }
  SourceId dict = GlobalsOf(f);
  if (e.arg == 0) {
    bool by_module = PyModule_Check(guards_.seen(dict));
    read = guards_.Child(dict, by_module ? Accessor::kAttr : Accessor::kGlobal, 0, e.name, result);
  } else {
    guards_.Absent(dict, e.name, Here());
    read = guards_.Child(guards_.Pinned(builtins, "B"), Accessor::kGlobal, 0, e.name, result);
  }
  *out = FromSource(read, result, true);
}

Shadow Recorder::LoadDeref(FrameState& f, int slot, PyObject* result) {
  if (f.shadows[slot].kind == Shadow::Kind::kCell) return cells_[f.shadows[slot].id];
  PyObject* cell = f.objects[slot];
  MeetCell(f, slot);
  Known* known = Find(cell);
  if (known != nullptr && (!known->items.empty() || known->state == Known::State::kFresh)) {
    return known->items.empty() ? Shadow() : known->items[0];
  }
  bool is_free = KindOfSlot(f.code, slot) == SlotKind::kFree;
  if (is_base(f)) {
    SourceId id = guards_.Cell(FrameSlot(level(), slot), PyUnicode_AsUTF8(SlotName(f.code, slot)), result);
    return FromSource(id, result, false);
  }
  if (!is_free) throw Break{Reason::unknown_operation, "a cell"};
  // The function whose closure the cell was met in: this one may be the trace's own.
  const SourceId cell_source = known != nullptr ? known->source : CellSource(f, slot);
  const SourceId closure = cell_source.valid() ? guards_.parent(cell_source) : SourceId();
  const SourceId function = closure.valid() ? guards_.parent(closure) : SourceId();
  if (!function.valid() || guards_.accessor(closure) != Accessor::kAttr) {
    throw Break{Reason::unknown_operation, "a cell"};
  }
  const Source step = guards_.Describe(cell_source);
  return FromSource(guards_.Child(function, Accessor::kClosure, step.index, nullptr, result), result,
                    IsFixedFunction(f));
}

// What super() without arguments takes its class from.
void Recorder::ReadClassCell(FrameState& f) {
  static PyObject* const name = InternedName("__class__");
  for (int slot = 0; slot < f.nlocalsplus; ++slot) {
    PyObject* cell = f.objects[slot];
    if (KindOfSlot(f.code, slot) != SlotKind::kFree || SlotName(f.code, slot) != name) continue;
    if (PyObject* content = cell != nullptr ? PyCell_GET(cell) : nullptr; content != nullptr) {
      Force(content, LoadDeref(f, slot, content));
      Touch(content);
    }
  }
}

// Whether a frame above the entry frame runs a function that is known by identity, and so are its cells and defaults.
bool Recorder::IsFixedFunction(const FrameState& f) {
  const SourceId source = SourceOf(reinterpret_cast<PyObject*>(f.function));
  return !source.valid() || pinned_[source.raw()];
}

// Which of the free variables the slot is.
static int FreeIndex(const FrameState& f, int slot) {
  int index = 0;
  for (int i = 0; i < slot; ++i) index += KindOfSlot(f.code, i) == SlotKind::kFree;
  return index;
}

// A variable of a function that is known by its code only: where its cell is one that was met elsewhere, that is guarded.
void Recorder::MeetCell(FrameState& f, int slot) {
  if (is_base(f) || KindOfSlot(f.code, slot) != SlotKind::kFree) return;
  PyObject* const cell = f.objects[slot];
  if (!IsFixedFunction(f)) {
    has_open_cells_ = true;
    FromSource(CellSource(f, slot), cell, false);
  } else if (Find(reinterpret_cast<PyObject*>(f.function)) == nullptr ||
             SourceOf(reinterpret_cast<PyObject*>(f.function)).valid()) {
    // Which cell it is follows from the function; whether an open function has the same one does not.
    fixed_cells_.try_emplace(cell, FixedCell{reinterpret_cast<PyObject*>(f.function), FreeIndex(f, slot)});
    if (has_open_cells_ && SourceOf(cell).valid()) FromSource(CellSource(f, slot), cell, true);
  }
}

// The cell itself of a variable that existed before: functions share it. That of a free variable belongs to the
// function, that of the base frame's own lies in its slot.
SourceId Recorder::CellSource(FrameState& f, int slot) {
  if (is_base(f) && KindOfSlot(f.code, slot) != SlotKind::kFree) {
    return guards_.Local(FrameSlot(level(), slot), PyUnicode_AsUTF8(SlotName(f.code, slot)), f.objects[slot]);
  }
  PyObject* function = reinterpret_cast<PyObject*>(f.function);
  SourceId source = is_base(f) ? guards_.Function(function, FrameSlot(level(), 0)) : SourceOf(function);
  // The trace has made it of a tuple of cells that it found on the stack.
  if (!source.valid() && Find(function) != nullptr) throw Break{Reason::unknown_operation, "a cell"};
  // Without a source it was reached through a class or a constant.
  if (!source.valid()) source = guards_.Pinned(function, PyUnicode_AsUTF8(f.function->func_name));
  return ClosureCell(source, function, FreeIndex(f, slot));
}

SourceId Recorder::ClosureCell(SourceId source, PyObject* function, int index) {
  static PyObject* const closure_name = InternedName("__closure__");
  PyObject* const closure = PyFunction_GET_CLOSURE(function);
  const SourceId cells = guards_.Child(source, Accessor::kAttr, 0, closure_name, closure);
  return guards_.Child(cells, Accessor::kItem, index, nullptr, PyTuple_GET_ITEM(closure, index));
}

// Others may get at the cell from now on: it is known by its identity.
void Recorder::ShareCell(FrameState& f, int slot) {
  Shadow& shadow = f.shadows[slot];
  if (shadow.kind != Shadow::Kind::kCell) return;
  AddFresh(f.objects[slot]).items.assign(1, cells_[shadow.id]);
  shadow = Shadow();
}

void Recorder::StoreDeref(FrameState& f, const Event& e) {
  if (f.shadows[e.arg].kind == Shadow::Kind::kCell) return;  // After
  PyObject* cell = f.objects[e.arg];
  Known* known = Find(cell);
  if (known != nullptr && known->state == Known::State::kFresh) {
    known->items.assign(1, e.shadows[0]);
    MarkMutated(cell);
    return;
  }
  if (KindOfSlot(f.code, e.arg) != SlotKind::kFree && !began_at_break_) {
    // The variable of a frame that has just begun: nobody else has its cell. From now on the trace knows the content.
    AddFresh(cell).items.assign(1, e.shadows[0]);
    base_cells_.push_back(cell);
    return;
  }
  const bool is_fixed = !is_base(f) && IsFixedFunction(f);
  has_open_cells_ |= !is_base(f) && !is_fixed;
  FromSource(CellSource(f, e.arg), cell, is_fixed);
  AddEffect(Effect::Kind::kSetCell, cell, PyUnicode_AsUTF8(SlotName(f.code, e.arg)), {e.in[0]}, {e.shadows[0]});
  Find(cell)->items.assign(1, e.shadows[0]);
}

constexpr uint64_t SetOf(std::initializer_list<Op> ops) {
  uint64_t set = 0;
  for (Op op : ops) set |= uint64_t{1} << static_cast<int>(op);
  return set;
}
static_assert(static_cast<int>(Op::kOther) < 64);

// What asks its operands for something.
constexpr uint64_t kOperators =
    SetOf({Op::kUnary, Op::kBinary, Op::kCompare, Op::kContains, Op::kSubscr, Op::kStoreSubscr, Op::kDeleteSubscr,
           Op::kGetIter, Op::kUnpack, Op::kUnpackEx, Op::kTruth, Op::kBeforeWith, Op::kFormatValue, Op::kGetLen,
           Op::kListExtend, Op::kSetUpdate, Op::kDictUpdate, Op::kDictMerge});

void Recorder::RefuseForeignKey(PyObject* key, int depth) {
  constexpr int kDeepest = 100;
  if (IsScalar(key) || IsTensor(key)) return;
  if (depth > kDeepest) throw Break{Reason::unknown_operation, "an object nested very deeply"};
  RefuseForeignOperator(key);
  if (PySlice_Check(key)) {
    const auto* slice = reinterpret_cast<PySliceObject*>(key);
    for (PyObject* part : {slice->start, slice->stop, slice->step}) RefuseForeignOperator(part);
  } else if (PyTuple_Check(key) || PyList_Check(key)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(key); ++i) {
      RefuseForeignKey(PySequence_Fast_GET_ITEM(key, i), depth + 1);
    }
  }
}

// list[int], Box[float]: what a class is subscripted by is Python code, or code of a builtin class that only keeps it.
static bool IsKnownSubscript(PyTypeObject* type) {
  static PyObject* const name = InternedName("__class_getitem__");
  PyObject* const found = _PyType_Lookup(type, name);
  if (found == nullptr || Py_TYPE(found) == &PyClassMethodDescr_Type) return true;
  if (Py_TYPE(found) != &PyClassMethod_Type && Py_TYPE(found) != &PyStaticMethod_Type) return PyFunction_Check(found);
  const Ref<> function = Must(PyObject_GetAttrString(found, "__func__"));
  return PyFunction_Check(function.get()) || function.get() == reinterpret_cast<PyObject*>(&Py_GenericAliasType);
}

// An operator on an object of an extension type that existed before: what it reads cannot be guarded.
void Recorder::RefuseForeign(const Event& e) {
  if (e.op == Op::kGetIter && (IsMetIterator(e.in[0]) || PyGen_CheckExact(e.in[0]))) return;
  for (int i = 0; i < e.n; ++i) {
    if (e.in[i] != nullptr && !IsScalar(e.in[i]) && !IsTensor(e.in[i]) && IsForeign(e.in[i])) {
      const char* type = Py_TYPE(e.in[i])->tp_name;
      if (std::strncmp(type, "_thread.", 8) == 0) throw Break{Reason::done_once, "a lock is taken"};
      const char* what = e.op == Op::kBeforeWith ? "a with block of " : "an operator on ";
      throw Break{SortOf(type).value_or(Reason::unknown_operation), std::string(what) + type};
    }
  }
  switch (e.op) {
    case Op::kSubscr:
      if (PyType_Check(e.in[0]) && !IsKnownSubscript(reinterpret_cast<PyTypeObject*>(e.in[0]))) {
        ThrowForeignOperator(e.in[0]);
      }
      return RefuseForeignKey(e.in[1]);
    case Op::kStoreSubscr:
      return RefuseForeignKey(e.in[2]);
    case Op::kDeleteSubscr:
      return RefuseForeignKey(e.in[1]);
    case Op::kContains:
      return RefuseForeignKey(e.in[0]);
    default:
      return;
  }
}

// What C code looks up in the class of an object.
static const std::vector<PyObject*>& OperatorNames() {
  static const std::vector<PyObject*> names = [] {
    std::vector<PyObject*> all;
    for (const char* name : {"bool",    "len",     "length_hint", "contains", "iter",  "next",   "reversed", "getitem",
                             "setitem", "delitem", "missing",     "eq",       "ne",    "lt",     "le",       "gt",
                             "ge",      "hash",    "neg",         "pos",      "abs",   "invert", "int",      "float",
                             "complex", "index",   "bytes",       "round",    "trunc", "floor",  "ceil",     "str",
                             "repr",    "format",  "enter",       "exit",     "get",   "set",    "delete"}) {
      all.push_back(InternedName(absl::StrCat("__", name, "__").c_str()));
    }
    for (const char* name : {"__init__", "__instancecheck__", "__subclasscheck__"}) all.push_back(InternedName(name));
    for (const char* name : {"add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow", "lshift",
                             "rshift", "and", "xor", "or"}) {
      for (const char* side : {"", "r", "i"}) all.push_back(InternedName(absl::StrCat("__", side, name, "__").c_str()));
    }
    return all;
  }();
  return names;
}

// Python code comes as a frame. What a base in C has under the name is told of as that of the base; of a number or string
// it follows from the value, under any name. (pybind11's classes are extension types: IsForeign.)
static bool IsKnownOperator(PyTypeObject* type, PyObject* name, PyObject* found) {
  if (found == nullptr || found == Py_None || PyFunction_Check(found) || PyInstanceMethod_Check(found)) return true;
  if (Py_TYPE(found) != &PyWrapperDescr_Type && Py_TYPE(found) != &PyMethodDescr_Type) return false;
  constexpr unsigned long kValues = Py_TPFLAGS_LONG_SUBCLASS | Py_TPFLAGS_UNICODE_SUBCLASS | Py_TPFLAGS_BYTES_SUBCLASS;
  const bool is_value = (type->tp_flags & kValues) != 0 || PyType_IsSubtype(type, &PyFloat_Type) != 0;
  return PyType_IsSubtype(type, PyDescr_TYPE(found)) != 0 && (PyDescr_NAME(found) == name || is_value);
}

bool Recorder::HasForeignOperator(PyTypeObject* type) {
  struct Answer {
    PyTypeObject* type = nullptr;
    uint32_t version = 0;  // no other type has ever had it
    bool has_one = false;
  };
  static std::array<Answer, 256> answers;
  const uint32_t version = TypeVersion(type);
  Answer& answer = answers[(reinterpret_cast<uintptr_t>(type) >> 5) % answers.size()];
  if (answer.type == type && answer.version == version && version != 0) return answer.has_one;
  const auto& names = OperatorNames();
  const bool is_tensor = PyType_IsSubtype(type, Objects().tensor_base) != 0;
  const bool has_one = !is_tensor && std::any_of(names.begin(), names.end(), [type](PyObject* name) {
    return !IsKnownOperator(type, name, _PyType_Lookup(type, name));
  });
  answer = {type, version, has_one};
  return has_one;
}

void Recorder::ThrowForeignOperator(PyObject* object) {
  throw Break{Reason::unknown_operation, std::string("an operator in C of ") + Py_TYPE(object)->tp_name};
}

bool Recorder::IsForeign(PyObject* object) {
  if (HasForeignOperator(object)) return true;
  Known* known = Find(object);
  if (known == nullptr || known->state != Known::State::kSource) return false;
  PyTypeObject* type = Py_TYPE(object);
  if (PyTuple_Check(object) || PyList_Check(object) || PyDict_Check(object) || PyAnySet_Check(object) ||
      IsIdentityKind(object) || PyRange_Check(object) || PySlice_Check(object)) {
    return false;
  }
  // Classes made by Python code, down to object.
  PyTypeObject* python_class = Objects().module;
  for (PyTypeObject* t = type; t != &PyBaseObject_Type; t = t->tp_base) {
    if (t == nullptr || t->tp_dealloc != python_class->tp_dealloc) return true;
  }
  return false;
}

void Recorder::Before(FrameState& f, FrameNote& note, const Event& e) {
  note.expect.Reset();
  note.ForgetOperands();
  note.returned = nullptr;
  note.returned_shadow = Shadow();
  note.nodes_before = node_count();
  note.containers_before = containers_.size();
  aten_.decided = nullptr;
  auto tensor_among = [&] {
    for (int i = 0; i < e.n; ++i) {
      if (e.in[i] != nullptr && IsTensor(e.in[i])) return true;
    }
    return false;
  };
  auto torch_operands = [&] {
    Call call{f, note, nullptr, {}, {}, {}};
    for (int i = 0; i < e.n; ++i) {
      call.args.push_back(e.in[i]);
      call.shadows.push_back(e.shadows[i]);
    }
    TorchCall(note, &call, "");
  };
  if ((kOperators >> static_cast<int>(e.op) & 1) != 0) RefuseForeign(e);
  switch (e.op) {
    case Op::kUnpack:
    case Op::kUnpackEx:
    case Op::kContains:
    case Op::kListExtend:
    case Op::kSetUpdate:
    case Op::kDictUpdate:
    case Op::kListToTuple:
      for (int i = 0; i < e.n; ++i) MarkAdvanced(e.in[i]);
      break;
    default:
      break;
  }
  switch (e.op) {
    case Op::kUnary:
      if (e.arg == 2) return TruthOf(note, e.in[0], e.shadows[0]);
      if (tensor_among()) return torch_operands();
      if (ScalarNode(note, e)) return;
      return ForceAll(e);
    case Op::kBinary:
      return BinaryNumbers(note, e);
    case Op::kCompare:
      return CompareValues(note, e.in[0], e.shadows[0], e.in[1], e.shadows[1], e.arg);
    case Op::kIs:
      return CompareIdentity(e.in[0], e.shadows[0], e.in[1], e.shadows[1]);
    case Op::kIsNone:
      return CompareIdentity(e.in[0], e.shadows[0], Py_None, Shadow());
    case Op::kTruth:
      return TruthOf(note, e.in[0], e.shadows[0]);
    case Op::kContains:
      Force(e.in[0], e.shadows[0]);
      Force(e.in[1], e.shadows[1]);
      return Contains(note, e.in[1], e.in[0]);
    case Op::kSubscr:
      return Subscript(note, e.in[0], e.in[1], e.shadows[1], e.shadows[0]);
    case Op::kStoreSubscr:
      return StoreSubscript(note, e.in[1], e.in[2], e.in[0], e.shadows[2], e.shadows[0]);
    case Op::kDeleteSubscr:
      return StoreSubscript(note, e.in[0], e.in[1], nullptr, e.shadows[1], Shadow());
    case Op::kLoadAttr:
    case Op::kLoadMethod:
      LoadAttribute(note, e.in[0], e.shadows[0], e.name);
      if (note.expect.answer != nullptr) f.answer = Py_NewRef(note.expect.answer);
      return;
    case Op::kStoreAttr:
      return StoreAttribute(note, e.in[1], e.name, e.in[0], e.shadows[0]);
    case Op::kDeleteAttr:
      return DeleteAttribute(note, e.in[0], e.name);
    case Op::kCall:
    case Op::kCallEx:
      if (e.op == Op::kCallEx) {
        AdoptElements(e.in[1]);
        if (e.n > 2 && e.in[2] != nullptr) AdoptElements(e.in[2]);
      }
      return Invoke(CallOf(*this, f, note, e));
    case Op::kStoreGlobal: {
      PyObject* globals = f.function->func_globals;
      const SourceId dict = guards_.Pinned(globals, "G");
      if (Find(globals) == nullptr) {
        AddFresh(globals, Known::State::kOpaque);
      } else if (SourceOf(globals).valid()) {
        FromSource(dict, globals, true);  // given to the function as well: reads of it see what is stored now
      }
      AddEffect(Effect::Kind::kSetGlobal, globals, PyUnicode_AsUTF8(e.name), {e.in[0]}, {e.shadows[0]});
      SetWritten(globals, e.name, e.shadows[0]);
      note.expect.kind = Expect::Kind::kNothing;
      return;
    }
    case Op::kStoreDeref:
      note.expect.kind = Expect::Kind::kNothing;
      return StoreDeref(f, e);
    case Op::kGetIter: {
      PyObject* object = e.in[0];
      Force(object, e.shadows[0]);
      if (IsTensor(object)) {
        ReadTensor(object, true, false);
        return torch_operands();
      }
      if (IsMetIterator(object) || PyGen_CheckExact(object)) return Touch(object);  // it is its own iterator
      if (open_iterators_.contains(object)) return;
      note.makes_iterator = HasOpenItems(object);
      if (note.makes_iterator) iterated_.assign(1, object);
      if (!note.makes_iterator) ForceDeep(object, Shadow(), true);
      return;
    }
    case Op::kForIter: {
      RefuseForeignOperator(e.in[0]);
      Known* known = Find(e.in[0]);
      if (open_iterators_.contains(e.in[0])) {
        known->MutatedIn(epoch_);
        note.expect.kind = Expect::Kind::kOpen;
        return;
      }
      if (known != nullptr && known->state != Known::State::kSource) return MarkMutated(e.in[0]);
      if (PyGen_CheckExact(e.in[0])) return MeetGenerator(e.in[0]);
      TakeNext(note, e.in[0]);
      return;
    }
    case Op::kUnpack:
    case Op::kUnpackEx:
      note.unpacks = e.arg;
      if (IsTensor(e.in[0])) {
        ReadTensor(e.in[0], true, false);
        return torch_operands();
      }
      if (PyTuple_Check(e.in[0]) || PyList_Check(e.in[0]) || PyDict_Check(e.in[0])) return AdoptElements(e.in[0]);
      return ForceAll(e);
    case Op::kBuildTuple: {
      note.expect.kind = Expect::Kind::kItems;
      note.expect.items.assign(e.shadows, e.shadows + e.n);
      return;
    }
    case Op::kListToTuple:  // also whatever stands behind `*` in a call
      if (IsTensor(e.in[0])) throw Break{Reason::unknown_operation, "a tensor is unpacked"};
      if (PyList_CheckExact(e.in[0])) {
        AdoptElements(e.in[0]);
        const Known* list = Find(e.in[0]);
        if (list == nullptr || list->items.empty()) return;
        note.expect.kind = Expect::Kind::kItems;
        note.expect.items.assign(list->items.begin(), list->items.end());
        return;
      }
      ForceDeep(e.in[0], e.shadows[0], true);
      return;
    case Op::kMakeFunction:
      return;
    case Op::kBuildList:
    case Op::kBuildSet:
    case Op::kBuildMap:
    case Op::kBuildConstKeyMap:
    case Op::kBuildSlice:
    case Op::kBuildString: {
      if (e.op == Op::kBuildList || e.op == Op::kBuildSlice) {
        bool open = false;
        for (int i = 0; i < e.n; ++i) note.expect.items.push_back(KeepOpen(e.in[i], e.shadows[i], &open));
        if (open) note.expect.kind = Expect::Kind::kItems;
        if (e.op == Op::kBuildSlice) note.expect.items.resize(3);
        return;
      }
      for (int i = 0; i < e.n; ++i) Force(e.in[i], e.shadows[i]);
      if (e.op != Op::kBuildSet && e.op != Op::kBuildMap) return;
      std::vector<PyObject*> keys;
      for (int i = 0; i < e.n; i += e.op == Op::kBuildMap ? 2 : 1) {
        RefuseNan(e.in[i]);
        if (IsScalar(e.in[i])) continue;
        RefuseForeignKey(e.in[i]);
        keys.push_back(e.in[i]);
      }
      return ReadDistinct(keys);
    }
    case Op::kListAppend:
    case Op::kSetAdd:
    case Op::kMapAdd:
      note.expect.kind = Expect::Kind::kNothing;
      if (e.op == Op::kListAppend && AppendItems(e.in[0], nullptr, e.in[1], e.shadows[1])) return;
      for (int i = 1; i < e.n; ++i) Force(e.in[i], e.shadows[i]);
      if (e.op != Op::kListAppend) ReadKey(e.in[0], e.in[1]);
      if (SourceOf(e.in[0]).valid()) {
        // A comprehension that was begun before the segment.
        Own(e.in[0]);
        if (e.op == Op::kMapAdd) {
          AddEffect(Effect::Kind::kSetItem, e.in[0], "", {e.in[1], e.in[2]}, {Shadow(), Shadow()});
        } else {
          AddEffect(Effect::Kind::kCall, e.in[0], e.op == Op::kListAppend ? "append" : "add", {e.in[1]}, {Shadow()});
        }
      }
      MarkMutated(e.in[0]);
      return;
    case Op::kListExtend:
    case Op::kSetUpdate:
    case Op::kDictUpdate:
    case Op::kDictMerge:
      if (IsTensor(e.in[1])) throw Break{Reason::unknown_operation, "a tensor is unpacked"};
      if (e.op == Op::kListExtend && AppendItems(e.in[0], e.in[1], nullptr, Shadow())) {
        note.expect.kind = Expect::Kind::kNothing;
        return;
      }
      ForceDeep(e.in[1], e.shadows[1], true);
      if (e.op != Op::kListExtend) ReadElements({e.in[0], e.in[1]});
      if (e.op == Op::kSetUpdate) ReadLayout(e.in[1]);
      if (SourceOf(e.in[0]).valid()) throw Break{Reason::unknown_mutation, "a display that was begun before"};
      MarkMutated(e.in[0]);
      note.expect.kind = Expect::Kind::kNothing;
      return;
    case Op::kFormatValue:
      ForceDeep(e.in[0], e.shadows[0], false);
      if (e.n > 1) Force(e.in[1], e.shadows[1]);
      return ReadPrinted(e.in[0], (e.arg & 3) >= 2 ? Printed::kRepr : Printed::kStr);  // !r, !a
    case Op::kGetLen:
      ForceDeep(e.in[0], e.shadows[0], false);
      return;
    case Op::kMatch:
      // MATCH_CLASS reads attributes that nobody told of.
      if (e.n == 3 && SourceOf(e.in[0]).valid()) throw Break{Reason::unknown_operation, "a class pattern"};
      if (e.n == 3) ForceWritten(e.in[0]);
      for (int i = 0; i < e.n; ++i) ForceDeep(e.in[i], e.shadows[i], true);
      return;
    case Op::kExcMatch:
      return;
    case Op::kRaise:
      ForceAll(e);
      return;
    case Op::kBeforeWith: {
      static PyObject* enter_name = InternedName("__enter__");
      PyObject* enter = _PyType_Lookup(Py_TYPE(e.in[0]), enter_name);
      if (enter != nullptr && !PyFunction_Check(enter)) {
        throw Refusal(enter);
      }
      return ForceAll(e);
    }
    case Op::kWithExit:
      return ForceAll(e);
    case Op::kYield:
      note.expect.kind = Expect::Kind::kNothing;
      return;
    case Op::kAsync: {
      // `yield from` a generator or iterator of the trace's own. Coroutines are an event loop's business.
      bool coroutine = f.code->co_flags & (CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE);
      Known* known = Find(e.in[0]);
      bool own = known != nullptr && known->state != Known::State::kSource;
      if (!coroutine && !IsTensor(e.in[0]) && (own || PyList_Check(e.in[0]) || PyTuple_Check(e.in[0]))) {
        for (int i = 0; i < e.n; ++i) ForceDeep(e.in[i], e.shadows[i], true);
        MarkMutated(e.in[0]);
        return;
      }
      throw Break{Reason::generator_or_async, ""};
    }
    case Op::kImportName:
      return Import(f, note, e);
    case Op::kImportFrom:
      return LoadAttribute(note, e.in[0], Shadow(), e.name);
    case Op::kImportStar:
      throw Break{Reason::import_statement, e.name ? PyUnicode_AsUTF8(e.name) : ""};
    case Op::kDeleteDeref:
    case Op::kDeleteGlobal:
    case Op::kStoreName:
    case Op::kDeleteName:
      throw Break{Reason::unknown_operation, "a variable is deleted, or a class body runs"};
    default:
      throw Break{Reason::unknown_operation, ""};
  }
}

// A call of it is the call of a function of Python code, and of nothing else. (Before has refused instances of classes whose
// __call__ is C code.)
static bool IsPythonCode(PyObject* callable) {
  return PyFunction_Check(callable) ||
         (PyMethod_Check(callable) && PyFunction_Check(PyMethod_GET_FUNCTION(callable))) ||
         Py_TYPE(callable)->tp_call == Objects().module->tp_call;
}

Shadow Recorder::After(FrameState& f, FrameNote& note, const Event& e, PyObject* result) {
  if (!note.open.empty() || note.is_index) LinkNumbers(note, e, result);
  // Switches of the thread's state are C functions, and none of those that dispatch. (Nor is Python code, whose calls come
  // here as well, unless it belongs to an operation that nobody looks into.)
  if ((e.op == Op::kCall || e.op == Op::kCallEx) &&
      (note.opaque_operation || (note.expect.kind != Expect::Kind::kTorch && !IsPythonCode(e.in[0])))) {
    ReadState();
  }
  if (containers_.size() > note.containers_before) DropContainers(note.containers_before);
  switch (e.op) {
    case Op::kLoadGlobal:
    case Op::kLoadName: {
      Shadow out;
      if (e.op == Op::kLoadName && e.arg == 0) throw Break{Reason::class_statement, ""};
      Event global = e;
      if (e.op == Op::kLoadName) global.arg = e.arg - 1;
      LoadGlobal(f, note, global, result, &out);
      return out;
    }
    case Op::kLoadDeref:
      return LoadDeref(f, e.arg, result);
    case Op::kLoadConst:
      MeetConstant(result);
      return Shadow();
    case Op::kLoadClosure:
      ShareCell(f, e.arg);
      MeetCell(f, e.arg);
      if (Find(result) != nullptr) return Shadow();
      if (KindOfSlot(f.code, e.arg) == SlotKind::kFree)
        return FromSource(CellSource(f, e.arg), result, !is_base(f) && IsFixedFunction(f));
      if (is_base(f)) {
        // A closure over the entry frame's variable: what it holds is known from the entry on.
        PyObject* content = PyCell_GET(result);
        Shadow shadow;
        if (content != nullptr) {
          shadow =
              FromSource(guards_.Cell(FrameSlot(level(), e.arg), PyUnicode_AsUTF8(SlotName(f.code, e.arg)), content),
                         content, false);
        }
        if (began_at_break_) {
          FromSource(CellSource(f, e.arg), result, false);
          Find(result)->items.assign(1, shadow);
          return Shadow();
        }
        AddFresh(result).items.assign(1, shadow);
        base_cells_.push_back(result);
      } else {
        throw Break{Reason::unknown_operation, "a closure is passed on"};
      }
      return Shadow();
    case Op::kMakeFunction:
      AddFresh(result, Known::State::kOpaque);
      return Shadow();
    case Op::kMakeCell: {
      // The parameter's shadow goes with its value into the cell.
      const Shadow content = f.shadows[e.arg];
      if ((f.code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) != 0) {
        AddFresh(result).items.assign(1, content);  // the frame moves, and its shadows are kept apart
        return Shadow();
      }
      cells_.push_back(content);
      return Shadow{Shadow::Kind::kCell, static_cast<uint32_t>(cells_.size() - 1)};
    }
    case Op::kStoreDeref:
      if (f.shadows[e.arg].kind == Shadow::Kind::kCell) cells_[f.shadows[e.arg].id] = e.shadows[0];
      return Shadow();
    default:
      break;
  }
  if (result == nullptr) return Shadow();
  if (note.makes_iterator) OpenIteratorOver(result);
  if (note.expect.kind == Expect::Kind::kTorch && !(note.returned != nullptr && note.returned == result)) {
    return TorchResult(f, note, e, result);
  }
  if (note.returned == result && note.expect.kind == Expect::Kind::kAny) {
    if (note.returned_shadow.kind == Shadow::Kind::kNone) AdoptResult(result);
    return note.returned_shadow;
  }
  switch (note.expect.kind) {
    case Expect::Kind::kShadow:
      return note.expect.shadow;
    case Expect::Kind::kSource:
      return FromSource(note.expect.source, result, note.expect.pinned);
    case Expect::Kind::kItems: {
      if (IsConstantTuple(result) || Find(result) != nullptr) return Shadow();  // t[:], t + (): the very one
      AddFresh(result).items.assign(note.expect.items.begin(), note.expect.items.end());
      return Shadow();
    }
    case Expect::Kind::kOpen:
      return TakeOpen(e.in[0], result);
    case Expect::Kind::kTaken:
      return AdoptTaken(result, taken_);
    case Expect::Kind::kPinned:
      // A method is made by each read, unless it is one that was kept.
      if (IsTensor(result) || ((PyMethod_Check(result) || PyCFunction_Check(result)) && Py_REFCNT(result) == 1)) {
        return AdoptResult(result);
      }
      AdoptPinned(result, Py_TYPE(result)->tp_name);
      return Shadow();
    case Expect::Kind::kNothing:
      return Shadow();
    default:
      break;
  }
  if (e.op == Op::kUnpack || e.op == Op::kUnpackEx) {
    if (PyTuple_Check(e.in[0]) || PyList_Check(e.in[0])) return UnpackedItem(note, e, result);
    return AdoptResult(result);
  }
  if (e.op == Op::kLoadMethod && e.arg == 1) return Shadow();  // a class-level function: fixed with the type
  if (e.op == Op::kForIter || e.op == Op::kGetIter) return AdoptResult(result);
  return AdoptResult(result);
}

// Item e.arg of what an instruction unpacks; with a star among the names, one of them is a list of its own.
Shadow Recorder::UnpackedItem(const FrameNote& note, const Event& e, PyObject* result) {
  Py_ssize_t at = e.arg;
  if (e.op == Op::kUnpackEx) {
    const int before = note.unpacks & 0xff, after = note.unpacks >> 8;
    if (e.arg == before) {
      Known& middle = AddFresh(result);
      bool open = false;
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(result); ++i) {
        middle.items.push_back(KeepOpen(PyList_GET_ITEM(result, i), ElementShadow(e.in[0], before + i), &open));
      }
      if (!open) middle.items.clear();
      return Shadow();
    }
    if (e.arg > before) at = PySequence_Fast_GET_SIZE(e.in[0]) - after + (e.arg - before - 1);
  }
  const Shadow shadow = ElementShadow(e.in[0], at);
  return shadow.kind != Shadow::Kind::kNone ? shadow : AdoptResult(result);
}

Shadow Recorder::TorchResult(FrameState&, FrameNote& note, const Event& e, PyObject* result) {
  if (aten_.pending) return Shadow();
  if (note.listed != nullptr) return ListElements(note, result);
  auto read_arguments = [&](bool strides) {
    for (int i = 0; i < e.n; ++i) ReadAllTensors(e.in[i], strides);
  };
  size_t made = node_count() - note.nodes_before;
  if (IsTensor(result)) {
    AtenRecorder::KnownTensor* known = aten_.Find(TensorOf(result));
    if (known == nullptr) throw Break{Reason::tensor_from_nowhere, ""};
    if (known->value.valid() && TensorOf(result).requires_grad() &&
        !aten_.graph().value(known->value).type.requires_grad) {
      throw Break{Reason::tensor_attribute, "requires_grad=True"};  // set by the binding, past the dispatcher
    }
    bool is_argument = false;
    for (int i = 0; i < e.n; ++i) is_argument = is_argument || e.in[i] == result;
    bool wrote = made > 0 && aten_.graph().nodes.back().op && aten_.graph().nodes.back().op->schema().is_mutable();
    // No op, or an op that gave its argument back: the binding has looked at sizes, strides or dtype and decided.
    const bool has_decided = made == 0 || (is_argument && !wrote);
    if (has_decided ? !GivesBack(note, e, result) : !IsKnownToBeNew(note, e, *known)) read_arguments(true);
    return Shadow();
  }
  if (result == Py_None) return Shadow();
  if (IsScalar(result) && made == 1 && aten_.graph().nodes.back().op &&
      FactsOf(*aten_.graph().nodes.back().op).scalar_from_data) {
    return Shadow{Shadow::Kind::kValue, aten_.graph().nodes.back().outputs[0].raw()};
  }
  if (IsScalar(result)) {
    // A fact of the arguments that is not their data: data would have been seen as an op.
    read_arguments(true);
    return Shadow();
  }
  if (PyTuple_Check(result) || PyList_Check(result)) {
    bool list_op = made == 0;
    for (size_t i = note.nodes_before; i < node_count(); ++i) {
      const Node& node = aten_.graph().nodes[i];
      list_op = list_op || (node.op && FactsOf(*node.op).list_result);
    }
    if (list_op && made > 0 && sizes_open()) {
      for (size_t i = note.nodes_before; i < node_count(); ++i) {
        const Node& node = aten_.graph().nodes[i];
        if (node.op && FactsOf(*node.op).list_result) ReadListLength(node, e);
      }
    } else if (list_op) {
      read_arguments(made == 0);
    }
  }
  return AdoptResult(result);
}

Call CallOf(Recorder& recorder, FrameState& f, FrameNote& note, const Event& e) {
  Call call{f, note, e.in[0], {}, {}, {}};
  if (e.op == Op::kCall) {
    for (int i = 1; i < e.n; ++i) {
      call.args.push_back(e.in[i]);
      call.shadows.push_back(e.shadows[i]);
    }
    if (e.kwnames != nullptr) {
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(e.kwnames); ++i) call.names.push_back(PyTuple_GET_ITEM(e.kwnames, i));
    }
    return call;
  }
  PyObject* args = e.in[1];
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i) {
    call.args.push_back(PyTuple_GET_ITEM(args, i));
    call.shadows.push_back(recorder.ElementShadow(args, i));
  }
  if (e.n > 2 && e.in[2] != nullptr) {
    Py_ssize_t at = 0;
    PyObject *key, *value;
    while (PyDict_Next(e.in[2], &at, &key, &value)) {
      call.args.push_back(value);
      call.shadows.push_back(Shadow());
      call.names.push_back(key);
    }
  }
  return call;
}

}  // namespace frametap
