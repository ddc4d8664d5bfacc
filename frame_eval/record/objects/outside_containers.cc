#include "frame_eval/record/objects/outside_containers.h"

#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/numbers/sequences.h"
#include "frame_eval/record/numbers/sizes.h"
#include "frame_eval/record/objects/class_references.h"
#include "frame_eval/record/objects/identity.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/open_keys.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/semantics/iterators.h"
#include "guards/objects/dict_items.h"
#include "guards/objects/dict_write.h"
#include "guards/objects/value.h"
#include "guards/throw_if_null.h"

namespace frametap {

bool IsPlainKey(PyObject* key, int depth) {
  constexpr int kDeepest = 8;
  if (!IsPlainTuple(key)) return IsScalar(key) && !HoldsNan(key);
  if (depth == kDeepest) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); ++i) {
    if (!IsPlainKey(PyTuple_GET_ITEM(key, i), depth + 1)) return false;
  }
  return true;
}

bool IsFollowedKey(Trace& trace, PyObject* key) {
  if (IsPlainKey(key)) return true;
  if (IsPlainClass(key)) return IsFixed(trace, key);
  ObjectRecord* const known = IsPlainMember(key) ? trace.objects.Find(key) : nullptr;
  if (known == nullptr || known->state != ObjectRecord::State::kSource) return false;
  GuardTypeOrIdentity(trace, key);
  Fix(trace, *known);
  return true;
}

bool HasPlainStore(PyObject* dict) {
  static PyObject* const name = InternedName("__setitem__");
  if (PyDict_CheckExact(dict) || PyODict_CheckExact(dict)) return true;
  PyObject* const store = _PyType_Lookup(Py_TYPE(dict), name);
  return store == _PyType_Lookup(&PyDict_Type, name) || store == _PyType_Lookup(&PyODict_Type, name);
}

PyTypeObject* DefaultDict() {
  static PyTypeObject* const type = [] {
    const Ref<> module = Must(PyImport_ImportModule("_collections"));
    return reinterpret_cast<PyTypeObject*>(Must(PyObject_GetAttrString(module.get(), "defaultdict")).Release());
  }();
  return type;
}

PyObject* FactoryField() {
  static PyObject* const field = _PyType_Lookup(DefaultDict(), InternedName("default_factory"));
  return field;
}

Ref<> FactoryOf(PyObject* defaultdict) {
  return Must(Py_TYPE(FactoryField())->tp_descr_get(FactoryField(), defaultdict, nullptr));
}

// Returns one object for all plain keys that are equal, borrowed. Classes and members are themselves. Returns null for other
// keys.
PyObject* PlainKey(Trace& trace, PyObject* key) {
  if (IsPlainClass(key) || IsPlainMember(key)) return key;
  if (!IsPlainKey(key)) return nullptr;
  if (!trace.objects.plain_keys) trace.objects.plain_keys = Must(PyDict_New());
  PyObject* const first = PyDict_SetDefault(trace.objects.plain_keys.get(), key, key);
  if (first == nullptr) throw std::bad_alloc();
  return first;
}

Shadow* StoredItem(Trace& trace, PyObject* dict, PyObject* key) {
  ObjectRecord* known = trace.objects.Find(dict);
  if (known == nullptr || !known->changes) return nullptr;
  const auto it = known->changes->stored.find(PlainKey(trace, key));
  return it == known->changes->stored.end() ? nullptr : &it->second;
}

void NoteOutsideChange(Trace& trace, PyObject* container) {
  ObjectRecord* known = trace.objects.Find(container);
  if (!known->mutated) trace.objects.mutated_sources.push_back(container);
  known->MutatedIn(trace.epoch);
  trace.objects.has_mutated_dicts |= PyDict_Check(container) != 0;
}

