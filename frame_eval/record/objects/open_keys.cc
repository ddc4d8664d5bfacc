#include "frame_eval/record/objects/open_keys.h"

#include <algorithm>
#include <cstring>

#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/objects/identity.h"
#include "frame_eval/record/objects/own_dicts.h"
#include "frame_eval/record/semantics/predicted_calls.h"
#include "guards/objects/dict_items.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

constexpr Py_ssize_t kMostKeys = 16;  // each of them is compared with each other one

// Whether no int is equal to the key, so that a look-up by an int passes it by.
bool EqualsNoInt(PyObject* key) {
  return key == Py_None || PyUnicode_CheckExact(key) || PyBytes_CheckExact(key) || PyTuple_CheckExact(key);
}

std::vector<PyObject*> KeysOf(PyObject* table) {
  std::vector<PyObject*> keys;
  Py_ssize_t at = 0;
  PyObject *key, *value;
  Py_hash_t hash;
  if (PyDict_Check(table)) {
    while (PyDict_Next(table, &at, &key, &value) != 0) keys.push_back(key);
  } else {
    while (_PySet_NextEntry(table, &at, &key, &hash) != 0) keys.push_back(key);
  }
  return keys;
}

// `{key: value, …}` and `{key, …}` have their keys at these steps.
int StepOfKeys(const Event& e) { return e.op == Op::kBuildMap ? 2 : 1; }

bool AreEqualInts(PyObject* a, PyObject* b) {
  return PyLong_CheckExact(a) && PyLong_CheckExact(b) && Must(PyObject_RichCompareBool(a, b, Py_EQ));
}

}  // namespace

static bool IsOpenKey(Trace& trace, PyObject* key, Shadow shadow) {
  return AddressedBy(trace, shadow).valid() && LeavesOpen(trace, key, shadow);
}

static OpenKeys* OpenKeysOf(Trace& trace, PyObject* table) {
  if (!trace.objects.has_open_keys || (!PyDict_CheckExact(table) && !PySet_CheckExact(table))) return nullptr;
  const ObjectRecord* const known = trace.objects.Find(table);
  return known != nullptr ? known->open_keys.get() : nullptr;
}

Shadow KeyShadow(Trace& trace, PyObject* table, PyObject* key) {
  const OpenKeys* const open = OpenKeysOf(trace, table);
  if (open == nullptr) return Shadow();
  for (const auto& [other, shadow] : *open) {
    if (AreEqualInts(other.get(), key)) return shadow;
  }
  return Shadow();
}

// Returns false if the comparison with one of the keys cannot be guarded.
static bool DecideAmongKeys(Trace& trace, const std::vector<std::pair<PyObject*, Shadow>>& keys, PyObject* key,
                            Shadow shadow) {
  if (static_cast<Py_ssize_t>(keys.size()) > kMostKeys) return false;
  if (!PyLong_CheckExact(key)) return EqualsNoInt(key);
  for (const auto& [other, of_other] : keys) {
    if (EqualsNoInt(other)) continue;
    if (!PyLong_CheckExact(other) || !DecideNumbers(trace, key, shadow, other, of_other, Py_EQ, false)) return false;
  }
  return true;
}

// Fixes a key with all that its hash and its equality may read. A tensor has its identity only.
void SpecializeKey(Trace& trace, PyObject* key, Shadow shadow) { SpecializeDeep(trace, key, shadow, true); }

// K1. Records that `key` is looked up. Returns false, with the keys fixed, if they and `key` are to be treated as constants.
bool DecideKey(Trace& trace, PyObject* table, PyObject* key, Shadow shadow) {
  const bool is_open = IsOpenKey(trace, key, shadow);
  if (!is_open && OpenKeysOf(trace, table) == nullptr) return false;
  const ObjectRecord* const known =
      PyDict_CheckExact(table) || PySet_CheckExact(table) ? trace.objects.Find(table) : nullptr;
  if (known == nullptr || known->state != ObjectRecord::State::kFresh) return false;
  if (!is_open) SpecializeKey(trace, key, shadow);
  std::vector<std::pair<PyObject*, Shadow>> keys;
  for (PyObject* other : KeysOf(table)) keys.emplace_back(other, KeyShadow(trace, table, other));
  if (DecideAmongKeys(trace, keys, key, shadow)) return true;
  FixKeys(trace, table);
  return false;
}

// Records that `key` is added if it is missing. Returns false as DecideKey does.
bool AddKey(Trace& trace, PyObject* table, PyObject* key, Shadow shadow) {
  const bool is_first = OpenKeysOf(trace, table) == nullptr;
  if (is_first && !IsOpenKey(trace, key, shadow)) return false;
  const ObjectRecord* const before = trace.objects.Find(table);
  if (is_first && (trace.objects.has_open_views || (before != nullptr && before->is_viewed))) return false;  // K2
  if (is_first && PySet_CheckExact(table) && (before == nullptr || before->mutated || PySet_GET_SIZE(table) > 0)) {
    return false;  // K3
  }
  if (!DecideKey(trace, table, key, shadow)) return false;
  std::unique_ptr<OpenKeys>& open = trace.objects.Find(table)->open_keys;
  if (!open) open = std::make_unique<OpenKeys>();
  trace.objects.has_open_keys = true;
  const auto is_key = [key](const auto& one) { return AreEqualInts(one.first.get(), key); };
  if (std::none_of(open->begin(), open->end(), is_key)) open->emplace_back(Ref<>::New(key), shadow);
  return true;
}

