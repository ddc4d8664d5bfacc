// Params: how a float tensor is written in 8 bits.
//   P1  real = (stored - zero_point) * scale. Rounding is half to even. Stored values lie in [qmin, qmax].
//   P2  An activation is uint8, affine, per tensor; its range always holds zero, so that padding and relu are exact.
//   P3  A weight is int8, symmetric in -127..127, one scale for each output channel. Groups of a transposed convolution
//       share the scales of their channels: its weight has no axis for the groups.
// Not here: where ranges come from (statistics.h), the operators that apply them (operators.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace frametap::quant {

struct Range {
  double lo = 0;
  double hi = 0;
};

struct Params {
  double scale = 1;
  int64_t zero_point = 0;
  int64_t qmin = 0;
  int64_t qmax = 255;
};

// P2. An empty range gives scale 1.
Params ChooseAffine(Range range, int64_t qmin, int64_t qmax);

struct QuantizedWeight {
  at::Tensor bytes;        // int8, the weight's shape
  at::Tensor scales;       // f32[channels]
  at::Tensor zero_points;  // i64[channels], all zero
};

// P3, along dimension `axis`.
QuantizedWeight QuantizeWeight(const at::Tensor& weight, int64_t axis);

}  // namespace frametap::quant
