// WideLinear: a linear layer on float32 with the vectors of AVX-512. Kernels of oneDNN 3.2 wait for weights that come from
// memory. This one fetches the next panel of them while it multiplies, and takes 0.6 to 1.0 of the time.
//   D1  Results are the layer's (layer/Y2), up to the rounding of float32. They do not depend on the number of threads.
//   D2  It has its own copy of the weights, in panels of 32 outputs. Runs of several threads share it.
//   D3  The products of 384 inputs are added one after another, and then the sums of these. The error of longer rows would be
//       twice as large.
// Not here: layers on bytes and on bfloat16, which oneDNN runs. A kernel like this one for bytes (VNNI) was quicker alone, and
// not in models.
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

  // `layer`: the one that it was made of, for its bias and curve. `x`: dense [rows, inputs]. `result`: dense [rows, outputs].
  // `addend`: null, or laid out like the result.
  void Run(const Layer& layer, const float* x, int64_t rows, const float* addend, float* result) const;

 private:
  std::shared_ptr<const float> weights_;  // [parts of the inputs][panels][inputs of the part][32]
};

}  // namespace frametap::onednn
