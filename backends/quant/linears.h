// Linears: products with a frozen weight, in whichever way they are spelt, as aten.linear.
//   L1  x @ w, x.mm(w), addmm(b, x, w), and a bmm that is one, become linear(x, w.t(), b) where w is a frozen matrix.
//   L2  A transposition of a frozen tensor is computed here, once. Other ops on frozen tensors alone are, too, if
//       only layers read their results as weights: norms of weights, parts, factors. A result that the graph gives as
//       well is also made at each run (torch's old weight norm assigns it to the module). Ops without tensors, such as
//       torch.eye, count as frozen.
//   L3  A weight that is dequantized from bytes stays so: the bytes are what its layer will read.
//   L4  An einsum of a frozen tensor becomes a linear layer between views of its input and of its result (frozen_einsum.h).
// Not here: decisions on 8 bits; products of two activations, which stay as they are.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "backends/quant/normalise.h"

namespace frametap::quant {

// Whether the op is a product that becomes aten.linear if one of its factors is frozen.
bool MayBeLinear(const Node& node);

// Returns the results of an op on frozen tensors, computed once for all graphs that have it. Returns none if one of its
// arguments could not be computed, or if a result is not of the type that it has in the graph.
std::optional<std::vector<at::Tensor>> ComputedOnce(const Graph& graph, const Node& node,
                                                    const std::vector<at::Tensor>& known, FrozenWeights* frozen);

// `known`: by value of `graph`, the frozen tensors. `frozen`: where transposed weights are kept; may be null.
Step MakeLinears(const Graph& graph, const std::vector<ValueId>& origin, const std::vector<at::Tensor>& known,
                 FrozenWeights* frozen);

}  // namespace frametap::quant
