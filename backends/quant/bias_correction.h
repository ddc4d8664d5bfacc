// Bias correction: rounding weights and inputs shifts the mean of a layer's result, and the bias takes the shift back.
//   C1  The shift of an output channel is the error of its weights times the means of the input channels, summed over the
//       kernel. (Nagel, van Baalen, Blankevoort and Welling, "Data-Free Quantization through Weight Equalization and Bias
//       Correction", 2019, section 4.2, with means that calibration has measured.)
//   C2  The errors in the input shift it, too: the shift is the weights times the means of the errors. The errors in a
//       residual that the layer adds count as well. If activations depend little on the input, rounding moves a channel to
//       one side.
//   C3  The border of an image counts as its inside, so that one bias fits all sizes.
// Not here: where means come from (statistics.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ir/graph/graph.h"

namespace frametap::quant {

// The dimension of a layer's input that its weight is summed over, counted from the last: -1 for a linear layer.
// `weight_rank`: dimensions of the weight.
int64_t ChannelsOf(const Node& layer, int64_t weight_rank);

// The facts of calibration about the channels that a layer reads. A tensor is undefined if nothing is known.
struct ChannelFacts {
  at::Tensor means, errors;    // f32[inputs]
  at::Tensor residual_errors;  // f32[outputs]

  bool any() const { return means.defined() || errors.defined() || residual_errors.defined(); }
};

// C1, C2. Returns what is added to the bias, f32[outputs]. The layer is a convolution or linear. `rounded`: the weight after
// quantization, in floats.
at::Tensor BiasCorrection(const Node& layer, const at::Tensor& weight, const at::Tensor& rounded,
                          const ChannelFacts& facts);

}  // namespace frametap::quant
