// RecordedRun: what a recorded call has of its segment. It is kept until the call has the values of a replay, where the
// backend approximates (Options::answers_by_replay).
//   R1  `objects` are all those through which the program can reach a value of the graph: results, live slots, effects.
// Not here: how a replay's values take their place (replay/recorded_values.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <Python.h>

#include <utility>
#include <vector>

#include "guards/ref.h"
#include "ir/graph/ids.h"

namespace frametap {

using ObjectsOfValues = std::vector<std::pair<ValueId, Ref<>>>;

struct RecordedRun {
  std::vector<c10::IValue> inputs;  // beside Graph::inputs, as they were at the entry
  std::vector<at::Tensor> now;      // beside them: the tensors themselves
  ObjectsOfValues objects;          // R1
  // Ops have run after the end of the segment, or have drawn random numbers: a second run could not be the same one.
  bool has_gone_on = false;
};

}  // namespace frametap