// `container[key] = value`. Returns false, with nothing noted, if the content must be known first (Own).
bool StoreOutside(Trace& trace, PyObject* container, PyObject* key, PyObject* value, Shadow shadow) {
  ObjectRecord* known = trace.objects.Find(container);
  if (known == nullptr || known->state != ObjectRecord::State::kSource) return false;
  if (PyList_CheckExact(container) && PyLong_CheckExact(key)) {
    const Py_ssize_t size = PyList_GET_SIZE(container);
    Py_ssize_t index = PyLong_AsSsize_t(key);
    if (index == -1 && PyErr_Occurred() != nullptr) PyErr_Clear(), index = size;
    if (index < 0) index += size;
    if (index < 0 || index >= size) return false;
    FixIfViewed(trace, container, value, shadow);
    AdoptElements(trace, container);
    AddEffect(trace, Effect::Kind::kSetItem, container, "", {key, value}, {Shadow(), shadow});
    known = trace.objects.Find(container);
    known->items.resize(static_cast<size_t>(size));
    known->items[static_cast<size_t>(index)] = shadow;
    NoteOutsideChange(trace, container);
    return true;
  }
  // A name in an object's own dict or in a module's globals is read by other ways, too.
  if (!PyDict_Check(container) || !IsFollowedKey(trace, key) || known->adopted || known->written != nullptr ||
      trace.guards.accessor(known->source) == Accessor::kDict || !HasPlainStore(container)) {
    return false;
  }
  RefuseWrittenDict(trace, container);
  if (StoredItem(trace, container, key) == nullptr) {
    if (ItemQuietly(container, key) == nullptr) return false;
    GuardTypeOrIdentity(trace, container);
    trace.guards.Present(known->source, key, trace.frames.Here());
  }
  AddEffect(trace, Effect::Kind::kSetItem, container, "", {key, value}, {Shadow(), shadow});
  if (!known->changes) known->changes = std::make_unique<OutsideChanges>();
  known->changes->stored[PlainKey(trace, key)] = shadow;
  NoteOutsideChange(trace, container);
  return true;
}

bool StoreUnderNewKey(Trace& trace, PyObject* dict, PyObject* key, PyObject* value, Shadow shadow) {
  ObjectRecord* known = trace.objects.Find(dict);
  if (known == nullptr || known->state != ObjectRecord::State::kSource || known->written != nullptr) return false;
  if (!PyDict_CheckExact(dict) || !IsPlainKey(key) || trace.guards.accessor(known->source) == Accessor::kDict)
    return false;
  if (!known->changes && !LeavesOpen(trace, value, shadow)) return false;
  AdoptElements(trace, dict);
  ReadKey(trace, dict, key);
  AddEffect(trace, Effect::Kind::kSetItem, dict, "", {key, value}, {Shadow(), shadow});
  known = trace.objects.Find(dict);
  if (!known->changes) known->changes = std::make_unique<OutsideChanges>();
  known->changes->stored[PlainKey(trace, key)] = shadow;
  NoteOutsideChange(trace, dict);
  return true;
}

bool LoopOver(Trace& trace, PyObject* dict) {
  if (!PyDict_CheckExact(dict) && Py_TYPE(dict) != DefaultDict()) return false;
  const ObjectRecord* const known = trace.objects.Find(dict);
  if (known == nullptr || known->state != ObjectRecord::State::kSource) return false;
  FixKeys(trace, dict);
  AdoptElements(trace, dict);
  for (const auto [key, value] : DictItems(dict)) {
    Specialize(trace, value, ShadowOfItem(trace, dict, key));
  }
  return true;
}

// Returns the record of a container that existed before, if its content as a whole is unknown and its length has changed.
static const ObjectRecord* ChangingInLength(Trace& trace, PyObject* container) {
  if (!PyList_CheckExact(container) && !PyDict_CheckExact(container) && !PySet_CheckExact(container)) return nullptr;
  const ObjectRecord* const known = trace.objects.Find(container);
  if (known == nullptr || known->state != ObjectRecord::State::kSource || known->adopted) return nullptr;
  if (known->mutated && !known->changes) return nullptr;
  return trace.numbers.any_open() && HasChangedInLength(trace, known->source) ? known : nullptr;
}

Shadow OpenLength(Trace& trace, PyObject* container) {
  const ObjectRecord* const known = ChangingInLength(trace, container);
  if (known == nullptr) return Shadow();
  const auto added = static_cast<int64_t>(known->changes ? known->changes->appended.size() : 0);
  if (PyDict_Check(container)) RefuseWrittenDict(trace, container);
  const Ref<> length = Must(PyLong_FromSsize_t(PyObject_Size(container) - added));
  const SourceId source = trace.guards.Child(known->source, Accessor::kLength, 0, nullptr, length.get());
  const Shadow at_entry = FromSource(trace, source, length.get(), false);
  if (added == 0) return at_entry;
  return IntOp(trace, BuiltinOp::kIntAdd, IntTerm::Of(at_entry), IntTerm::Of(added))->shadow;
}

