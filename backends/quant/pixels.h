// Copies float images of few channels that are stored channel by channel into images stored pixel by pixel, in float32 or
// bfloat16, in one pass. Two ops of torch, a conversion and a copy, take four times as long.
// Not here: images of bytes (quantize_images.h), the other direction (planes.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace frametap::quant {

constexpr int64_t kMostChannelsOfPixels = 4;

// Returns `images` as channels_last of `type`: the tensor itself where it is. Other tensors than the ones above are copied by
// torch.
at::Tensor Pixels(const at::Tensor& images, at::ScalarType type);

}  // namespace frametap::quant
