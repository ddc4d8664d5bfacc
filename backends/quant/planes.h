// Copies float images that are stored pixel by pixel into contiguous ones, channel by channel.
//   N1  It gives what contiguous() gives, and the tensor itself where that does. torch's copy takes two to three times as long.
// Not here: images of bytes (quantize_images.h).
#pragma once

#include <ATen/core/Tensor.h>

namespace frametap::quant {

at::Tensor Planes(const at::Tensor& images);

}  // namespace frametap::quant
