// Pools of images of bytes, [N, C, H, W] or [C, H, W], and two of floats. Results are channels_last.
//   P1  A maximum has the parameters of its input. A mean has parameters of its own: means of many elements lie in a small
//       part of the range of the elements.
//   P2  Maxima are torch's, NaN included, and means of floats are torch's up to rounding. Floats that are not channels_last go through torch's op.
// Not here: which pools run on bytes (annotate.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace frametap::quant {

// Arguments as of aten::max_pool2d.
at::Tensor MaxPool(const at::Tensor& x, at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef padding,
                   at::IntArrayRef dilation, bool ceil_mode);

// `q_scale`, `q_zero_point`: the parameters of `q`; those after them belong to the result.
at::Tensor AvgPoolBytes(const at::Tensor& q, double q_scale, int64_t q_zero_point, double scale, int64_t zero_point,
                        int64_t qmin, int64_t qmax, at::IntArrayRef kernel, at::IntArrayRef stride,
                        at::IntArrayRef padding, bool ceil_mode, bool count_include_pad,
                        std::optional<int64_t> divisor_override);
// Arguments as of aten::adaptive_avg_pool2d.
at::Tensor AdaptiveAvgPool(const at::Tensor& x, at::IntArrayRef output_size);
at::Tensor AdaptiveAvgPoolBytes(const at::Tensor& q, double q_scale, int64_t q_zero_point, double scale,
                                int64_t zero_point, int64_t qmin, int64_t qmax, at::IntArrayRef output_size);

}  // namespace frametap::quant
