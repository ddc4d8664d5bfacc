// VariableRecords: what a recording knows about cells and globals.
// Not here: reads and writes of them (variables.h).
#pragma once

#include <Python.h>

#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "frame_eval/interpreter/shadow.h"
#include "ir/graph/ids.h"

namespace frametap {

struct VariableRecords {
  std::vector<Shadow> cells;          // content of those that have Shadow::Kind::kCell
  std::vector<PyObject*> base_cells;  // the entry frame's own
  bool has_open_cells = false;        // of functions that are not fixed
  struct FixedCell {                  // … that are, met before there were such
    PyObject* function;
    int index;  // in its closure
  };
  absl::flat_hash_map<PyObject*, FixedCell> fixed_cells;
  absl::flat_hash_map<std::tuple<PyObject*, PyObject*, PyObject*>, SourceId> globals_read;  // dict, builtins, name
};

}  // namespace frametap
