// Linears: products with a frozen weight, in whichever way they are spelt, as aten.linear.
//   L1  x @ w, x.mm(w) and addmm(b, x, w) with a frozen two-dimensional w become linear(x, w.t(), b).
//   L2  A transposition of a frozen tensor is computed here, once.
// Not here: decisions on 8 bits; products of two activations, which stay as they are.
#pragma once

#include <vector>

#include "backends/quant/normalise.h"

namespace frametap::quant {

// `known`: by value of `graph`, the frozen tensors. `frozen`: where transposed weights are kept; may be null.
Step MakeLinears(const Graph& graph, const std::vector<ValueId>& origin, const std::vector<at::Tensor>& known,
                 FrozenWeights* frozen);

}  // namespace frametap::quant
