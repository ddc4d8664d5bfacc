// Bilinear interpolation of images of bytes, float32 or bfloat16. torch's kernel for bytes takes ten times as long.
//   B1  Bytes of results have the parameters of the input. Results are rounded once from float32, and are channels_last.
//   B2  Floats that are not channels_last go through torch's op.
// Not here: nearest neighbours, which torch's kernel only copies.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <optional>

namespace frametap::quant {

// Arguments as of aten::upsample_bilinear2d.vec.
at::Tensor UpsampleBilinear(const at::Tensor& x, at::OptionalIntArrayRef output_size, bool align_corners,
                            std::optional<at::ArrayRef<double>> scale_factors);

}  // namespace frametap::quant
