// Changes of lists and dicts that existed before, where the trace has not read their whole content. Examples are a
// counter in a dict, an item of a list, and a list that grows from call to call.
//   O1  A store under a key needs that the key was there, an append needs nothing: what is not read stays unguarded.
//   O2  A stored or appended value keeps its shadow, so that no number is fixed. The container's other items are as at
//       the entry.
//   O3  What reads the content as a whole (AdoptElements) guards it as it was at the entry, and takes the changes from
//       here. A dict's values are fixed then. Numbers that are stored later are open again, until the next such read or
//       another change (FixValues).
//   O4  Only plain keys, fixed classes and fixed members of enumerations are followed: a look-up by one runs no code of
//       the program's.
// Not here: lists and dicts of the trace's own (rows.cc, own_dicts.cc), changes that need the content to be known (Own).
#include "frame_eval/record/objects/outside_containers.h"

#include "frame_eval/record/numbers/rows.h"
#include "frame_eval/record/objects/class_references.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/recorder.h"
#include "guards/must.h"
#include "guards/objects/known_objects.h"
#include "guards/objects/value.h"

namespace frametap {

bool IsPlainKey(PyObject* key, int depth) {
  constexpr int kDeepest = 8;
  if (!IsPlainTuple(key)) return Recorder::IsScalar(key) && !HoldsNan(key);
  if (depth == kDeepest) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); ++i) {
    if (!IsPlainKey(PyTuple_GET_ITEM(key, i), depth + 1)) return false;
  }
  return true;
}

bool IsFollowedKey(Recorder& r, PyObject* key) {
  if (IsPlainKey(key)) return true;
  if (IsPlainClass(key)) return r.IsFixed(key);
  Known* const known = IsPlainMember(key) ? r.Find(key) : nullptr;
  if (known == nullptr || known->state != Known::State::kSource) return false;
  r.Touch(key);
  r.Fix(*known);
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
PyObject* Recorder::PlainKey(PyObject* key) {
  if (IsPlainClass(key) || IsPlainMember(key)) return key;
  if (!IsPlainKey(key)) return nullptr;
  if (!plain_keys_) plain_keys_ = Must(PyDict_New());
  PyObject* const first = PyDict_SetDefault(plain_keys_.get(), key, key);
  if (first == nullptr) throw std::bad_alloc();
  return first;
}

Shadow* Recorder::StoredItem(PyObject* dict, PyObject* key) {
  Known* known = Find(dict);
  if (known == nullptr || !known->changes) return nullptr;
  const auto it = known->changes->stored.find(PlainKey(key));
  return it == known->changes->stored.end() ? nullptr : &it->second;
}

void Recorder::NoteOutsideChange(PyObject* container) {
  Known* known = Find(container);
  if (!known->mutated) mutated_sources_.push_back(container);
  known->MutatedIn(epoch_);
  has_mutated_dicts_ |= PyDict_Check(container) != 0;
}

// `container[key] = value`. Returns false, with nothing noted, if the content must be known first (Own).
bool Recorder::StoreOutside(PyObject* container, PyObject* key, PyObject* value, Shadow shadow) {
  Known* known = Find(container);
  if (known == nullptr || known->state != Known::State::kSource) return false;
  if (PyList_CheckExact(container) && PyLong_CheckExact(key)) {
    const Py_ssize_t size = PyList_GET_SIZE(container);
    Py_ssize_t index = PyLong_AsSsize_t(key);
    if (index == -1 && PyErr_Occurred() != nullptr) PyErr_Clear(), index = size;
    if (index < 0) index += size;
    if (index < 0 || index >= size) return false;
    FixIfViewed(*this, container, value, shadow);
    AdoptElements(container);
    AddEffect(Effect::Kind::kSetItem, container, "", {key, value}, {Shadow(), shadow});
    known = Find(container);
    known->items.resize(static_cast<size_t>(size));
    known->items[static_cast<size_t>(index)] = shadow;
    NoteOutsideChange(container);
    return true;
  }
  // A name in an object's own dict or in a module's globals is read by other ways, too.
  if (!PyDict_Check(container) || !IsFollowedKey(*this, key) || known->adopted || known->written != nullptr ||
      guards_.accessor(known->source) == Accessor::kDict || !HasPlainStore(container)) {
    return false;
  }
  RefuseWrittenDict(container);
  if (StoredItem(container, key) == nullptr) {
    if (ItemQuietly(container, key) == nullptr) return false;
    Touch(container);
    guards_.Present(known->source, key, Here());
  }
  AddEffect(Effect::Kind::kSetItem, container, "", {key, value}, {Shadow(), shadow});
  if (!known->changes) known->changes = std::make_unique<OutsideChanges>();
  known->changes->stored[PlainKey(key)] = shadow;
  NoteOutsideChange(container);
  return true;
}

bool StoreUnderNewKey(Recorder& r, PyObject* dict, PyObject* key, PyObject* value, Shadow shadow) {
  Known* known = r.Find(dict);
  if (known == nullptr || known->state != Known::State::kSource || known->written != nullptr) return false;
  if (!PyDict_CheckExact(dict) || !IsPlainKey(key) || r.guards().accessor(known->source) == Accessor::kDict)
    return false;
  if (!known->changes && !r.LeavesOpen(value, shadow)) return false;
  r.AdoptElements(dict);
  r.ReadKey(dict, key);
  r.AddEffect(Effect::Kind::kSetItem, dict, "", {key, value}, {Shadow(), shadow});
  known = r.Find(dict);
  if (!known->changes) known->changes = std::make_unique<OutsideChanges>();
  known->changes->stored[r.PlainKey(key)] = shadow;
  r.NoteOutsideChange(dict);
  return true;
}

// list.append(item), or list.extend(items) with a tuple or list. Returns false, with nothing noted, if it is not such
// a list.
bool Recorder::AppendOutside(PyObject* list, PyObject* items, PyObject* item, Shadow shadow) {
  Known* known = Find(list);
  if (known == nullptr || known->state != Known::State::kSource || !PyList_CheckExact(list) || items == list)
    return false;
  if (items != nullptr && !PyTuple_CheckExact(items) && !PyList_CheckExact(items)) return false;
  Touch(list);
  FixIfViewed(*this, list, items != nullptr ? items : item, shadow);
  std::vector<Shadow> appended;
  Ref<> content;
  if (items == nullptr) {
    appended.push_back(shadow);
  } else {
    // As it is now: effects are described at the end, when the trace may have changed it.
    Touch(items);
    AdoptElements(items);
    content = PyTuple_CheckExact(items) ? Ref<>::New(items) : Must(PySequence_Tuple(items));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(content.get()); ++i) appended.push_back(ElementShadow(items, i));
    if (content.get() != items && !appended.empty())
      AddFresh(content.get()).items.assign(appended.begin(), appended.end());
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
    AddEffect(Effect::Kind::kCall, list, "append", {item}, {shadow});
  } else {
    AddEffect(Effect::Kind::kCall, list, "extend", {content.get()}, {Shadow()});
  }
  NoteOutsideChange(list);
  return true;
}

}  // namespace frametap
