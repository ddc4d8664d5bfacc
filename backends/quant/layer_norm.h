// Layer norm (Ba et al., 2016, "Layer Normalization"): a row is read once from memory, and bytes, bfloat16, float32 or two of
// these are written. torch's takes four times as long.
//   Z1  Bytes are within one step of quantize(layer_norm(x)), whose sums are added in another order. Floats are near to it
//       by rounding.
//   Z2  Tensors that are not dense rows of float32 on the CPU go through torch's op.
// Not here: which norms give which (lower.cc, ../freeze/freeze.cc).
#pragma once

#include "ir/graph/graph.h"

namespace frametap::quant {

// Whether the node is torch's op, on float32, with numbers that are known.
bool IsPlainNorm(const Graph& graph, const Node& node);

// Whether the node is one of the operators of bytes below.
bool IsNormToBytes(const Node& node);

// frametap::layer_norm, with the arguments of torch's. layer_norm_to_bytes, and layer_norm_with_bytes, which gives the floats
// as well; and the same with bfloat16.
void RegisterLayerNorm();

}  // namespace frametap::quant
