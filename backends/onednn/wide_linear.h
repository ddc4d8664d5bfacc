// WideLinear: a linear layer on float32 with the vectors of AVX-512. oneDNN 3.2's takes a fifth more time, as weights that come
// from memory arrive late: this one fetches a panel of them while it multiplies the one before.
//   D1  Results are the layer's (layer/Y2), up to the rounding of float32. Sums of one result do not depend on other rows, nor
//       on the number of threads.
//   D2  It has its own copy of the weights, in panels of 32 outputs. Runs of several threads share it.
//   D3  The products of 384 inputs are added one after another, and then the sums of these. The error of longer rows would be
//       twice as large.
#pragma once

#include <cstdint>
#include <memory>

#include "backends/onednn/layer.h"

namespace frametap::onednn {

class WideLinear {
 public:
  // A linear layer of float32, or a convolution that is one of its few pixels, where the processor has the vectors.
  // `rows`: or pixels, of all images.
  static bool Takes(const Layer& layer, int64_t rows);

  explicit WideLinear(const Layer& layer);

  // `x`: dense [rows, inputs]. `addend`: null, or as `result`: dense [rows, outputs]. Bias, addend and curve are those of
  // the layer, which is the one that it was made of.
  void Run(const Layer& layer, const float* x, int64_t rows, const float* addend, float* result) const;

 private:
  std::shared_ptr<const float> weights_;  // [parts of the inputs][panels][inputs of the part][32]
};

}  // namespace frametap::onednn
