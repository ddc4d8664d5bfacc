// Depthwise: a depthwise convolution of images of bfloat16, stored pixel by pixel. oneDNN 3.2's takes two to three times as
// long.
//   D1  Products and sums are of float32, which is not rounded before the curve.
//   D2  A sum with NaN gives NaN.
// Not here: when it is taken (kernel_tensor.cc).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "backends/onednn/layer.h"

namespace frametap::quant {

class Depthwise {
 public:
  static constexpr int64_t kFewestChannels = 32;

  // Whether it takes a layer: of two axes, bfloat16 in and out, with a relu, a clamp or nothing after it.
  static bool Takes(const onednn::Layer& layer);

  explicit Depthwise(const onednn::Layer& layer);

  bool TakesImages(const at::Tensor& x) const;
  at::Tensor Run(const at::Tensor& x) const;

 private:
  onednn::Layer layer_;
  std::vector<float> weights_;  // [blocks of channels][1 (the bias) + window][channels of a block]
  float low_, high_;
};

}  // namespace frametap::quant
