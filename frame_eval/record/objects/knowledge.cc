// The records of a recorder about objects: the path by which a replay finds them, the reads of them, and the changes
// by the trace.
#include <algorithm>
#include <cstring>

#include "absl/container/flat_hash_set.h"
#include "frame_eval/record/callables/getters.h"
#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/recorder.h"
#include "frame_eval/record/semantics/mapping_proxies.h"
#include "guards/cpython/deque_view.h"
#include "guards/must.h"
#include "guards/objects/held_object.h"
#include "guards/objects/known_objects.h"
#include "guards/objects/namespaces.h"
#include "guards/objects/object_end.h"
#include "guards/objects/tensor_door.h"

namespace frametap {

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

// Records an object that the trace makes: a container, or an object that is bound to a tensor or iterates over some.
// Excludes objects that other parts of the recorder know by address: code and modules (places), generators, variables
// of the context.
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
  objects_.Set(object, &known);
  knows_ordered_dicts_ |= PyDict_Check(object) && PyODict_Check(object);
  if (state == Known::State::kSource) return known;
  if (Py_TYPE(object)->tp_finalize != nullptr) [[unlikely]]
    WatchMade(object);
  if (MayHoldTensors(object)) containers_.push_back(&known);
  return known;
}

void Recorder::Forget(PyObject* object) {
  objects_.Erase(object);
  if (!open_iterators_.empty()) open_iterators_.erase(object);
}

void Recorder::RegisterTensor(PyObject* object, SourceId id) {
  const at::Tensor& tensor = TensorOf(object);
  AtenRecorder::KnownTensor* known = aten_.Find(tensor);
  if (known == nullptr) {
    if (!IsExactTensor(object)) throw Break{Reason::tensor_subclass, Py_TYPE(object)->tp_name};
    if (tensor.is_nested()) throw Break{Reason::nested_tensor, ""};
    aten_.AddSource(tensor, id);
    guards_.Tensor(id, TensorRead(), Here());
    if (EndRunsCode(object)) NoteEnd(id);
  } else if (known->source.valid() && known->source != id) {
    guards_.SameObject(known->source, id, true, Here());
  }
}

