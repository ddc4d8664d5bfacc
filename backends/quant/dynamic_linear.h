// DynamicLinear: a linear layer on floats whose products are of bytes. Each row of an input gets parameters of its own at
// each call.
//   D1  A row is uint8, affine, over its own extremes and zero; weights are int8 with one scale for each output.
//   D2  A row with NaN or infinity gives NaN.
//   D3  Rows may share the parameters of their tensor, as choose_qparams of quantized_decomposed has it. A tensor with NaN
//       is refused then.
//   D4  With 14 or 16 bits, an element has a second byte, for the rest that rounding to the first one leaves. The products
//       have twice the rows then, which costs little where the time goes into reading the weights. A tensor of more than
//       kFewRows rows has one byte an element.
// Not here: which layers are such (backends/freeze, annotate.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "backends/onednn/layer.h"
#include "backends/onednn/layer_kernel.h"

namespace frametap::quant {

inline constexpr int64_t kFewRows = 8;  // D4
// D4. Returns whether the elements of a tensor with so many rows have two bytes.
constexpr bool HasTwoBytes(int bits, int64_t rows) { return bits > 8 && rows <= kFewRows; }

class DynamicLinear {
 public:
  // The layer that computes the products alone. `layer`: on bytes, without parameters of an input and of a result.
  static onednn::Layer ProductsOf(onednn::Layer layer);

  enum class Share : uint8_t { kRow, kTensor };
  struct Inputs {
    int bits = 8;               // 7 or 8; or 14 or 16 (D4), for rows with parameters of their own
    Share share = Share::kRow;  // the elements that share parameters
    float least_scale = 0;
  };

  DynamicLinear(const onednn::Layer& layer, const Inputs& inputs);

  // `products`: the kernel of ProductsOf. `x`: f32 [..., inputs].
  at::Tensor Run(onednn::LayerKernel& products, const at::Tensor& x) const;
  // The same on dense rows, which allocates nothing once its size has been met.
  void RunRows(onednn::LayerKernel& products, const float* x, int64_t rows, float* y) const;

 private:
  void RunInTwoBytes(onednn::LayerKernel& products, const float* x, int64_t rows, float* y) const;

  int64_t inputs_, outputs_;
  std::vector<float> sums_;  // by output: the sum of its weights, which a zero point is multiplied with
  std::vector<float> bias_;
  Inputs rows_;
  float qmax_;
};

// Returns the rows of `x` as D1 and D4 have them, in float32 again. `bits`: 7, 8, 14 or 16.
at::Tensor RoundedRows(const at::Tensor& x, int bits);

}  // namespace frametap::quant
