#include "guards/kinds/class_note.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "guards/cpython/watch.h"
#include "guards/kinds/class_counters.h"
#include "guards/kinds/no_hooks.h"
#include "guards/objects/dict_items.h"
#include "guards/objects/import.h"
#include "guards/objects/value.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

bool CanChange(PyTypeObject* type) { return (type->tp_flags & Py_TPFLAGS_IMMUTABLETYPE) == 0; }

bool Equal(PyObject* a, PyObject* b) {  // of strings
  return a == b || (PyUnicode_GET_LENGTH(a) == PyUnicode_GET_LENGTH(b) && PyUnicode_Compare(a, b) == 0);
}

bool IsOneOf(PyObject* name, const std::vector<PyObject*>& names) {
  return std::any_of(names.begin(), names.end(), [name](PyObject* one) { return Equal(one, name); });
}

// Who asks for all attributes at once reads each of them.
bool AsksForAll(PyObject* name) {
  static const std::vector<PyObject*> kAll = {InternedName("__dict__"), InternedName("vars"), InternedName("dir")};
  return IsOneOf(name, kAll);
}

// N2. C code looks these up without an instruction that names them. Other special names are looked up by few callers,
// which report it (ReadsName): where an instance is made, or copied.
bool IsAskedForByC(PyObject* name) {
  static const std::vector<PyObject*> kSeldom = {InternedName("__slotnames__"), InternedName("__annotations__"),
                                                 InternedName("__doc__"),       InternedName("__init__"),
                                                 InternedName("__new__"),       InternedName("__setstate__")};
  static const std::vector<PyObject*> kOthers = [] {
    std::vector<PyObject*> names;
    // The groups belong to modules, to mappings and iterators, and to named tuples.
    static constexpr const char* kNames[] = {"forward",
                                             "_call_impl",
                                             "_wrapped_call_impl",
                                             "_compiled_call_impl",
                                             "_slow_forward",
                                             "register_buffer",
                                             "register_parameter",
                                             "register_module",
                                             "add_module",
                                             "_parameters",
                                             "_buffers",
                                             "_modules",
                                             "keys",
                                             "items",
                                             "get",
                                             "send",
                                             "throw",
                                             "close",
                                             "_fields",
                                             "_make"};
    for (const char* name : kNames) {
      names.push_back(InternedName(name));
    }
    for (const Key& key : NoHooksGuard::names().of_class) names.push_back(key.object.get());
    for (const Key& key : NoHooksGuard::names().hooks) names.push_back(key.object.get());
    return names;
  }();
  const Py_ssize_t length = PyUnicode_GET_LENGTH(name);
  const auto at = [name](Py_ssize_t i) { return PyUnicode_READ_CHAR(name, i); };
  const bool is_special = length > 4 && at(0) == '_' && at(1) == '_' && at(length - 1) == '_' && at(length - 2) == '_';
  return is_special ? !IsOneOf(name, kSeldom) : IsOneOf(name, kOthers);
}

// A list, dict or set of plain values: it keeps nothing else alive.
bool IsPlainContainer(PyObject* value) {
  constexpr Py_ssize_t kMost = 256;
  Py_ssize_t at = 0;
  PyObject *key, *item;
  Py_hash_t hash;
  if (PyList_CheckExact(value) && PyList_GET_SIZE(value) <= kMost) {
    PyObject** const items = PySequence_Fast_ITEMS(value);
    return std::all_of(items, items + PyList_GET_SIZE(value), IsPlainValue);
  }
  if (PyDict_CheckExact(value) && PyDict_GET_SIZE(value) <= kMost) {
    while (PyDict_Next(value, &at, &key, &item)) {
      if (!IsPlainValue(key) || !IsPlainValue(item)) return false;
    }
    return true;
  }
  if (!PyAnySet_CheckExact(value) || PySet_GET_SIZE(value) > kMost) return false;
  while (_PySet_NextEntry(value, &at, &item, &hash)) {
    if (!IsPlainValue(item)) return false;
  }
  return true;
}

// The attribute of each abstract base class for its registrations: it holds classes weakly.
PyTypeObject* TypeOfRegistrations() {
  static PyTypeObject* const type = [] {
    const Ref<> module = MustImport("collections.abc");
    const Ref<> base = Must(PyObject_GetAttrString(module.get(), "Hashable"));
    return Py_TYPE(Must(PyObject_GetAttrString(base.get(), "_abc_impl")).get());
  }();
  return type;
}

