// Bilinear interpolation of images of bytes. torch's kernel for bytes takes ten times as long.
//   B1  Results have the parameters of the input, and are rounded once from float32. They are channels_last.
// Not here: nearest neighbours, which torch's kernel only copies.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <optional>

namespace frametap::quant {

// Arguments as of aten::upsample_bilinear2d.vec.
at::Tensor UpsampleBilinearBytes(const at::Tensor& q, at::OptionalIntArrayRef output_size, bool align_corners,
                                 std::optional<at::ArrayRef<double>> scale_factors);

}  // namespace frametap::quant
