// ObjectRecords: the records of the objects that a recording has met, and the tables of facts beside them.
//   K1  A record lives until its object is gone (garbage.cc) or the recording ends. So addresses stay unique.
//   K2  Nothing here goes back at a break. A record whose source lies after the cut has a source that the guards do not
//       have any more, and readers ask for that (freeze.cc, describe.cc). An operation that fixes the numbers in an object
//       keeps their shadows, or marks the object as changed: the exit may be before that operation, without its guards.
// Not here: how a record comes about (knowledge.h), who keeps an object alive (lifetimes.h).
#pragma once

#include <Python.h>

#include <array>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "frame_eval/record/objects/object_record.h"
#include "frame_eval/record/objects/object_table.h"
#include "guards/stable_vector.h"

namespace frametap {

struct ObjectRecords {
  ObjectRecord* Find(PyObject* object) const { return table.Find(object); }
  void SetPinned(SourceId id, bool is_pinned) {
    if (pinned.size() <= id.raw()) pinned.resize(id.raw() + 16);
    pinned[id.raw()] = is_pinned;
  }

  ObjectTable table;
  StableVector<ObjectRecord> known;        // where `table` points to
  std::vector<ObjectRecord*> vacant;       // of `known`: of objects that are gone
  std::vector<ObjectRecord*> containers;   // of `known` that the trace has made, and that may hold tensors in some way
  std::vector<bool> pinned;                // by SourceId
  bool knows_ordered_dicts = false;        // one of `table` is or was an OrderedDict
  bool has_open_keys = false;              // some table has
  bool has_open_views = false;             // some dict whose numbers are open had one (own_dicts/V3)
  std::array<PyObject*, 64> fixed_code{};  // functions that guards have pinned, asked for last (FixCode)
  // Tuples that were met as constants of code, and those in them. The compiler makes equal ones one object, so a
  // default or a global may hold it as well.
  absl::flat_hash_map<PyObject*, Ref<>> code_tuples;
  std::vector<PyObject*> mutated_sources;
  // Objects' own dicts, and by which object they were written to.
  absl::flat_hash_map<PyObject*, PyObject*> dict_writers;
  bool has_mutated_dicts = false;     // a dict is among `mutated_sources`
  std::vector<Ref<>> computed_names;  // keys of ObjectRecord::written that are in no code
  Ref<> plain_keys;                   // of OutsideChanges::stored: a dict, one object for all equal ones
  absl::flat_hash_map<std::pair<PyCodeObject*, PyObject*>, bool> stores;  // StoresAttribute
};

}  // namespace frametap