std::optional<ResultSpec> ItemFromEnd(Trace& trace, PyObject* list, PyObject* key) {
  const ObjectRecord* const known = PyList_CheckExact(list) ? trace.objects.Find(list) : nullptr;
  if (known == nullptr || known->state != ObjectRecord::State::kSource || known->adopted) return std::nullopt;
  if (!PyLong_CheckExact(key) || (known->mutated && !known->changes)) return std::nullopt;
  const Py_ssize_t from_end = -PyLong_AsSsize_t(key);
  if (from_end == 1 && PyErr_Occurred() != nullptr) PyErr_Clear();
  if (from_end < 1 || from_end > PyList_GET_SIZE(list)) return std::nullopt;
  const Py_ssize_t added = known->changes ? static_cast<Py_ssize_t>(known->changes->appended.size()) : 0;
  ResultSpec item;
  if (from_end <= added) {
    item.kind = ResultSpec::Kind::kShadow;
    item.shadow = known->changes->appended[static_cast<size_t>(added - from_end)];
    if (item.shadow.kind == Shadow::Kind::kNone) item.kind = ResultSpec::Kind::kAny;
    return item;
  }
  if (ChangingInLength(trace, list) == nullptr) return std::nullopt;
  item.kind = ResultSpec::Kind::kSource;
  item.pinned = known->pinned;
  item.source = trace.guards.Child(known->source, Accessor::kItem, added - from_end, nullptr,
                                   PyList_GET_ITEM(list, PyList_GET_SIZE(list) - from_end));
  return item;
}

bool HasAppended(Trace& trace, PyObject* list) {
  const ObjectRecord* const known = trace.objects.Find(list);
  return known != nullptr && known->changes && !known->adopted && !known->changes->appended.empty();
}

// list.append(item), or list.extend(items) with a tuple or list. Returns false, with nothing noted, if it is not such
// a list.
bool AppendOutside(Trace& trace, PyObject* list, PyObject* items, PyObject* item, Shadow shadow) {
  ObjectRecord* known = trace.objects.Find(list);
  if (known == nullptr || known->state != ObjectRecord::State::kSource || !PyList_CheckExact(list) || items == list)
    return false;
  if (items != nullptr && !PyTuple_CheckExact(items) && !PyList_CheckExact(items)) return false;
  GuardTypeOrIdentity(trace, list);
  FixIfViewed(trace, list, items != nullptr ? items : item, shadow);
  std::vector<Shadow> appended;
  Ref<> content;
  if (items == nullptr) {
    appended.push_back(shadow);
  } else {
    // As it is now: effects are described at the end, when the trace may have changed it.
    GuardTypeOrIdentity(trace, items);
    AdoptElements(trace, items);
    content = PyTuple_CheckExact(items) ? Ref<>::New(items) : Must(PySequence_Tuple(items));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(content.get()); ++i) appended.push_back(ElementShadow(trace, items, i));
    if (content.get() != items && !appended.empty())
      AddFresh(trace, content.get()).items.assign(appended.begin(), appended.end());
  }
  if (known->adopted) {
    known->items.resize(static_cast<size_t>(PyList_GET_SIZE(list)));
    known->items.insert(known->items.end(), appended.begin(), appended.end());
  } else {
    if (!known->changes) {
      known->changes = std::make_unique<OutsideChanges>();
      known->changes->entry_length = PyList_GET_SIZE(list);
    }
    std::vector<Shadow>& so_far = known->changes->appended;
    so_far.insert(so_far.end(), appended.begin(), appended.end());
  }
  if (items == nullptr) {
    AddEffect(trace, Effect::Kind::kCall, list, "append", {item}, {shadow});
  } else {
    AddEffect(trace, Effect::Kind::kCall, list, "extend", {content.get()}, {Shadow()});
  }
  NoteOutsideChange(trace, list);
  return true;
}

}  // namespace frametap
