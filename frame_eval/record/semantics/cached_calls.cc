#include "frame_eval/record/semantics/cached_calls.h"

#include <cstddef>
#include <cstring>
#include <string_view>
#include <tuple>

#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/numbers/sequences.h"
#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/outside_containers.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/semantics/elements.h"
#include "frame_eval/record/trace.h"
#include "guards/kinds/keys.h"
#include "guards/objects/dict_read.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

// For a function under functools.lru_cache: the entry of its cache for the arguments of a call.
struct CacheEntry {
  PyObject* cache = nullptr;  // the dict; all borrowed
  PyObject* key = nullptr;    // the one in the dict
  PyObject* found = nullptr;  // the result, or a link to it; null: nothing
};

// Layout of CPython's lru_list_elem, which _functoolsmodule.c keeps to itself.
struct CacheLink {
  PyObject_HEAD CacheLink *previous, *next;
  Py_hash_t hash;
  PyObject *key, *result;
};

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

// The cache is one of the objects that the function shows to the garbage collector. A key is the only argument if that
// is an int or str. Otherwise it is a tuple of the arguments, with a mark (shown as well) before the keyword ones.
CacheEntry Cached(PyObject* function, const Call& call) {
  struct Referents {
    PyObject* own_dict;
    PyObject* cache = nullptr;
    PyObject* mark = nullptr;
  } seen{nullptr};
  PyObject** dict = _PyObject_GetDictPtr(function);
  seen.own_dict = dict != nullptr ? *dict : nullptr;
  auto visit = [](PyObject* object, void* arg) {
    auto* found = static_cast<Referents*>(arg);
    if (PyDict_CheckExact(object) && object != found->own_dict) found->cache = object;
    if (Py_TYPE(object) == &PyBaseObject_Type) found->mark = object;
    return 0;
  };
  Py_TYPE(function)->tp_traverse(function, visit, &seen);
  if (seen.cache == nullptr || (seen.mark == nullptr && !call.names.empty())) return {};
  Ref<> key;
  if (call.args.size() == 1 && call.names.empty() &&
      (PyUnicode_CheckExact(call.args[0]) || PyLong_CheckExact(call.args[0]))) {
    key = Ref<>::New(call.args[0]);
  } else {
    Ref<> parts = Ref<>::Steal(PyList_New(0));
    bool ok = static_cast<bool>(parts);
    for (size_t i = 0; i < call.positional(); ++i) ok = ok && PyList_Append(parts.get(), call.args[i]) == 0;
    if (!call.names.empty()) ok = ok && PyList_Append(parts.get(), seen.mark) == 0;
    for (size_t k = 0; k < call.names.size(); ++k) {
      ok = ok && PyList_Append(parts.get(), call.names[k]) == 0 &&
           PyList_Append(parts.get(), call.args[call.positional() + k]) == 0;
    }
    key = ok ? Ref<>::Steal(PyList_AsTuple(parts.get())) : Ref<>();
  }
  CacheEntry entry{seen.cache};
  const Py_hash_t wanted = key ? PyObject_Hash(key.get()) : -1;  // of plain values and addresses (InvokeCached)
  if (wanted == -1) {
    PyErr_Clear();
    return entry;
  }
  Py_ssize_t at = 0;
  PyObject *other, *value;
  Py_hash_t hash;
  while (_PyDict_Next(seen.cache, &at, &other, &value, &hash)) {
    const Found same = hash != wanted ? Found::kNo : SameArguments(other, key.get());
    if (same == Found::kDoubt) return {seen.cache};  // an argument's own code would be asked
    if (same == Found::kYes) std::tie(entry.key, entry.found) = std::tie(other, value);
  }
  return entry;
}

}  // namespace

// A function under functools.lru_cache: a call with known arguments is a look-up, and the result is the very object. A
// new one runs the function without the recorder.
void InvokeCached(Trace& trace, Call& call) {
  auto known_by_identity = [&](PyObject* object) {
    AdoptPinned(trace, object);
    if (ObjectRecord* known = trace.objects.Find(object);
        known != nullptr && known->state == ObjectRecord::State::kSource)
      Fix(trace, *known);
  };
  known_by_identity(call.callable);
  for (size_t i = 0; i < call.args.size(); ++i) {
    PyObject* arg = call.args[i];
    if (IsPlainKey(arg)) {
      SpecializeDeep(trace, arg, call.shadows[i], false);
      continue;
    }
    // Hashed and compared by identity.
    ObjectRecord* known = trace.objects.Find(arg);
    bool plain = Py_TYPE(arg)->tp_hash == PyBaseObject_Type.tp_hash;
    if (!plain || IsTensor(arg) || (known != nullptr && known->state != ObjectRecord::State::kSource)) {
      throw Refusal(call.callable);
    }
    known_by_identity(arg);
  }
  const CacheEntry entry = Cached(call.callable, call);
  if (entry.found == nullptr) throw Break{Reason::done_once, CallableName(call.callable)};
  // The entry is still the one: cache_clear() forgets it.
  const SourceId cache = trace.guards.Pinned(entry.cache, CallableName(call.callable) + ".cache");
  const SourceId found = trace.guards.Child(cache, Accessor::kKey, 0, entry.key, entry.found);
  trace.guards.Identity(found, trace.frames.Here());
  if (Py_TYPE(entry.found) == Objects().cache_link) {
    trace.guards.Field(found, offsetof(CacheLink, result),
                       trace.frames.Here());  // a cache of limited size uses its links again
  }
  // Replay asks the cache as well: it counts its hits, and drops what has not been asked for.
  std::vector<PyObject*> values(call.args.begin(), call.args.begin() + static_cast<ptrdiff_t>(call.positional()));
  Ref<> target = Ref<>::New(call.callable);
  if (!call.names.empty()) {
    Ref<> args = Must(PyTuple_Pack(1, call.callable));
    Ref<> keywords = Must(PyDict_New());
    for (size_t k = 0; k < call.names.size(); ++k) {
      PyDict_SetItem(keywords.get(), call.names[k], call.args[call.positional() + k]);
    }
    target = Must(PyObject_Call(reinterpret_cast<PyObject*>(Objects().partial), args.get(), keywords.get()));
    AddFresh(trace, target.get());
  }
  AddEffect(trace, Effect::Kind::kCall, target.get(), "__call__", values, std::vector<Shadow>(values.size()));
  call.note.op.expect.kind = ResultSpec::Kind::kPinned;
  PyObject* result = entry.found;
  if (Py_TYPE(result) == Objects().cache_link) result = reinterpret_cast<CacheLink*>(result)->result;
  if (IsTensor(result)) {
    call.note.op.expect.kind = ResultSpec::Kind::kSource;
    call.note.op.expect.source = trace.guards.Pinned(result, CallableName(call.callable) + "(...)");
    call.note.op.expect.pinned = true;
  }
  call.note.op.opaque_operation = true;
}

}  // namespace frametap
