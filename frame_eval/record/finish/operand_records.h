// OperandRecords: objects that were described as operands so far, and the constants of the segment.
// Not here: how an object is described (describe.h).
#pragma once

#include <Python.h>

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "guards/ref.h"
#include "ir/graph/ids.h"

namespace frametap {

struct OperandRecords {
  std::vector<Ref<>> constants;
  absl::flat_hash_map<PyObject*, ConstId> constant_ids;
  absl::flat_hash_map<PyObject*, int64_t> labels;  // containers described so far (-1: not finished)
  std::vector<PyObject*> labelled;                 // in that order
  std::vector<Ref<>> described;                    // objects made while describing
  int64_t next_label = 1;
};

}  // namespace frametap
