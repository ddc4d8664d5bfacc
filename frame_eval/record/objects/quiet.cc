#include "frame_eval/record/objects/quiet.h"

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "frame_eval/record/objects/knowledge.h"
#include "guards/cpython/watch.h"
#include "guards/objects/dict_write.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/value.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

[[noreturn]] void ThrowLoudKeys() {
  throw Break{Reason::unknown_operation, "a dict or set with keys that compare by code of their own"};
}

[[noreturn]] void ThrowLoud(PyObject* object) {
  throw Break{Reason::unknown_mutation,
              absl::StrCat("an object of type ", Py_TYPE(object)->tp_name, " with a hash or index of its own")};
}

[[noreturn]] void ThrowEscapes() {
  throw Break{Reason::escaping_object, "a dict or set with keys that compare by code of their own"};
}

// As an item of a tuple: its hash is its address, which is another for the object that a replay makes.
bool IsHashedByAddress(PyObject* object) { return Py_TYPE(object)->tp_hash == PyBaseObject_Type.tp_hash; }

void RefuseLoudKey(PyObject* table, PyObject* key) {
  if (PyDict_Check(table)) {
    if (IsScalar(key) && HasOnlyExactStrKeys(table)) return;
    if (HashOf(key) != HashBy::kC) ThrowLoud(key);
    ItemQuietly(table, key);
  } else {
    if (HashOf(key) != HashBy::kC) ThrowLoud(key);
    const Py_hash_t hash = PyObject_Hash(key);
    if (hash == -1) PyErr_Clear();
    if (hash == -1 || SetHas(table, key, hash) == Found::kDoubt) ThrowLoudKeys();
  }
}

// The keys that a method of a dict or set takes out of its argument.
void RefuseLoudKeysIn(PyObject* table, PyObject* content) {
  Py_ssize_t at = 0;
  PyObject *key, *value;
  Py_hash_t hash;
  if (PyDict_Check(content)) {
    while (PyDict_Next(content, &at, &key, &value)) RefuseLoudKey(table, key);
  } else if (PyAnySet_Check(content)) {
    while (_PySet_NextEntry(content, &at, &key, &hash)) RefuseLoudKey(table, key);
  } else if (PyTuple_Check(content) || PyList_Check(content)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(content); ++i) {
      PyObject* const item = PySequence_Fast_GET_ITEM(content, i);
      const bool is_pair = PyDict_Check(table) && (PyTuple_Check(item) || PyList_Check(item));
      if (is_pair && PySequence_Fast_GET_SIZE(item) > 0) {
        RefuseLoudKey(table, PySequence_Fast_GET_ITEM(item, 0));
      } else if (!PyDict_Check(table)) {
        RefuseLoudKey(table, item);
      }
    }
  }
}

void RefuseLoudSearch(PyObject* list, PyObject* item) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    PyObject* const element = PyList_GET_ITEM(list, i);
    if (element == item) return;
    if (SameKey(element, item) == Found::kDoubt) ThrowLoudKeys();
  }
}

void RefuseLoudCall(PyObject* target, const std::string& name, const std::vector<PyObject*>& values) {
  if (values.empty()) return;
  if (PyList_Check(target)) {
    if (name == "remove") return RefuseLoudSearch(target, values[0]);
    const bool takes_index = name == "insert" || name == "pop";
    if (takes_index && !IsScalar(values[0])) ThrowLoud(values[0]);
  } else if (PyDict_Check(target)) {
    if (name == "update") return RefuseLoudKeysIn(target, values[0]);
    if (name == "pop" || name == "setdefault" || name == "move_to_end") RefuseLoudKey(target, values[0]);
  } else if (PyAnySet_Check(target)) {
    if (name == "add" || name == "discard" || name == "remove") return RefuseLoudKey(target, values[0]);
    for (PyObject* value : values) RefuseLoudKeysIn(target, value);
  }
}

}  // namespace

PyObject* ItemUnderAnyKey(PyObject* dict, PyObject* key) {
  PyObject* value = nullptr;
  const Found found = NameGet(dict, key, &value);
  if (found == Found::kDoubt) ThrowLoudKeys();
  return found == Found::kYes ? value : nullptr;
}

bool UnpackQuietly(PyObject* slice, Py_ssize_t* start, Py_ssize_t* stop, Py_ssize_t* step) {
  if (!PySlice_Check(slice)) return false;
  const auto* parts = reinterpret_cast<PySliceObject*>(slice);
  for (PyObject* bound : {parts->start, parts->stop, parts->step}) {
    if (bound != Py_None && !PyLong_CheckExact(bound)) return false;
  }
  if (PySlice_Unpack(slice, start, stop, step) == 0) return true;
  PyErr_Clear();
  return false;
}

std::array<PlainClass, 256> PlainClass::known;