// Records the keys of `{id(x): a, id(y): b}` or `{id(x), id(y)}` before the table is made. Returns false, with all of them
// fixed, if none stays open.
bool DecideKeys(Trace& trace, const Event& e) {
  const int step = StepOfKeys(e);
  bool stays_open = false;
  for (int i = 0; i < e.n; i += step) stays_open = stays_open || IsOpenKey(trace, e.in[i], e.shadows[i]);
  std::vector<std::pair<PyObject*, Shadow>> keys;
  for (int i = 0; stays_open && i < e.n; i += step) {
    if (!IsOpenKey(trace, e.in[i], e.shadows[i])) SpecializeKey(trace, e.in[i], e.shadows[i]);
    stays_open = DecideAmongKeys(trace, keys, e.in[i], e.shadows[i]);
    keys.emplace_back(e.in[i], e.shadows[i]);
  }
  for (int i = 0; !stays_open && i < e.n; i += step) SpecializeKey(trace, e.in[i], e.shadows[i]);
  return stays_open;
}

void KeepKeys(Trace& trace, PyObject* table, const Event& e) {
  const int step = StepOfKeys(e);
  OpenKeys& open = *(trace.objects.Find(table)->open_keys = std::make_unique<OpenKeys>());
  trace.objects.has_open_keys = true;
  for (int i = 0; i < e.n; i += step) open.emplace_back(Ref<>::New(e.in[i]), e.shadows[i]);
}

// Records dict.values(), from which no key can be reached. Returns false, with nothing noted, if all of these are fixed.
bool ViewValues(Trace& trace, PyObject* dict) {
  if (OpenKeysOf(trace, dict) == nullptr) return false;
  FixValues(trace, dict);
  for (const auto [key, value] : DictItems(dict)) SpecializeDeep(trace, value, Shadow(), true);
  trace.objects.Find(dict)->is_viewed = true;
  return true;
}

void FixKeys(Trace& trace, PyObject* table) {
  OpenKeys* const open = OpenKeysOf(trace, table);
  if (open == nullptr) return;
  for (const auto& [key, shadow] : *open) Specialize(trace, key.get(), shadow);
  ObjectRecord& known = *trace.objects.Find(table);
  known.open_keys.reset();
  if (!IsLent(trace, table)) known.MutatedIn(trace.epoch);  // object_records/K2
}

namespace {

// Whether the operation leaves the keys of a dict or set alone that is one of its operands, or follows them.
bool FollowsKeys(const Event& e) {
  switch (e.op) {
    case Op::kContains:
    case Op::kSubscr:
    case Op::kStoreSubscr:
    case Op::kDeleteSubscr:
    case Op::kSetAdd:
    case Op::kMapAdd:
    case Op::kListAppend:
    case Op::kIs:
    case Op::kIsNone:
    case Op::kTruth:
    case Op::kLoadAttr:
    case Op::kLoadMethod:
    case Op::kStoreAttr:
    case Op::kStoreDeref:
    case Op::kStoreGlobal:
    case Op::kBuildTuple:
    case Op::kBuildList:
    case Op::kBuildMap:
    case Op::kBuildConstKeyMap:
    case Op::kYield:
      return true;
    default:
      return false;
  }
}

// Methods of dicts and sets that read or add one key, and len().
bool FollowsKeys(const CallableRow& row) {
  for (const char* name : {"add", "get", "setdefault", "values", "__contains__", "__getitem__", "len", "__len__"}) {
    if (std::strcmp(row.name, name) == 0) return true;
  }
  return false;
}

}  // namespace

// K2
void MeetOpenKeys(Trace& trace, const Event& e) {
  if (FollowsKeys(e)) return;
  if (e.op == Op::kCall || e.op == Op::kCallEx) {
    PyObject* const callable = PyMethod_Check(e.in[0]) ? PyMethod_GET_FUNCTION(e.in[0]) : e.in[0];
    const CallableRow* const row = FindCallable(callable);
    if (PyFunction_Check(callable) || (row != nullptr && FollowsKeys(*row))) return;
    if (PyCFunction_Check(callable) && PyCFunction_GET_SELF(callable) != nullptr)
      FixKeys(trace, PyCFunction_GET_SELF(callable));
  }
  for (int i = 0; i < e.n; ++i) {
    if (e.in[i] != nullptr) FixKeys(trace, e.in[i]);
  }
}

}  // namespace frametap
