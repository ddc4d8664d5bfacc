#include "frame_eval/record/objects/knowledge.h"

#include <span>

#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/numbers/sequences.h"
#include "frame_eval/record/numbers/sizes.h"
#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/objects/identity.h"
#include "frame_eval/record/objects/object_ends.h"
#include "frame_eval/record/objects/outside_containers.h"
#include "frame_eval/record/objects/own_dicts.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/objects/set_check.h"
#include "frame_eval/record/semantics/foreign_operators.h"
#include "frame_eval/record/semantics/iterators.h"
#include "frame_eval/record/semantics/predicted_calls.h"
#include "frame_eval/record/shared_breaks.h"
#include "frame_eval/record/sites.h"
#include "guards/cpython/deque_view.h"
#include "guards/objects/dict_items.h"
#include "guards/objects/held_object.h"
#include "guards/objects/namespaces.h"
#include "guards/objects/object_end.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"
#include "ir/dcheck.h"

namespace frametap {

static void TouchMetaclass(Trace& trace, PyTypeObject* type);
static std::span<PyObject* const> HiddenParts(PyTypeObject* type);
static void GuardPart(Trace& trace, SourceId source, PyObject* object, PyObject* name);
static bool IsOneOfScalarTypes(PyTypeObject* type);

bool IsScalarType(PyTypeObject* type) {
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

static bool IsOneOfScalarTypes(PyTypeObject* type) {
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

ObjectRecord& AddFresh(Trace& trace, PyObject* object, ObjectRecord::State state) {
  ObjectRecord& known =
      trace.objects.vacant.empty() ? trace.objects.known.emplace_back() : *trace.objects.vacant.back();
  if (!trace.objects.vacant.empty()) trace.objects.vacant.pop_back();
  known.state = state;
  known.epoch = trace.epoch;
  known.pin = Ref<>::New(object);
  trace.objects.table.Set(object, &known);
  trace.objects.knows_ordered_dicts |= PyDict_Check(object) && PyODict_Check(object);
  if (state == ObjectRecord::State::kSource) return known;
  if (Py_TYPE(object)->tp_finalize != nullptr) [[unlikely]]
    WatchMade(trace, object);
  if (MayHoldTensors(object)) trace.objects.containers.push_back(&known);
  return known;
}

void Forget(Trace& trace, PyObject* object) {
  trace.objects.table.Erase(object);
  if (!trace.iteration.open.empty()) trace.iteration.open.erase(object);
}

static void RegisterTensor(Trace& trace, PyObject* object, SourceId id) {
  const at::Tensor& tensor = TensorOf(object);
  KnownTensor* known = trace.aten.tensors.Find(tensor);
  if (known == nullptr) {
    if (!IsExactTensor(object)) throw Break{Reason::tensor_subclass, Py_TYPE(object)->tp_name};
    if (tensor.is_nested()) throw Break{Reason::nested_tensor, ""};
    trace.aten.AddSource(tensor, id);
    trace.guards.Tensor(id, TensorRead(), trace.frames.Here());
    if (EndRunsCode(object)) NoteEnd(trace, id);
  } else if (known->source.valid() && known->source != id) {
    trace.guards.SameObject(known->source, id, true, trace.frames.Here());
  }
}

// Returns whether other objects were seen in the place. By identity, each of them would need a recording of its own.
// Examples are a tuple that each step replaces, and a dict that an empty one replaces.
static bool IsReplaceable(const Trace& trace, SourceId id, PyObject* object) {
  return !trace.store.options().by_identity && !IsIdentityKind(object) && HasChanged(trace, id);
}

Shadow FromSource(Trace& trace, SourceId id, PyObject* object, bool pinned) {
  trace.objects.SetPinned(id, pinned);
  if (IsScalar(object)) return Shadow{Shadow::Kind::kSource, id.raw()};
  if (IsTensor(object)) {
    RegisterTensor(trace, object, id);
    return Shadow();
  }
  if (PyTuple_CheckExact(object) && IsConstantTuple(trace, object)) [[unlikely]] {
    // There is one of no items: its value says which object it is.
    PyTuple_GET_SIZE(object) == 0 ? trace.guards.Value(id, trace.frames.Here())
                                  : trace.guards.Identity(id, trace.frames.Here());
    return Shadow();
  }
  if (ObjectRecord* known = trace.objects.Find(object)) {
    if (trace.repeated_calls) trace.repeated_calls->Meet(*known, true);
    // The same object by another path: replay reaches it by the first one, or has it as a constant.
    if (known->state != ObjectRecord::State::kSource) {
      MeetAsObject(trace, object);
      if (IsIdentityKind(object)) trace.guards.Identity(id, trace.frames.Here());
      if (PyDict_Check(object)) RefuseWrittenDict(trace, object);  // of globals
    } else if (known->source != id) {
      if (known->pinned && pinned) {
        // The steps before the last one lead to the same objects always; the last may lead elsewhere, either of them.
        trace.guards.Identity(known->source, trace.frames.Here());
        trace.guards.Identity(id, trace.frames.Here());
      } else {
        trace.guards.SameObject(known->source, id, true, trace.frames.Here());
      }
    }
    return Shadow();
  }
  if (pinned && IsReplaceable(trace, id, object)) {
    pinned = false;
    trace.objects.SetPinned(id, false);
  }
  ObjectRecord& known = AddFresh(trace, object, ObjectRecord::State::kSource);
  known.source = id;
  known.pinned = pinned;
  if (IsNativeEnum(Py_TYPE(object))) Fix(trace, known);  // C++ code compares its members by their values
  // Where a module or class holds it, it does not end (object_end.h).
  if (EndRunsCode(object) && !(pinned && IsIdentityKind(object))) [[unlikely]]
    NoteEnd(trace, id);
  if (PyIter_Check(object)) MeetIterator(trace, object, id);
  return Shadow();
}

// A tuple that a path led to before is both from now on: it is the very object, so either description is right. One that
// is met by a path later is a constant still (FromSource).
void MeetConstant(Trace& trace, PyObject* tuple) {
  if (PyTuple_GET_SIZE(tuple) == 0 || !trace.objects.code_tuples.try_emplace(tuple, Ref<>::New(tuple)).second) return;
  if (const SourceId source = SourceOf(trace, tuple); source.valid())
    trace.guards.Identity(source, trace.frames.Here());
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    if (PyObject* item = PyTuple_GET_ITEM(tuple, i); PyTuple_CheckExact(item)) MeetConstant(trace, item);
  }
}

bool IsConstantTuple(const Trace& trace, PyObject* object) {
  if (!PyTuple_CheckExact(object)) return false;
  return PyTuple_GET_SIZE(object) == 0 ||
         (!trace.objects.code_tuples.empty() && trace.objects.code_tuples.contains(object));
}

void AdoptPinned(Trace& trace, PyObject* object, const std::string& text) {
  if (IsScalar(object) || IsConstantTuple(trace, object)) return;
  if (ObjectRecord* known = trace.objects.Find(object)) {
    // The same object is known by a path that may lead elsewhere at replay; here it is a constant.
    if (known->state == ObjectRecord::State::kSource && trace.guards.accessor(known->source) != Accessor::kPinned) {
      trace.guards.Identity(known->source, trace.frames.Here());
    }
    return;
  }
  FromSource(trace, trace.guards.Pinned(object, text.empty() ? CallableName(object) : text), object, true);
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
Shadow AdoptResult(Trace& trace, PyObject* object) {
  if (IsScalar(object)) return Shadow();
  if (IsTensor(object)) return TrackCreated(trace, object);
  if (const ObjectRecord* known = trace.objects.Find(object); known != nullptr) {
    if (trace.repeated_calls) trace.repeated_calls->Meet(*known, false);
    return Shadow();
  }
  const bool is_new = Py_REFCNT(object) == 1 || IsConstant(object) || IsGenerator(object) || IsPartOfSignature(object);
  if (is_new) return TrackCreated(trace, object);
  if (!PyObject_TypeCheck(object, Objects().enumeration)) {
    throw Break{Reason::object_from_nowhere, Py_TYPE(object)->tp_name};
  }
  AdoptPinned(trace, object, Py_TYPE(object)->tp_name);
  return Shadow();
}

// The object is the trace's own. `all`: so is what it holds, whoever else has that.
Shadow TrackCreated(Trace& trace, PyObject* object, bool all) {
  const auto adopt = [&](PyObject* item) { all ? TrackCreated(trace, item, true) : AdoptResult(trace, item); };
  if (IsScalar(object)) return Shadow();
  if (IsTensor(object)) {
    const KnownTensor* known = trace.aten.tensors.Find(TensorOf(object));
    if (known == nullptr) throw Break{Reason::tensor_from_nowhere, ""};
    const bool is_plain = Py_TYPE(object) == Objects().tensor || Py_TYPE(object) == Objects().parameter;
    if (!known->source.valid() && !is_plain) {
      throw Break{Reason::tensor_subclass, Py_TYPE(object)->tp_name};
    }
    return Shadow();
  }
  if (trace.objects.Find(object) != nullptr || IsConstantTuple(trace, object)) return Shadow();
  if (PyTuple_Check(object)) {
    AddFresh(trace, object);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) adopt(PyTuple_GET_ITEM(object, i));
  } else if (PyList_Check(object)) {
    AddFresh(trace, object);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(object); ++i) adopt(PyList_GET_ITEM(object, i));
  } else if (PyDict_Check(object)) {
    AddFresh(trace, object);
    for (const auto [key, value] : DictItems(object)) {
      adopt(key);
      adopt(value);
    }
  } else if (IsAnySet(object)) {
    AddFresh(trace, object);
    Py_ssize_t at = 0;
    PyObject* item;
    Py_hash_t hash;
    while (_PySet_NextEntry(object, &at, &item, &hash)) adopt(item);
  } else if (PyMethod_Check(object)) {
    AddFresh(trace, object);
    adopt(PyMethod_GET_SELF(object));
  } else if (PyFunction_Check(object)) {
    AdoptPinned(trace, object);  // reached through guarded reads only, which do not say what its code is
  } else if (IsIdentityKind(object)) {
    AddFresh(trace, object);  // types and modules, reached likewise: constants; and new ones of the other kinds
  } else {
    const bool is_plain =
        PySlice_Check(object) || (Py_TYPE(object)->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0 || IsNamespace(object);
    const bool has_content = Py_TYPE(object) == Objects().inference_mode;  // of C++
    AddFresh(trace, object, is_plain && !has_content ? ObjectRecord::State::kFresh : ObjectRecord::State::kOpaque);
  }
  return Shadow();
}

// The object that a method binds, of Python code or of C: known by the path to the method, unless the trace has bound
// it itself.
Shadow MeetSelf(Trace& trace, PyObject* method, PyObject* self) {
  const ObjectRecord* known = trace.objects.Find(method);
  if (known != nullptr && known->state == ObjectRecord::State::kSource) {
    const SourceId source = trace.guards.Child(known->source, Accessor::kSelf, 0, nullptr, self);
    return FromSource(trace, source, self, known->pinned);
  }
  return AdoptResult(trace, self);
}

void GuardTypeOrIdentity(Trace& trace, PyObject* object) {
  ObjectRecord* known = trace.objects.Find(object);
  if (known == nullptr || known->state != ObjectRecord::State::kSource || known->touched) return;
  known->touched = true;
  if (PySlice_Check(object) || PyRange_Check(object)) {
    return trace.guards.Value(known->source, trace.frames.Here());  // its bounds are all there is to it
  }
  if (known->pinned && trace.guards.IsToldByNoHooks(known->source)) return;
  if (known->pinned || (IsIdentityKind(object) && !IsExchangeable(trace, object))) {
    Fix(trace, *known);
    if (PyType_Check(object)) return TouchMetaclass(trace, reinterpret_cast<PyTypeObject*>(object));
    // The very object of a builtin type has no more to say.
    if (PyFunction_Check(object) || PyModule_CheckExact(object) ||
        (Py_TYPE(object)->tp_flags & Py_TPFLAGS_IMMUTABLETYPE)) {
      return;
    }
  }
  const SourceId source = known->source;
  trace.guards.Type(source, trace.frames.Here());
  for (PyObject* name : HiddenParts(Py_TYPE(object))) GuardPart(trace, source, object, name);
}

// The attributes that C code reads of an object to decide what an operation on it gives. The type leaves them open.
static std::span<PyObject* const> HiddenParts(PyTypeObject* type) {
  static PyObject* const of_super[] = {InternedName("__thisclass__"), InternedName("__self__"),
                                       InternedName("__self_class__")};
  static PyObject* const of_union[] = {InternedName("__args__")};
  if (type == &PySuper_Type) return of_super;
  if (type == Objects().union_type) return of_union;
  return {};
}

static void GuardPart(Trace& trace, SourceId source, PyObject* object, PyObject* name) {
  const Ref<> part = Must(PyObject_GenericGetAttr(object, name));
  if (part.get() == Py_None) return trace.guards.Identity(source, trace.frames.Here());  // super(C) has no object
  const Shadow shadow =
      FromSource(trace, trace.guards.Child(source, Accessor::kAttr, 0, name, part.get()), part.get(), false);
  if (PyTuple_CheckExact(part.get())) return SpecializeDeep(trace, part.get(), shadow, true);
  Specialize(trace, part.get(), shadow);
  GuardTypeOrIdentity(trace, part.get());
}

// Operations on a class look at the class of the class: isinstance, truth, ==, len.
static void TouchMetaclass(Trace& trace, PyTypeObject* type) {
  PyTypeObject* const meta = Py_TYPE(type);
  if ((meta->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0) trace.guards.Class(meta, trace.frames.Here());
}

void Fix(Trace& trace, ObjectRecord& known) {
  trace.guards.Identity(known.source, trace.frames.Here());
  known.pinned = true;
  known.fixed = true;
  trace.objects.pinned[known.source.raw()] = true;
}

void FixContent(Trace& trace, PyObject* object) {
  ObjectRecord* known = IsScalar(object) ? nullptr : trace.objects.Find(object);
  const bool has_guard = PySlice_Check(object) || PyRange_Check(object) || IsIdentityKind(object);
  if (known != nullptr && known->state == ObjectRecord::State::kSource && !has_guard) Fix(trace, *known);
}

Shadow ElementShadow(Trace& trace, PyObject* container, Py_ssize_t index) {
  ObjectRecord* known = trace.objects.Find(container);
  if (known == nullptr || index < 0 || static_cast<size_t>(index) >= known->items.size()) return Shadow();
  return known->items[static_cast<size_t>(index)];
}

// Returns whether a key contains more than plain values, which the guard of the dict's keys compares.
static bool HoldsObjects(PyObject* key, int depth = 0) {
  constexpr int kDeepest = 100;
  if (IsScalar(key)) return false;
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

void AdoptElements(Trace& trace, PyObject* container) {
  ObjectRecord* known = trace.objects.Find(container);
  if (known == nullptr || known->state != ObjectRecord::State::kSource) return;
  if (known->mutated && IsDeque(container)) {
    throw Break{Reason::unknown_operation, "a deque that existed before and was changed"};
  }
  if (known->adopted) return;
  if (PyDict_Check(container)) RefuseWrittenDict(trace, container);
  const std::unique_ptr<OutsideChanges> changes = std::move(known->changes);
  known->adopted = true;
  known->touched = true;
  bool pinned = known->pinned;
  SourceId source = known->source;
  if (pinned) trace.guards.Identity(source, trace.frames.Here());
  trace.guards.Type(source, trace.frames.Here());
  if (PyTuple_Check(container) || PyList_Check(container)) {
    // Items that the trace has appended since are known already.
    const Py_ssize_t n = changes ? changes->entry_length : PySequence_Fast_GET_SIZE(container);
    trace.guards.Length(source, trace.frames.Here(), n);
    // The changes that a subclass of list makes to its items are not always seen: its numbers are fixed now.
    const bool keeps = PyTuple_Check(container) || PyList_CheckExact(container);
    absl::InlinedVector<Shadow, 2> items(keeps ? static_cast<size_t>(n) : 0);
    for (Py_ssize_t i = 0; i < n; ++i) {
      PyObject* item = PySequence_Fast_GET_ITEM(container, i);
      Shadow shadow = FromSource(trace, trace.guards.Child(source, Accessor::kItem, i, nullptr, item), item, pinned);
      if (keeps)
        items[static_cast<size_t>(i)] = shadow;
      else
        Specialize(trace, item, shadow);
    }
    if (changes) items.insert(items.end(), changes->appended.begin(), changes->appended.end());
    if (keeps) trace.objects.Find(container)->items = std::move(items);
  } else if (PyDict_Check(container)) {
    trace.guards.Keys(source, trace.frames.Here());
    Py_ssize_t at = 0, i = 0;
    PyObject *key, *value;
    while (PyDict_Next(container, &at, &key, &value)) {
      if (!IsScalar(key)) {
        // A key is an object that the program can reach (iteration): known by its place. The parts of a tuple are,
        // too: a look-up by another tuple compares them.
        FromSource(trace, trace.guards.Child(source, Accessor::kDictKeyAt, i, nullptr, key), key, pinned);
        GuardTypeOrIdentity(trace, key);
        if (HoldsObjects(key)) SpecializeDeep(trace, key, Shadow(), true);
      }
      ++i;
      if (changes && changes->stored.contains(PlainKey(trace, key))) {
        Specialize(trace, value, changes->stored.at(PlainKey(trace, key)));
        continue;
      }
      Specialize(trace, value,
                 FromSource(trace, trace.guards.Child(source, Accessor::kKey, 0, key, value), value, pinned));
    }
  } else if (IsDeque(container)) {
    trace.guards.Length(source, trace.frames.Here());
    for (Py_ssize_t i = 0; i < DequeLength(container); ++i) {
      PyObject* item = DequeItem(container, i);
      Specialize(trace, item,
                 FromSource(trace, trace.guards.Child(source, Accessor::kItem, i, nullptr, item), item, pinned));
    }
  } else if (PyFrozenSet_CheckExact(container)) {
    trace.guards.Value(source, trace.frames.Here());
  } else if (PySet_CheckExact(container)) {
    Py_ssize_t at = 0;
    PyObject* element;
    Py_hash_t hash;
    while (_PySet_NextEntry(container, &at, &element, &hash)) {
      if (!IsScalar(element)) throw Break{Reason::set_from_outside, ""};
    }
    trace.guards.Add(GuardKind::kElements, source, trace.frames.Here());
  } else if (IsAnySet(container)) {
    throw Break{Reason::set_from_outside, ""};
  }
}

void MarkMutated(Trace& trace, PyObject* object) {
  MeetAsObject(trace, object);
  if (ObjectRecord* known = trace.objects.Find(object)) {
    if (!known->items.empty() && PyList_Check(object)) [[unlikely]]
      SpecializeAndForgetItems(trace, object);  // they are known by their places
    if (known->changes && PyDict_CheckExact(object)) [[unlikely]]
      FixValues(trace, object);
    if (!trace.iteration.open.empty()) [[unlikely]]
      CloseIterator(trace, object);
    known->MutatedIn(trace.epoch);
  }
}

// It takes from other iterators in turn. Where the segment is cut in the middle of that, none is what it was.
void MarkAdvanced(Trace& trace, PyObject* object) {
  ObjectRecord* known = PyIter_Check(object) ? trace.objects.Find(object) : nullptr;
  if (known == nullptr || known->mutated_epoch == trace.epoch) return;
  MarkMutated(trace, object);
  if (Py_TYPE(object)->tp_traverse == nullptr) return;
  const visitproc visit = [](PyObject* part, void* of) { return MarkAdvanced(*static_cast<Trace*>(of), part), 0; };
  const visitproc visit_of_generator = [](PyObject* part, void* of) {  // whose bytecode takes one by one (sequences/R3)
    Trace& trace = *static_cast<Trace*>(of);
    ObjectRecord* const known = trace.iteration.open.contains(part) ? trace.objects.Find(part) : nullptr;
    return known != nullptr ? known->MutatedIn(trace.epoch) : MarkAdvanced(trace, part), 0;
  };
  Py_TYPE(object)->tp_traverse(object, PyGen_CheckExact(object) ? visit_of_generator : visit, &trace);
}

void BeginMutation(Trace& trace, PyObject* container) {
  ObjectRecord* known = trace.objects.Find(container);
  if (known == nullptr) throw Break{Reason::unknown_mutation, Py_TYPE(container)->tp_name};
  if (known->state == ObjectRecord::State::kSource) {
    if (trace.guards.accessor(known->source) == Accessor::kDict) {
      throw Break{Reason::unknown_mutation, "an object's __dict__ is written to"};
    }
    if (PyDict_Check(container)) {
      // A value written by a name (a global, a buffer) is kept apart.
      if (known->written != nullptr && PyDict_CheckExact(container)) {
        throw DictOfWrittenObject();
      }
      trace.objects.has_mutated_dicts = true;
    }
    AdoptElements(trace, container);
    if (!known->mutated) trace.objects.mutated_sources.push_back(container);
  }
  MarkMutated(trace, container);
}

bool IsMutatedDict(Trace& trace, PyObject* dict) {
  const ObjectRecord* known = dict != nullptr ? trace.objects.Find(dict) : nullptr;
  return known != nullptr && known->state == ObjectRecord::State::kSource && known->mutated;
}

void ThrowMutatedDict() { throw Break{Reason::unknown_operation, "a name in a dict that was written to as a dict"}; }

SourceId SourceOf(Trace& trace, PyObject* object) {
  if (IsTensor(object)) {
    KnownTensor* known = trace.aten.tensors.Find(TensorOf(object));
    return known ? known->source : SourceId();
  }
  ObjectRecord* known = trace.objects.Find(object);
  return known && known->state == ObjectRecord::State::kSource ? known->source : SourceId();
}

void ReadTensor(Trace& trace, PyObject* object, bool sizes, bool strides) {
  KnownTensor* known = trace.aten.tensors.Find(TensorOf(object));
  if (known == nullptr) throw Break{Reason::tensor_from_nowhere, ""};
  if (trace.repeated_calls) trace.repeated_calls->NoteRead(known->source, known->value, sizes, strides);
  if (known->strides_read || (known->metadata_read && !strides)) return;
  known->metadata_read = true;
  known->strides_read = strides;
  TensorRead read;
  read.sizes = sizes || strides;
  read.strides = strides;
  if (known->is_as_at_entry()) {
    trace.guards.Tensor(known->source, read, trace.frames.Here());
    return;
  }
  if (!known->value.valid()) throw Break{Reason::data_dependent_size, ""};
  FixValue(trace, known->value, read, strides ? &trace.numbers.strides_read : &trace.numbers.sizes_read);
}

void ReadRank(Trace& trace, PyObject* object) {
  KnownTensor* known = trace.aten.tensors.Find(TensorOf(object));
  if (known == nullptr) throw Break{Reason::tensor_from_nowhere, ""};
  if (trace.repeated_calls) trace.repeated_calls->NoteRank(known->source, known->value);
  if (known->value.valid()) FixRank(trace, known->value);
}

void ReadAllTensors(Trace& trace, PyObject* object, bool strides) {
  if (object == nullptr) return;
  if (IsTensor(object)) {
    ReadTensor(trace, object, true, strides);
  } else if (PyTuple_Check(object) || PyList_Check(object)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      ReadAllTensors(trace, PySequence_Fast_GET_ITEM(object, i), strides);
    }
  }
}

Shadow* WrittenShadow(Trace& trace, PyObject* owner, PyObject* name) {
  ObjectRecord* known = trace.objects.Find(owner);
  if (known == nullptr || !known->written) return nullptr;
  // Names are interned, as those in code are; one that was computed may not be.
  const bool is_computed = PyUnicode_CheckExact(name) && !PyUnicode_CHECK_INTERNED(name);
  auto it = known->written->find(is_computed ? Interned(name).get() : name);
  return it == known->written->end() ? nullptr : &it->second;
}

void SetWritten(Trace& trace, PyObject* owner, PyObject* name, Shadow shadow) {
  ObjectRecord* known = trace.objects.Find(owner);
  const bool is_computed = PyUnicode_CheckExact(name) && !PyUnicode_CHECK_INTERNED(name);
  if (is_computed) trace.objects.computed_names.push_back(Interned(name));
  if (!known->written) known->written = std::make_unique<absl::flat_hash_map<PyObject*, Shadow>>();
  (*known->written)[is_computed ? trace.objects.computed_names.back().get() : name] = shadow;
}

SourceId SourceOrPin(Trace& trace, PyObject* object) {
  SourceId source = SourceOf(trace, object);
  if (source.valid()) return source;
  FromSource(trace, trace.guards.Pinned(object, Py_TYPE(object)->tp_name), object, true);
  source = SourceOf(trace, object);
  return source.valid() ? source : trace.guards.Pinned(object, Py_TYPE(object)->tp_name);
}

void AddEffect(Trace& trace, Effect::Kind kind, PyObject* target, const std::string& name,
               std::vector<PyObject*> values, std::vector<Shadow> shadows) {
  RefuseLoudEffect(kind, target, name, values);
  if (trace.effects.undo) trace.effects.undo->Before(kind, target, name);
  MeetEffect(trace, kind, target, name, values.empty() ? nullptr : values[0]);
  PushEffect(trace, kind, target, name, values, std::move(shadows));
}

void PushEffect(Trace& trace, Effect::Kind kind, PyObject* target, const std::string& name,
                const std::vector<PyObject*>& values, std::vector<Shadow> shadows) {
  FT_DCHECK(values.size() == shadows.size());
  PendingEffect effect;
  effect.kind = kind;
  effect.target = Ref<>::New(target);
  effect.name = name;
  for (PyObject* value : values) effect.values.push_back(Ref<>::New(value));
  effect.shadows = std::move(shadows);
  effect.nodes_before = trace.node_count();
  effect.at = PositionOf(trace, trace.frames.innermost().code, trace.frames.innermost().offset);
  if (trace.lifetimes.watches()) {
    auto count = [&trace](PyObject* held) {
      if (auto it = trace.lifetimes.watched.find(held); it != trace.lifetimes.watched.end()) ++it->second;
    };
    count(target);
    for (PyObject* value : values) count(value);
  }
  trace.effects.pending.push_back(std::move(effect));
}

}  // namespace frametap