bool HasPlainNamesOfPython(PyTypeObject* type) {
  PyObject* const mro = type->tp_mro;
  if (mro == nullptr) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(mro); ++i) {
    PyObject* const base = PyTuple_GET_ITEM(mro, i);
    if (!PyType_Check(base)) return false;
    PyObject* const names = reinterpret_cast<PyTypeObject*>(base)->tp_dict;
    if (names == nullptr || !HasOnlyExactStrKeys(names)) return false;
  }
  PlainClass::At(type) = {type, AssignedTypeVersion(type)};
  return true;
}

void ThrowOddNames(PyTypeObject* type) {
  throw Break{Reason::unknown_operation,
              absl::StrCat("a class that is being made, or with names that are not plain strings: ", type->tp_name)};
}

void RefuseLoudEffect(Effect::Kind kind, PyObject* target, const std::string& name,
                      const std::vector<PyObject*>& values) {
  switch (kind) {
    case Effect::Kind::kSetAttr:
    case Effect::Kind::kDelAttr:
    case Effect::Kind::kSetGlobal: {
      PyObject* const dict = kind == Effect::Kind::kSetGlobal ? target : InstanceDict(target);
      if (dict == nullptr || HasOnlyExactStrKeys(dict)) return;
      ItemQuietly(dict, Must(PyUnicode_InternFromString(name.c_str())).get());
      return;
    }
    case Effect::Kind::kSetItem:
      if (PyDict_Check(target) && StoresByIdentity(target, values[0])) return;
      [[fallthrough]];
    case Effect::Kind::kDelItem:
      if (PyDict_Check(target)) return RefuseLoudKey(target, values[0]);
      if (!IsScalar(values[0]) && !PySlice_Check(values[0])) ThrowLoud(values[0]);
      return;
    case Effect::Kind::kCall:
      return RefuseLoudCall(target, name, values);
    default:
      return;
  }
}

HashBy HashOf(PyObject* key) {
  if (IsScalar(key)) return HashBy::kC;
  if (PyWeakref_Check(key)) {
    PyObject* const object = PyWeakref_GET_OBJECT(key);
    return HashOf(object) == HashBy::kC ? HashBy::kC : HashBy::kBoth;
  }
  if (Py_TYPE(key)->tp_hash == PyTuple_Type.tp_hash) {
    bool by_code = false, by_address = false, by_both = false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); ++i) {
      PyObject* const item = PyTuple_GET_ITEM(key, i);
      const HashBy by = HashOf(item);
      by_code |= by == HashBy::kCode;
      by_both |= by == HashBy::kBoth || IsExactTensor(item);
      by_address |= IsHashedByAddress(item) || PyTuple_Check(item) || PyFrozenSet_Check(item);
    }
    if (by_both || (by_code && by_address)) return HashBy::kBoth;
    return by_code ? HashBy::kCode : HashBy::kC;
  }
  if ((Py_TYPE(key)->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0 || IsHashedByAddress(key) || PyFrozenSet_CheckExact(key)) {
    return HashBy::kC;
  }
  static PyObject* const name = InternedName("__hash__");
  RefuseOddNames(Py_TYPE(key));
  PyObject* const method = _PyType_Lookup(Py_TYPE(key), name);
  return method != nullptr && Py_TYPE(method) == &PyWrapperDescr_Type ? HashBy::kC : HashBy::kCode;
}

Ref<> HashesByCode(PyObject* table) {
  if (PyDict_Check(table) && HasOnlyBuiltinKeys(table)) return Ref<>();
  bool by_code = false;
  absl::flat_hash_map<Py_hash_t, std::vector<PyObject*>> seen;
  const Ref<> hashes = Must(PyList_New(0));
  const auto meet = [&](PyObject* key, Py_hash_t hash) {
    const HashBy by = HashOf(key);
    if (by == HashBy::kBoth) ThrowEscapes();
    by_code |= by == HashBy::kCode;
    std::vector<PyObject*>& others = seen[hash];
    for (PyObject* other : others) {
      if (SameKey(other, key) == Found::kDoubt && !(IsPlainValue(other) && IsPlainValue(key))) ThrowEscapes();
    }
    others.push_back(key);
    const bool is_computed = by == HashBy::kC || IsExactTensor(key);
    const Ref<> told = is_computed ? Ref<>::New(Py_None) : Must(PyLong_FromSsize_t(hash));
    if (PyList_Append(hashes.get(), told.get()) < 0) throw std::bad_alloc();
  };
  Py_ssize_t at = 0;
  PyObject *key, *value;
  Py_hash_t hash;
  if (PyDict_Check(table)) {
    while (_PyDict_Next(table, &at, &key, &value, &hash)) meet(key, hash);
  } else {
    while (_PySet_NextEntry(table, &at, &key, &hash)) meet(key, hash);
  }
  return by_code ? Must(PyList_AsTuple(hashes.get())) : Ref<>();
}

Ref<> CopyDict(PyObject* dict) {
  HashesByCode(dict);  // two of one hash would be compared
  return Must(PyDict_Copy(dict));
}

}  // namespace frametap
