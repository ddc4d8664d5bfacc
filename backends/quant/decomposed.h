// Decomposed: quantized graphs of others (torchao's PT2E, torch.ao) as reference graphs of ours, which Lower takes.
//   X1  Activations of int8 become uint8, with 128 added to the zero point and to the limits. Real numbers stay the same.
//   X2  A weight stays in bytes if its zero points are 0, and if only layers with an input in bytes read it. Another
//       weight becomes a float tensor, computed once, and its layers say why.
//   X3  Products that would saturate on this processor are computed in float.
//   X4  Parameters that are chosen at each call (choose_qparams) become a dynamic layer, for linear layers.
//   X5  All other ops stay as they are, and run by their operators (decomposed_operators.h).
// Not here: the values of the operators; kernels (lower.cc).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "backends/quant/frozen.h"
#include "backends/quant/normalise.h"

namespace frametap::quant {

bool HasDecomposed(const Graph& graph);

// `known`: by value of `graph`, the frozen tensors. `written`: by value, whether an op may write to its memory. `frozen`:
// where weights are kept; may be null.
Step TakeDecomposed(const Graph& graph, const std::vector<ValueId>& origin, const std::vector<at::Tensor>& known,
                    const std::vector<bool>& written, FrozenWeights* frozen);

}  // namespace frametap::quant
