// FrozenEinsum: an einsum of a frozen tensor and an activation, as the product of two matrices.
//   F1  Each index stands in two of the three terms. An index of both operands is summed over, and the others stand in the
//       result. The groups may have any number of indices in any order.
//   F2  Sizes of contracted dimensions are equal in both operands: a size of 1 stands for any other in an einsum.
//   F3  The result lies in memory as torch leaves it. Where that depends on sizes that may differ from call to call, the
//       einsum stays as it is.
// Not here: the linear layer that is made of it (linears.cc).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/graph/graph.h"

namespace frametap::quant {

struct FrozenEinsum {
  ValueId input;
  at::Tensor weight;
  // Orders of dimensions, by number:
  std::vector<int64_t> input_order;   // first the input's own, then the contracted ones
  std::vector<int64_t> weight_order;  // first the result's, then the contracted ones
  std::vector<int64_t> in_memory;     // as the result lies: places in the input's own and the weight's after them (F3)
  std::vector<int64_t> from_memory;   // the result's, as places in `in_memory`
  int64_t contracted = 0, outputs = 0;  // numbers of dimensions
};

// `known`: by value of `graph`, the frozen tensors.
std::optional<FrozenEinsum> FrozenEinsumOf(const Graph& graph, const Node& node, const std::vector<at::Tensor>& known);

}  // namespace frametap::quant
