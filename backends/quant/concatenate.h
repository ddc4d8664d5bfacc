// Concatenation: torch's result by long copies. torch copies images that are channels_last pixel by pixel.
#pragma once

#include <ATen/core/Tensor.h>

namespace frametap::quant {

// Arguments as of aten::cat. Tensors that lie alike, all contiguous or all channels_last, are copied; others go through
// torch's op.
at::Tensor Concatenate(at::TensorList tensors, int64_t dim);

}  // namespace frametap::quant
