// A function under functools.lru_cache: its cache, and a look-up in it without side effects.
//   L1  Nothing here runs code of the program, counts a hit, or changes which entry is the oldest.
#pragma once

#include <Python.h>

#include "absl/functional/function_ref.h"
#include "guards/objects/dict_read.h"
#include "guards/ref.h"
#include "ir/segment/segment_ir.h"

namespace frametap {

// Layout of CPython's lru_list_elem, which _functoolsmodule.c keeps to itself.
struct CacheLink {
  PyObject_HEAD CacheLink *previous, *next;
  Py_hash_t hash;
  PyObject *key, *result;
};

// Fields of the cached function. All borrowed.
struct CacheParts {
  PyObject* cache = nullptr;     // the dict; null: unknown
  PyObject* function = nullptr;  // the one that is called for a missing entry
  PyObject* mark = nullptr;      // stands in a key before the keyword arguments
  bool is_typed = false;
};
CacheParts PartsOfCached(PyObject* cached);

struct CacheEntry {
  PyObject* key = nullptr;    // the one in the dict; all borrowed
  PyObject* found = nullptr;  // the result, or a link to it; null: nothing
  bool is_doubtful = false;   // only code of the program could say whether there is an entry
  PyObject* result() const;   // null: nothing
};
// The entry for a call with these arguments, those by name last. The arguments are hashed by their value or address.
CacheEntry EntryOf(const CacheParts& parts, PyObject* const* args, size_t count, PyObject* const* names, size_t named);

// An effect that makes the program's own call of a cached function. It is a call of `kAsk` with the foretold result, the
// names of keyword arguments, and the arguments (foretold_calls.h).
inline constexpr const char* kAsk = "ask";
inline bool AsksCache(const Effect& effect) { return effect.kind == Effect::Kind::kCall && effect.name == kAsk; }
struct AskedCall {
  PyObject *foretold, *names;  // borrowed
  PyObject** args;
  size_t count;
};
AskedCall AskedCallOf(PyObject* value);            // the effect's
bool AskCache(PyObject* cached, PyObject* value);  // false with a Python exception

// Whether two arguments may be the same part of a key.
bool MayBeSameArgument(PyObject* a, PyObject* b);

// Whether a cached result is what was foretold: equal numbers, strings and containers of exact types, in the same order.
// Parts of `foretold` that are standing must be the very object.
bool IsSameResult(PyObject* foretold, PyObject* result, absl::FunctionRef<bool(PyObject*)> is_standing);

}  // namespace frametap
