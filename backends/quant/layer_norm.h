// Layer norm whose result is quantized (Ba et al., 2016, "Layer Normalization"): a row is read once from memory, and bytes are
// written.
//   Z1  Bytes are within one step of quantize(layer_norm(x)), whose sums are added in another order. Floats are near to it
//       by rounding.
//   Z2  Tensors that are not dense rows of float32 on the CPU go through torch's op.
// Not here: which norms are taken (lower.cc).
#pragma once

#include "ir/graph/graph.h"

namespace frametap::quant {

// Whether the node is one of the two operators below.
bool IsNormToBytes(const Node& node);

// frametap::layer_norm_to_bytes, and frametap::layer_norm_with_bytes, which gives the floats as well.
void RegisterLayerNorm();

}  // namespace frametap::quant
