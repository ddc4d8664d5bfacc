// DynamicLinear: a linear layer on floats whose products are of bytes. Each row of an input gets parameters of its own at
// each call.
//   D1  A row is uint8, affine, over its own extremes and zero; weights are int8 with one scale for each output.
//   D2  A row with NaN or infinity gives NaN.
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

  // `bits`: of the input, 7 or 8.
  DynamicLinear(const onednn::Layer& layer, int bits);

  // `products`: the kernel of ProductsOf. `x`: f32 [..., inputs].
  at::Tensor Run(onednn::LayerKernel& products, const at::Tensor& x) const;

 private:
  int64_t inputs_, outputs_;
  std::vector<float> sums_;  // by output: the sum of its weights, which a zero point is multiplied with
  std::vector<float> bias_;
  float qmax_;
};

// The rows of `x` as D1 has them, in float32 again. `bits`: 7 or 8.
at::Tensor RoundedRows(const at::Tensor& x, int bits);

}  // namespace frametap::quant
