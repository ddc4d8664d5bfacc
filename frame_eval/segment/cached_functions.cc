#include "frame_eval/segment/cached_functions.h"

#include <bit>
#include <cstdint>

#include "guards/objects/dict_read.h"
#include "guards/objects/well_known_objects.h"
#include "guards/ref.h"

namespace frametap {
namespace {

// Compares and hashes as a tuple does.
bool IsPlainTuple(PyObject* object) { return PyTuple_CheckExact(object) || Py_TYPE(object) == Objects().size; }

// Keys of a cache: tuples of arguments, or one argument.
Found SameArguments(PyObject* a, PyObject* b) {
  if (!IsPlainTuple(a) || !IsPlainTuple(b)) return SameKey(a, b);
  if (PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) return Found::kNo;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); ++i) {
    const Found same = SameArguments(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i));
    if (same != Found::kYes) return same;
  }
  return Found::kYes;
}

// Stands for a key in a look-up. The dict's own keys are tuples, ints and strings, which leave the comparison to it.
struct Probe {
  PyObject_HEAD PyObject* wanted;
  PyObject* found;
  bool is_doubtful;
};

PyObject* CompareProbe(PyObject* self, PyObject* other, int) {
  auto* const probe = reinterpret_cast<Probe*>(self);
  const Found same = SameArguments(other, probe->wanted);
  if (same == Found::kDoubt) probe->is_doubtful = true;  // an argument's own code would be asked
  if (same == Found::kYes) probe->found = other;
  return Py_NewRef(same == Found::kYes ? Py_True : Py_False);
}

PyTypeObject* ProbeType() {
  static PyTypeObject type = [] {
    PyTypeObject made = {};
    Py_SET_REFCNT(reinterpret_cast<PyObject*>(&made), 1);
    made.tp_name = "frametap.key_of_cache";
    made.tp_basicsize = sizeof(Probe);
    made.tp_flags = Py_TPFLAGS_DEFAULT;
    made.tp_richcompare = CompareProbe;
    made.tp_hash = PyObject_HashNotImplemented;
    return made;
  }();
  static const bool is_ready = PyType_Ready(&type) == 0;
  return is_ready ? &type : nullptr;
}

// As lru_cache_make_key of _functoolsmodule.c.
Ref<> KeyOf(const CacheParts& parts, PyObject* const* args, size_t count, PyObject* const* names, size_t named) {
  if (!parts.is_typed && named == 0 && count == 1 && (PyUnicode_CheckExact(args[0]) || PyLong_CheckExact(args[0]))) {
    return Ref<>::New(args[0]);
  }
  const size_t size = count + (named > 0 ? named + 1 : 0) + (parts.is_typed ? count : 0);
  Ref<> key = Ref<>::Steal(PyTuple_New(static_cast<Py_ssize_t>(size)));
  if (!key) return key;
  Py_ssize_t at = 0;
  const auto add = [&](PyObject* item) { PyTuple_SET_ITEM(key.get(), at++, Py_NewRef(item)); };
  const size_t positional = count - named;
  for (size_t i = 0; i < positional; ++i) add(args[i]);
  if (named > 0) add(parts.mark);
  for (size_t i = 0; i < named; ++i) {
    add(names[i]);
    add(args[positional + i]);
  }
  for (size_t i = 0; parts.is_typed && i < count; ++i) add(reinterpret_cast<PyObject*>(Py_TYPE(args[i])));
  return key;
}

}  // namespace

PyObject* CacheEntry::result() const {
  if (found == nullptr || Py_TYPE(found) != Objects().cache_link) return found;
  return reinterpret_cast<CacheLink*>(found)->result;
}

CacheEntry EntryOf(const CacheParts& parts, PyObject* const* args, size_t count, PyObject* const* names, size_t named) {
  const ErrScope keep;
  CacheEntry entry;
  const Ref<> key = KeyOf(parts, args, count, names, named);
  const Py_hash_t hash = key ? PyObject_Hash(key.get()) : -1;  // of plain values and addresses
  if (hash == -1 || ProbeType() == nullptr) {
    PyErr_Clear();
    entry.is_doubtful = true;
    return entry;
  }
  Probe probe{};
  PyObject* const object = reinterpret_cast<PyObject*>(&probe);
  PyObject_Init(object, ProbeType());
  probe.wanted = key.get();
  PyObject* const found = _PyDict_GetItem_KnownHash(parts.cache, object, hash);
  PyErr_Clear();
  if (probe.is_doubtful) {
    entry.is_doubtful = true;
  } else if (probe.found != nullptr) {
    entry.key = probe.found;
    entry.found = found;
  }
  return entry;
}

bool MayBeSameArgument(PyObject* a, PyObject* b) { return SameArguments(a, b) != Found::kNo; }

AskedCall AskedCallOf(PyObject* value) {
  PyObject** const items = reinterpret_cast<PyTupleObject*>(value)->ob_item;
  return {items[0], items[1], items + 2, static_cast<size_t>(PyTuple_GET_SIZE(value)) - 2};
}

bool AskCache(PyObject* cached, const AskedCall& call) {
  const auto named = static_cast<size_t>(PyTuple_GET_SIZE(call.names));
  PyObject* const names = named > 0 ? call.names : nullptr;
  return static_cast<bool>(Ref<>::Steal(PyObject_Vectorcall(cached, call.args, call.count - named, names)));
}

static bool IsSameResult(PyObject* predicted, PyObject* result, absl::FunctionRef<bool(PyObject*)> is_standing,
                         int depth) {
  constexpr int kDeepest = 16;
  if (predicted == result) return true;
  if (Py_TYPE(predicted) != Py_TYPE(result) || is_standing(predicted) || depth > kDeepest) return false;
  const auto are_same = [&](PyObject* a, PyObject* b) { return IsSameResult(a, b, is_standing, depth + 1); };
  if (PyLong_CheckExact(predicted) || PyUnicode_CheckExact(predicted)) {
    return PyObject_RichCompareBool(predicted, result, Py_EQ) == 1;
  }
  if (PyFloat_CheckExact(predicted)) {
    return std::bit_cast<uint64_t>(PyFloat_AS_DOUBLE(predicted)) == std::bit_cast<uint64_t>(PyFloat_AS_DOUBLE(result));
  }
  if (PyTuple_CheckExact(predicted) || PyList_CheckExact(predicted)) {
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(predicted);
    if (PySequence_Fast_GET_SIZE(result) != size) return false;
    for (Py_ssize_t i = 0; i < size; ++i) {
      if (!are_same(PySequence_Fast_GET_ITEM(predicted, i), PySequence_Fast_GET_ITEM(result, i))) return false;
    }
    return true;
  }
  if (!PyDict_CheckExact(predicted) || PyDict_GET_SIZE(predicted) != PyDict_GET_SIZE(result)) return false;
  PyObject *key, *value, *other_key, *other;
  Py_ssize_t at = 0, at_other = 0;
  while (PyDict_Next(predicted, &at, &key, &value)) {
    if (!PyDict_Next(result, &at_other, &other_key, &other)) return false;
    if (!are_same(key, other_key) || !are_same(value, other)) return false;
  }
  return true;
}

bool IsSameResult(PyObject* predicted, PyObject* result, absl::FunctionRef<bool(PyObject*)> is_standing) {
  return IsSameResult(predicted, result, is_standing, 0);
}

}  // namespace frametap
