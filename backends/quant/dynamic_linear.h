// DynamicLinear: a linear layer on floats whose products are of bytes. Each row of an input gets parameters of its own at
// each call.
//   D1  A row is uint8, affine, over its own extremes and zero; weights are int8 with one scale for each output.
//   D2  A row with NaN or infinity gives NaN.
//   D3  Rows may share the parameters of their tensor, as choose_qparams of quantized_decomposed has it. A tensor with NaN
//       is refused then.
// Not here: which layers are such (backends/freeze).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "backends/onednn/layer.h"
#include "backends/onednn/layer_kernel.h"

namespace frametap::quant {

class DynamicLinear {
 public:
  // The layer that computes the products alone. `layer`: on bytes, without parameters of an input and of a result.
  static onednn::Layer ProductsOf(onednn::Layer layer);

  enum class Share : uint8_t { kRow, kTensor };
  struct Inputs {
    int bits = 8;               // 7 or 8
    Share share = Share::kRow;  // the elements that share parameters
    float least_scale = 0;
  };

  DynamicLinear(const onednn::Layer& layer, const Inputs& inputs);

  // `products`: the kernel of ProductsOf. `x`: f32 [..., inputs].
  at::Tensor Run(onednn::LayerKernel& products, const at::Tensor& x) const;

 private:
  int64_t inputs_, outputs_;
  std::vector<float> sums_;  // by output: the sum of its weights, which a zero point is multiplied with
  std::vector<float> bias_;
  Inputs rows_;
  float qmax_;
};

// The rows of `x` as D1 has them, in float32 again. `bits`: 7 or 8.
at::Tensor RoundedRows(const at::Tensor& x, int bits);

}  // namespace frametap::quant