// N3
bool CanBeHeld(PyObject* value) {
  PyTypeObject* const kind = Py_TYPE(value);
  if (kind == TypeOfRegistrations() || IsPlainContainer(value)) return true;
  return PyFunction_Check(value) || PyCFunction_Check(value) || PyType_Check(value) || kind == &PyProperty_Type ||
         kind == &PyClassMethod_Type || kind == &PyStaticMethod_Type || kind == &PyMemberDescr_Type ||
         kind == &PyGetSetDescr_Type || kind == &PyMethodDescr_Type || kind == &PyWrapperDescr_Type ||
         kind == &PyClassMethodDescr_Type || IsPlainValue(value);
}

PyObject* NotHeld() {
  static PyObject* const object = Must(PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type))).Release();
  return object;
}

// Puts NotHeld into a copy of a class's attributes, for each that cannot be held. Returns whether there was none.
bool HoldWhatCanBe(PyObject* own) {
  bool holds_all = true;
  for (const auto [name, value] : DictItems(own)) {
    if (CanBeHeld(value)) continue;
    holds_all = false;
    if (PyDict_SetItem(own, name, NotHeld()) < 0) throw std::bad_alloc();
  }
  return holds_all;
}

struct Entry {
  std::weak_ptr<ClassNote> note;
  uint64_t held_version = 0;  // of the dict of the class, when all in it could be held; no other dict has ever had it
};
using Notes = absl::flat_hash_map<PyTypeObject*, Entry>;

Notes& AllNotes() {
  static auto* const notes = new Notes();
  return *notes;
}

// torch.nn.Module: its note is by far the largest, and nearly each recording needs it. The class never goes away, so
// its latest note is kept. Other classes may go away, and a note keeps their functions alive.
bool IsModuleClass(PyTypeObject* type) {
  static PyObject* const module = Must(PyObject_GetAttrString(MustImport("torch.nn").get(), "Module")).Release();
  return reinterpret_cast<PyObject*>(type) == module;
}

// Forgets classes that are gone, now and then.
void Tidy(Notes* notes) {
  static size_t most = 256;
  if (notes->size() < most) return;
  absl::erase_if(*notes, [](const auto& one) { return one.second.note.expired(); });
  most = std::max<size_t>(256, 2 * notes->size());
}

}  // namespace

void NamesRead::AddNewCode(PyCodeObject* code) {
  if (codes_.insert(code).second) kept_.push_back(Ref<>::New(reinterpret_cast<PyObject*>(code)));
}

void NamesRead::AddNew(PyObject* name) {
  if (names_.empty()) {
    constexpr size_t kUsual = 100;  // of a small model
    names_.reserve(kUsual);
    kept_.reserve(kUsual);
  }
  if (PyUnicode_CheckExact(name) && names_.insert(name).second) kept_.push_back(Ref<>::New(name));
}

void NamesRead::AddInt(PyTypeObject* type, PyObject* name, bool is_open) {
  for (IntRead& one : ints_) {
    if (one.type != type || !Equal(one.name, name)) continue;
    one.is_open = one.is_open && is_open;
    return;
  }
  kept_.push_back(Ref<>::New(name));
  ints_.push_back({type, name, is_open});
}

bool NamesRead::LeavesOut(PyTypeObject* type, PyObject* name) const {
  const auto asks = [name](PyObject* one) { return Equal(one, name); };
  if (std::any_of(names_.begin(), names_.end(), AsksForAll)) return false;
  for (const IntRead& one : ints_) {
    if (one.type == type && asks(one.name)) return one.is_open;
  }
  return std::none_of(names_.begin(), names_.end(), asks);
}

bool NamesRead::Has(PyObject* name) const {
  const auto is_it = [name](PyObject* one) { return Equal(one, name) || AsksForAll(one); };
  if (std::any_of(names_.begin(), names_.end(), is_it)) return true;
  return std::any_of(codes_.begin(), codes_.end(), [&](PyCodeObject* code) {
    PyObject* const names = code->co_names;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i) {
      if (is_it(PyTuple_GET_ITEM(names, i))) return true;
    }
    return false;
  });
}

