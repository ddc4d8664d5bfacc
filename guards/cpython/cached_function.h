// A function under functools.lru_cache of _functoolsmodule.c: its parts.
//   L1  CPython hides the structs: their layouts are written down here, and tried out once. Where they do not fit, nothing is
//       known of any such function.
// Not here: look-ups (frame_eval/segment/cached_functions.h).
#pragma once

#include <Python.h>

namespace frametap {

// Holds a result in a cache of limited size.
struct CacheLink {
  PyObject_HEAD CacheLink *previous, *next;
  Py_hash_t hash;
  PyObject *key, *result;
};

// All borrowed.
struct CacheParts {
  PyObject* cache = nullptr;     // the dict; null: unknown
  PyObject* function = nullptr;  // the one that is called for a missing entry
  PyObject* mark = nullptr;      // stands in a key before the keyword arguments
  bool is_typed = false;
};
CacheParts PartsOfCached(PyObject* cached);

}  // namespace frametap
