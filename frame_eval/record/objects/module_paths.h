// ModulePaths: what `named_modules()` of the captured module would call a module. A recording that begins in the middle of
// a program reaches modules through locals and iterators, whose names say nothing of where a module stands.
//   M1  Only dicts that have strings for keys are read, namely dicts of instances and their `_modules`: no code of a
//      user runs.
//   M2  A module that stands at two places has its first path.
#pragma once

#include <Python.h>

#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "frame_eval/interpreter/tracer.h"
#include "guards/ref.h"
#include "ir/graph/position.h"

namespace frametap {

class ModulePaths {
 public:
  // `outermost`: the captured function's frame. Its `self` is the module that paths begin at; without one, modules that
  // its locals and free variables hold are.
  explicit ModulePaths(const FrameState& outermost);

  // Without a value if `object` is below none of the modules that paths begin at.
  std::optional<SharedText> Of(PyObject* object) const;

 private:
  void Add(PyObject* module, const SharedText& path);

  absl::flat_hash_map<PyObject*, SharedText> paths_;
  std::vector<Ref<>> kept_;  // keys of paths_: no other object gets their addresses
};

}  // namespace frametap
