// Lifetimes: which objects of a recording end with an effect that the program can observe, and what keeps them alive.
// Not here: the reasoning (object_ends.h), records of objects that are garbage (garbage.h).
#pragma once

#include <Python.h>

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "frame_eval/record/objects/object_record.h"

namespace frametap {

struct Lifetimes {
  bool watches() const { return !watched.empty(); }

  // Objects whose end runs code, and what they are reached through; kept alive by the guards.
  absl::flat_hash_set<PyObject*> ending;
  // Those that their path may not hold any more, and generators of the trace's own, kept alive by their records: how
  // many references effects hold.
  absl::flat_hash_map<PyObject*, Py_ssize_t> watched;
  bool watches_all = false;                 // all of `ending` are watched
  absl::flat_hash_set<PyObject*> released;  // what effects have taken from a place; compared only, never read
  std::vector<PyObject*> of_base_frame;     // of `ending`: those that the base frame holds
  uint32_t dropped_generator = 0;           // when the generator was made with which the recording ends

  // garbage.cc. While objects are watched: records of objects that the trace has made, in two parts.
  std::vector<ObjectRecord*> made, settled;
  bool settles = true;                   // no code has run that is not recorded
  size_t settles_at = 0, sweeps_at = 0;  // so many of `made`, of `settled`
  size_t made_from = 0;                  // of the records: from here on they are not in `made` yet
};

}  // namespace frametap
