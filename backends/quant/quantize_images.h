// Quantizes images that are stored channel by channel (NCHW) into bytes stored pixel by pixel (NHWC), in one pass.
//   I1  The bytes are equal to the bytes of quantize_per_tensor.
//   I2  Tiles are quantized into a buffer that stays in the first-level cache, and transposed from there.
// Not here: images whose rows are not dense; these are copied first (operators.cc).
#pragma once

#include <ATen/core/Tensor.h>

#include "backends/quant/wide_loop.h"

namespace frametap::quant {

// Whether the pixels of each row lie side by side in every channel of `x`, and pixels do not lie channel by channel.
bool HasDenseRows(const at::Tensor& x);

// `x`: float32 of four dimensions with dense rows. `to`: uint8 of its sizes, contiguous as channels_last.
void QuantizeImages(const at::Tensor& x, const ByteRange& range, const at::Tensor& to);

}  // namespace frametap::quant
