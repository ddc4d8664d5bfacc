// SmallLinear: a linear layer on bytes that takes less time than oneDNN needs to begin a run.
//   S1  It gives what the layer's kernel of oneDNN gives, up to the rounding of f32: sums of products are exact.
//   S2  No product saturates, whatever the processor has.
// Not here: when it is taken (kernel_tensor.cc).
#pragma once

#include <cstdint>
#include <vector>

#include "backends/onednn/layer.h"

namespace frametap::quant {

class SmallLinear {
 public:
  static constexpr int64_t kMostOutputs = 256;
  // Measured with AVX-512: from about 10,000 products on oneDNN is quicker, and to begin a row costs as much as 512.
  static constexpr int64_t kMostProducts = 10000;
  static constexpr int64_t kProductsToBeginRow = 512;

  // Whether it takes a layer, which is folded (onednn::Folded).
  static bool Takes(const onednn::Layer& layer);

  explicit SmallLinear(const onednn::Layer& layer);

  bool TakesRows(int64_t rows) const { return rows * (inputs_ * stride_ + kProductsToBeginRow) <= kMostProducts; }
  // `result`: of bytes or of floats, as the layer says.
  void Run(const uint8_t* x, int64_t rows, void* result) const;

 private:
  int64_t inputs_, outputs_;
  int64_t stride_;                // outputs, rounded up to whole vectors
  std::vector<int32_t> weights_;  // [inputs][stride], zero where there is none
  std::vector<float> scales_, bias_;
  float low_, high_;  // of the sum, in steps of the output if that is bytes
  bool gives_bytes_;
  int32_t out_zero_ = 0;
};

}  // namespace frametap::quant