ClassNote::Held ClassNote::Of(PyTypeObject* type) {
  Held held;
  // A class that is still being made has no MRO yet: only its version counts.
  if (!CanChange(type) || type->tp_mro == nullptr || type->tp_dict == nullptr) return held;
  Notes& notes = AllNotes();
  if (const auto it = notes.find(type); it != notes.end()) {
    std::shared_ptr<ClassNote> note = it->second.note.lock();
    // It has a version only while all is as noted. A class that has changed gets a new note.
    static const NamesRead kNone;
    if (note != nullptr && note->IsSame(kNone) && note->version_ != 0 && TypeIsUnchanged(type, note->version_))
      return {note, Ref<>::New(note->content_)};
  }
  held.note = Make(type, &held.content);
  notes[type].note = held.note;
  Tidy(&notes);
  if (IsModuleClass(type)) {
    static auto* const kept = new Held();
    *kept = held;
  }
  return held;
}

std::shared_ptr<ClassNote> ClassNote::Make(PyTypeObject* type, Ref<>* content) {
  auto note = std::make_shared<ClassNote>();
  note->type_ = type;
  PyObject* const attributes = type->tp_dict;
  Ref<> own;
  if (HasOnlyExactStrKeys(attributes)) {
    // A copy as a whole costs far less than one made name by name, and few values cannot be held.
    own = Must(PyDict_Copy(attributes));
    note->own_version_ = DictVersion(attributes);
    uint64_t& held_version = AllNotes()[type].held_version;
    if (note->own_version_ == 0 || held_version != note->own_version_) {
      held_version = HoldWhatCanBe(own.get()) ? note->own_version_ : 0;
    }
  } else {
    own = Must(PyDict_New());
  }
  std::vector<Ref<>> parts{Ref<>::New(type->tp_mro), std::move(own)};
  for (Py_ssize_t i = 1; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    Held base = Of(reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(type->tp_mro, i)));
    if (base.note == nullptr) continue;
    note->bases_.push_back(std::move(base.note));
    parts.push_back(std::move(base.content));
  }
  *content = Must(PyTuple_New(static_cast<Py_ssize_t>(parts.size())));
  for (size_t i = 0; i < parts.size(); ++i) {
    PyTuple_SET_ITEM(content->get(), static_cast<Py_ssize_t>(i), parts[i].Release());
  }
  note->content_ = content->get();
  note->version_ = TypeVersion(type);
  return note;
}

bool ClassNote::OwnIsSame(const NamesRead& names) {
  PyObject* const now = type_->tp_dict;
  if (now == nullptr) return false;
  if (own_version_ != 0 && DictVersion(now) == own_version_) return true;
  if (own_version_ == 0 || !HasOnlyExactStrKeys(now)) return false;
  PyObject* const then = PyTuple_GET_ITEM(content_, 1);
  bool is_all = true;
  const auto counts = [&](PyObject* name) {
    is_all = false;
    return IsAskedForByC(name) || names.Has(name);
  };
  Py_ssize_t at = 0;
  PyObject *name, *value;
  Py_hash_t hash;
  while (_PyDict_Next(now, &at, &name, &value, &hash)) {
    PyObject* const noted = _PyDict_GetItem_KnownHash(then, name, hash);
    if (noted == value || !counts(name)) continue;
    const bool are_ints = noted != nullptr && PyLong_CheckExact(noted) && PyLong_CheckExact(value);
    if (!are_ints || IsAskedForByC(name)) return false;
    if (IsClassCounter(type_, name) && names.LeavesOut(type_, name)) continue;
    NoteClassCounter(type_, name);
    return false;
  }
  at = 0;
  while (_PyDict_Next(then, &at, &name, &value, &hash)) {
    if (_PyDict_GetItem_KnownHash(now, name, hash) == nullptr && counts(name)) return false;
  }
  if (is_all) own_version_ = DictVersion(now);
  return true;
}

bool ClassNote::IsSame(const NamesRead& names) {
  if (version_ != 0 && TypeIsUnchanged(type_, version_)) return true;
  PyObject* const mro = PyTuple_GET_ITEM(content_, 0);
  PyObject* const now = type_->tp_mro;
  if (now == nullptr || PyTuple_GET_SIZE(mro) != PyTuple_GET_SIZE(now)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(mro); ++i) {
    if (PyTuple_GET_ITEM(mro, i) != PyTuple_GET_ITEM(now, i)) return false;
  }
  const auto is_as_noted = [](const ClassNote& note) {
    return note.own_version_ != 0 && DictVersion(note.type_->tp_dict) == note.own_version_;
  };
  if (!OwnIsSame(names)) return false;
  bool is_all = is_as_noted(*this);
  for (const std::shared_ptr<ClassNote>& base : bases_) {
    if (!base->OwnIsSame(names)) return false;
    is_all = is_all && is_as_noted(*base);
  }
  if (is_all) version_ = TypeVersion(type_);
  return true;
}

}  // namespace frametap
