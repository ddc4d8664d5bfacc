#include "guards/objects/dict_read.h"

#include "guards/cpython/hash_probe.h"
#include "guards/objects/dict_items.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/value.h"
#include "guards/throw_if_null.h"

namespace frametap {

namespace {

bool IsTupleKey(PyObject* o) { return PyTuple_CheckExact(o) || IsTorchSize(o); }

// Functions, types without a metaclass of their own, modules …: equal only if identical, on both sides of ==.
bool ComparesByIdentity(PyObject* o) {
  PyTypeObject* type = Py_TYPE(o);
  return type->tp_richcompare == PyBaseObject_Type.tp_richcompare || type->tp_richcompare == nullptr;
}

// `b''  == ''` warns under -b, which runs Python code.
bool MixesBytesAndStr(PyObject* a, PyObject* b) {
  return (PyBytes_Check(a) && PyUnicode_Check(b)) || (PyUnicode_Check(a) && PyBytes_Check(b));
}

bool SamePlainKey(PyObject* a, PyObject* b);

// Neither set is asked by itself: it would compare bytes with str, which have one hash.
bool SameFrozenSets(PyObject* a, PyObject* b) {
  if (PySet_GET_SIZE(a) != PySet_GET_SIZE(b)) return false;
  Py_ssize_t at = 0;
  PyObject* item;
  Py_hash_t hash;
  while (_PySet_NextEntry(a, &at, &item, &hash)) {
    Py_ssize_t other_at = 0;
    PyObject* other;
    Py_hash_t other_hash;
    bool found = false;
    while (!found && _PySet_NextEntry(b, &other_at, &other, &other_hash)) {
      found = hash == other_hash && SamePlainKey(item, other);
    }
    if (!found) return false;
  }
  return true;
}

// Both are plain keys: their equality and hash are C code of CPython or torch, all the way down.
bool SamePlainKey(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (MixesBytesAndStr(a, b) || IsTupleKey(a) != IsTupleKey(b) || PyFrozenSet_Check(a) != PyFrozenSet_Check(b)) {
    return false;
  }
  if (PyFrozenSet_Check(a)) return SameFrozenSets(a, b);
  if (!IsTupleKey(a)) {
    const int equal = PyObject_RichCompareBool(a, b, Py_EQ);
    if (equal < 0) PyErr_Clear();
    return equal == 1;
  }
  if (PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); ++i) {
    if (!SamePlainKey(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) return false;
  }
  return true;
}

}  // namespace

Key Key::Of(PyObject* object, PyObject* dict) {
  Key key;
  key.object = Ref<>::New(object);
  key.is_str = PyUnicode_CheckExact(object);
  if (IsPlainHashable(object)) {
    key.hash = PyObject_Hash(object);
    if (key.hash == -1) PyErr_Clear();  // no memory for it
    return key;
  }
  if (dict == nullptr || !PyDict_Check(dict)) return key;
  Py_ssize_t at = 0;
  PyObject *other, *value;
  Py_hash_t hash;
  while (_PyDict_Next(dict, &at, &other, &value, &hash)) {
    if (other == object) {
      key.hash = hash;
      break;
    }
  }
  return key;
}

Found NameGet(PyObject* dict, PyObject* name, PyObject** value) {
  if (IsReadByName(dict, name)) [[likely]] {
    *value = StrDictGet(dict, name);
    return *value != nullptr ? Found::kYes : Found::kNo;
  }
  *value = nullptr;
  return DictGet(dict, Key::Of(name, dict), value);
}

bool HasOnlyBuiltinKeys(PyObject* dict) {
  if (HasOnlyExactStrKeys(dict)) return true;
  for (const auto [key, value] : DictItems(dict)) {
    if (!IsPlainHashable(key)) return false;
  }
  return true;
}

Key NameKey(const char* name) { return Key::Of(InternedName(name), nullptr); }

Found SameKey(PyObject* a, PyObject* b) {
  if (a == b) return Found::kYes;
  if (IsPlainHashable(a) && IsPlainHashable(b)) return SamePlainKey(a, b) ? Found::kYes : Found::kNo;
  const bool a_settled = IsPlainHashable(a) || ComparesByIdentity(a);
  const bool b_settled = IsPlainHashable(b) || ComparesByIdentity(b);
  return a_settled && b_settled ? Found::kNo : Found::kDoubt;
}

PyObject* StrDictGet(PyObject* dict, const Key& key) {
  return _PyDict_GetItem_KnownHash(dict, key.object.get(), key.hash);
}

Found DictGet(PyObject* dict, const Key& key, PyObject** value) {
  PyObject* wanted = key.object.get();
  if (PyDict_GET_SIZE(dict) == 0) return Found::kNo;  // as the buffers of most modules
  if (HasOnlyExactStrKeys(dict)) {
    if (key.is_str) {
      *value = StrDictGet(dict, key);
      return *value != nullptr ? Found::kYes : Found::kNo;
    }
    if (IsPlainHashable(wanted)) return Found::kNo;
  }
  Found answer = Found::kNo;
  const auto compare = [&](PyObject* other, PyObject* found, Py_hash_t hash) {
    if (answer == Found::kDoubt || (other != wanted && key.hash != -1 && hash != key.hash)) return;
    const Found same = SameKey(other, wanted);
    if (same != Found::kNo) answer = same;
    if (same == Found::kYes) *value = found;
  };
  Py_ssize_t at = 0;
  PyObject *other, *found;
  Py_hash_t hash;
  if (key.hash != -1 && IsPlainHashable(wanted) && HashProbe::Serves(dict)) {
    HashProbe probe(dict, key.hash);
    while (probe.Next(&at) && _PyDict_Next(dict, &at, &other, &found, &hash)) compare(other, found, hash);
  } else {
    while (_PyDict_Next(dict, &at, &other, &found, &hash)) compare(other, found, hash);
  }
  return answer;
}

}  // namespace frametap
