// Normalise: the float graph as the later passes want it.
//   M0  Pieces of a split are ops of their own (pieces.h).
//   M1  An in-place op becomes its out-of-place form if nothing can see the difference. Its tensors are f32 (a mask is bool), the
//       memory it writes belongs to the graph, and no other value that may share this memory is used later.
//   M2  Dropout in eval mode disappears, and so does detach_, which writes no element.
//   M3  A batch norm in eval form after a convolution or a linear is folded into its weight and bias if the result
//       between them has no other reader.
//   M5  A product with a frozen weight is aten.linear (linears.h).
//   M7  A curve that is spelt out op by op is one op (curve_chains.h).
//   M8  Attention that is spelt out is one op (attention_chains.h).
//   M6  Quantized graphs of others become reference graphs (decomposed.h).
//   M4  A weight counts as known only if no op of the graph may write to it.
// Not here: any decision on 8 bits.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backends/quant/frozen.h"
#include "backends/quant/reported_op.h"
#include "backends/quant/rewrite.h"
#include "ir/graph/graph.h"

namespace frametap::quant {

// The fate of a node of the source graph.
struct NodeDisposition {
  NodeId now;            // in the new graph; invalid: gone
  std::string folded;    // gone: where to and why
  std::string note;      // kept: why it could not be normalised; "" if it could
  bool is_int8 = false;  // kept: a kernel on bytes
};

// A step of the chain: a rewrite, and where each node of the graph before went.
struct Step {
  Rewrite rewrite;
  std::vector<NodeDisposition> fates;
};

struct NormalizedGraph {
  Graph graph;
  std::vector<ValueId> origin;         // by value of `graph`: the value of the source graph
  std::vector<at::Tensor> known;       // by value of `graph`: frozen tensors (weights and constants), else undefined
  std::vector<bool> written;           // by value of `graph`: a remaining op may write its memory
  std::vector<bool> rewritten;         // by value of `graph`: such an op comes after the one that makes the value
  std::vector<std::string> writer;     // by value: the last of these ops, in words
  std::vector<NodeDisposition> fates;  // by node of the source graph
  bool has_bytes = false;              // M6: Lower has something to do

  // Returns the value of the source graph's elements: `v`, or a value from which or to which only views of a step lead
  // (linears/L4). If there is none, returns `v`.
  ValueId WithOrigin(ValueId v) const;

  // The frozen float32 tensor on the CPU in an argument of a node of `graph`; undefined if there is none.
  at::Tensor FrozenFloat(const Node& node, const char* name) const;
};

// The step of M1 and M2.
Step RemoveWrites(const Graph& graph, const std::vector<ValueId>& origin);

// Applies one more step. `weights`: as Normalise had them.
void GoOn(Step step, const std::vector<at::Tensor>& weights, NormalizedGraph* normal);

// The steps that no weight takes part in: M0, M1, M2, M7, M8. `frozen`: for M6; may be null.
absl::StatusOr<NormalizedGraph> NormaliseOps(const Graph& graph, const std::vector<at::Tensor>& weights,
                                             FrozenWeights* frozen = nullptr);

// `frozen`: where folded weights are kept; may be null.
absl::StatusOr<NormalizedGraph> Normalise(const Graph& graph, const std::vector<at::Tensor>& weights,
                                          FrozenWeights* frozen = nullptr);

}  // namespace frametap::quant