Shadow Recorder::FromSource(SourceId id, PyObject* object, bool pinned) {
  SetPinned(id, pinned);
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
    if (repeated_calls_) repeated_calls_->Meet(*known, true);
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
    NoteEnd(id);
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

// An object that is reached through guarded reads only is a constant then. Reads of it are guarded by themselves, or
// cannot change, or are in it (a tuple, a method).
static bool IsConstant(PyObject* object) {
  if (PyCFunction_Check(object)) return IsModuleFunction(object);
  if (PyTuple_Check(object)) return Py_TYPE(object)->tp_dictoffset == 0;
  return PyFunction_Check(object) || PyMethod_Check(object) || PyType_Check(object) || PyModule_Check(object) ||
         PyCode_Check(object) || Py_TYPE(object) == &PyMethodDescr_Type || Py_TYPE(object) == &PyWrapperDescr_Type;
}

// An object that C code has just made has no other owner. Any other object that is seen here for the first time
// existed before, and no read shows a path to it.
Shadow Recorder::AdoptResult(PyObject* object) {
  if (IsScalar(object)) return Shadow();
  if (IsTensor(object)) return AdoptMade(object);
  if (const Known* known = Find(object); known != nullptr) {
    if (repeated_calls_) repeated_calls_->Meet(*known, false);
    return Shadow();
  }
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
    const AtenRecorder::KnownTensor* known = aten_.Find(TensorOf(object));
    if (known == nullptr) throw Break{Reason::tensor_from_nowhere, ""};
    const bool is_plain = Py_TYPE(object) == Objects().tensor || Py_TYPE(object) == Objects().parameter;
    if (!known->source.valid() && !is_plain) {
      throw Break{Reason::tensor_subclass, Py_TYPE(object)->tp_name};
    }
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
  } else if (IsAnySet(object)) {
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
    const bool is_plain =
        PySlice_Check(object) || (Py_TYPE(object)->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0 || IsNamespace(object);
    const bool has_content = Py_TYPE(object) == Objects().inference_mode;  // of C++
    AddFresh(object, is_plain && !has_content ? Known::State::kFresh : Known::State::kOpaque);
  }
  return Shadow();
}

// The object that a method binds, of Python code or of C: known by the path to the method, unless the trace has bound
// it itself.
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

// Operations on a class look at the class of the class: isinstance, truth, ==, len.
void Recorder::TouchMetaclass(PyTypeObject* type) {
  PyTypeObject* const meta = Py_TYPE(type);
  if ((meta->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0) guards_.Class(meta, Here());
}

void Recorder::Fix(Known& known) {
  guards_.Identity(known.source, Here());
  known.pinned = true;
  known.fixed = true;
  pinned_[known.source.raw()] = true;
}

void Recorder::FixContent(PyObject* object) {
  Known* known = IsScalar(object) ? nullptr : Find(object);
  const bool has_guard = PySlice_Check(object) || PyRange_Check(object) || IsIdentityKind(object);
  if (known != nullptr && known->state == Known::State::kSource && !has_guard) Fix(*known);
}

Shadow Recorder::ElementShadow(PyObject* container, Py_ssize_t index) {
  Known* known = Find(container);
  if (known == nullptr || index < 0 || static_cast<size_t>(index) >= known->items.size()) return Shadow();
  return known->items[static_cast<size_t>(index)];
}

// Returns whether a key contains more than plain values, which the guard of the dict's keys compares.
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
  if (known == nullptr || known->state != Known::State::kSource) return;
  if (known->mutated && IsDeque(container)) {
    throw Break{Reason::unknown_operation, "a deque that existed before and was changed"};
  }
  if (known->adopted) return;
  if (PyDict_Check(container)) RefuseWrittenDict(container);
  const std::unique_ptr<OutsideChanges> changes = std::move(known->changes);
  known->adopted = true;
  known->touched = true;
  bool pinned = known->pinned;
  SourceId source = known->source;
  if (pinned) guards_.Identity(source, Here());
  guards_.Type(source, Here());
  if (PyTuple_Check(container) || PyList_Check(container)) {
    // Items that the trace has appended since are known already.
    const Py_ssize_t n = changes ? changes->entry_length : PySequence_Fast_GET_SIZE(container);
    guards_.Length(source, Here(), n);
    // The changes that a subclass of list makes to its items are not always seen: its numbers are fixed now.
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
    if (changes) items.insert(items.end(), changes->appended.begin(), changes->appended.end());
    if (keeps) Find(container)->items = std::move(items);
  } else if (PyDict_Check(container)) {
    guards_.Keys(source, Here());
    Py_ssize_t at = 0, i = 0;
    PyObject *key, *value;
    while (PyDict_Next(container, &at, &key, &value)) {
      if (!IsScalar(key)) {
        // A key is an object that the program can reach (iteration): known by its place. The parts of a tuple are,
        // too: a look-up by another tuple compares them.
        FromSource(guards_.Child(source, Accessor::kDictKeyAt, i, nullptr, key), key, pinned);
        Touch(key);
        if (HoldsObjects(key)) ForceDeep(key, Shadow(), true);
      }
      ++i;
      if (changes && changes->stored.contains(PlainKey(key))) {
        Force(value, changes->stored.at(PlainKey(key)));
        continue;
      }
      Force(value, FromSource(guards_.Child(source, Accessor::kKey, 0, key, value), value, pinned));
    }
  } else if (IsDeque(container)) {
    guards_.Length(source, Here());
    for (Py_ssize_t i = 0; i < DequeLength(container); ++i) {
      PyObject* item = DequeItem(container, i);
      Force(item, FromSource(guards_.Child(source, Accessor::kItem, i, nullptr, item), item, pinned));
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
  } else if (IsAnySet(container)) {
    throw Break{Reason::set_from_outside, ""};
  }
}

void Recorder::MarkMutated(PyObject* object) {
  if (Known* known = Find(object)) {
    if (!known->items.empty() && PyList_Check(object)) [[unlikely]]
      ForceItems(object);  // they are known by their places
    if (known->changes && PyDict_CheckExact(object)) [[unlikely]]
      FixValues(object);
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
      // A value written by a name (a global, a buffer) is kept apart.
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
  if (repeated_calls_) repeated_calls_->NoteRead(known->source, known->value, sizes, strides);
  if (known->strides_read || (known->metadata_read && !strides)) return;
  known->metadata_read = true;
  known->strides_read = strides;
  TensorRead read;
  read.sizes = sizes || strides;
  read.strides = strides;
  if (known->is_as_at_entry()) {
    guards_.Tensor(known->source, read, Here());
    return;
  }
  if (!known->value.valid()) throw Break{Reason::data_dependent_size, ""};
  FixValue(known->value, read, strides ? &strides_read_ : &sizes_read_);
}

void Recorder::ReadRank(PyObject* object) {
  AtenRecorder::KnownTensor* known = aten_.Find(TensorOf(object));
  if (known == nullptr) throw Break{Reason::tensor_from_nowhere, ""};
  if (repeated_calls_) repeated_calls_->NoteRank(known->source, known->value);
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
  RefuseLoudEffect(kind, target, name, values);
  if (undo_) undo_->Before(kind, target, name);
  MeetEffect(kind, target, name, values.empty() ? nullptr : values[0]);
  PushEffect(kind, target, name, values, std::move(shadows));
}

void Recorder::PushEffect(Effect::Kind kind, PyObject* target, const std::string& name,
                          const std::vector<PyObject*>& values, std::vector<Shadow> shadows) {
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

}  // namespace frametap
