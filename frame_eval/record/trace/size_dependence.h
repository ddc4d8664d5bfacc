// The values and elements that the sizes of recorded values depend on.
#pragma once

#include <vector>

#include "absl/container/flat_hash_set.h"
#include "frame_eval/record/trace/aten_recorder.h"
#include "ir/graph/graph.h"
#include "ir/ops/op_facts.h"

namespace frametap {

// Collects inputs that the sizes of `value`, or the number, may depend on. Returns null, or the node by which they
// depend on data. Values in `seen` are left out, and visited values are added to it.
const Node* SizeCone(AtenRecorder& aten, ValueId value, std::vector<ValueId>* inputs,
                     absl::flat_hash_set<ValueId>* seen);
// Returns the op that may have resized the value's tensor without showing it (ResizedTensors), or null.
const Node* ResizerOf(const AtenRecorder& aten, ValueId value);
// Returns whether a compiler, which has no elements, can infer the sizes of the results. An op of another library that
// says so itself is believed.
bool CanPredictSizes(const Graph& graph, const Node& node, const OpFacts& facts);

}  // namespace frametap
