// ObjectRecord: the facts about an object that has an identity of its own (neither a scalar nor a tensor).
#pragma once

#include <Python.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "frame_eval/interpreter/shadow.h"
#include "guards/ref.h"
#include "ir/segment/source.h"

namespace frametap {

// Changes of a list or dict that existed before, of which the content is not known as a whole (outside_containers.cc).
// … or, of a dict that the trace has made, which numbers in it are open.
struct OutsideChanges {
  absl::flat_hash_map<PyObject*, Shadow> stored;  // dict: by key (PlainKey)
  Py_ssize_t entry_length = -1;                   // list: what it had at the entry …
  std::vector<Shadow> appended;                   // … and what follows since
};

// The keys of a dict or set that are not all fixed, in the order in which they were added (open_keys.cc).
using OpenKeys = std::vector<std::pair<Ref<>, Shadow>>;

struct ObjectRecord {
  enum class State : uint8_t {
    kSource,  // existed before; reached at `source`
    kFresh,   // made by the trace; its content is known
    kOpaque,  // made by the trace (an iterator, a view …): may be used, cannot be made again
  };
  State state = State::kFresh;
  SourceId source;
  bool pinned = false;         // every object on the way is known by identity
  bool touched = false;        // its type or identity is guarded
  bool fixed = false;          // its identity is guarded at `source` (Fix)
  bool adopted = false;        // container: content guarded, elements known
  bool counted = false;        // container: its length is guarded
  bool dict_is_out = false;    // made by the trace: its __dict__ was read
  bool is_viewed = false;      // list, dict or set of the trace: C code may look at all of it at any time
  uint32_t epoch = 0;          // fresh: when it was made
  uint32_t mutated_epoch = 0;  // when the trace last changed it
  bool mutated = false;
  bool settled = false;  // garbage.cc
  void MutatedIn(uint32_t now) {
    mutated = true;
    mutated_epoch = now;
  }
  size_t keys_by_address = 0;  // set or dict: so many of its keys have their address guarded (identity.cc)
  Ref<> pin;                   // so that the address stays its own
  // Fresh tuple (or torch.Size), list, slice and cell: shadows of the elements; may be fewer.
  absl::InlinedVector<Shadow, 2> items;
  std::unique_ptr<absl::flat_hash_map<PyObject*, Shadow>> written;  // attributes or globals written by the trace
  std::unique_ptr<OutsideChanges> changes;                          // until all of the content is known
  std::unique_ptr<OpenKeys> open_keys;
};

}  // namespace frametap
