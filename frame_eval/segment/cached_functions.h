// A look-up in the cache of a function under functools.lru_cache, without side effects.
//   L1  Nothing here runs code of the program, counts a hit, or changes which entry is the oldest.
#pragma once

#include <Python.h>

#include "absl/functional/function_ref.h"
#include "guards/cpython/cached_function.h"

namespace frametap {

struct CacheEntry {
  PyObject* key = nullptr;    // the one in the dict; all borrowed
  PyObject* found = nullptr;  // the result, or a link to it; null: nothing
  bool is_doubtful = false;   // only code of the program could say whether there is an entry
  PyObject* result() const;   // null: nothing
};
// The entry for a call with these arguments, those by name last. The arguments are hashed by their value or address.
CacheEntry EntryOf(const CacheParts& parts, PyObject* const* args, size_t count, PyObject* const* names, size_t named);

// The program's own call of a cached function, from the value of the effect `ask`. The value is a tuple of the
// predicted result, the names of keyword arguments, and the arguments.
struct AskedCall {
  PyObject *predicted, *names;  // borrowed; null where a guard has the result
  PyObject** args;
  size_t count;
};
AskedCall AskedCallOf(PyObject* value);                  // the effect's
bool AskCache(PyObject* cached, const AskedCall& call);  // false with a Python exception

// Whether two arguments may be the same part of a key.
bool MayBeSameArgument(PyObject* a, PyObject* b);

// Whether a cached result is what was predicted: equal numbers, strings and containers of exact types, in the same order.
// Parts of `predicted` that are standing must be the very object.
bool IsSameResult(PyObject* predicted, PyObject* result, absl::FunctionRef<bool(PyObject*)> is_standing);

}  // namespace frametap
