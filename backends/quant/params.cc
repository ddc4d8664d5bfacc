#include "backends/quant/params.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cfloat>
#include <cmath>

namespace frametap::quant {

Params ChooseAffine(Range range, int64_t qmin, int64_t qmax) {
  Params p;
  p.qmin = qmin;
  p.qmax = qmax;
  const double lo = std::min(range.lo, 0.0);
  const double hi = std::max(range.hi, 0.0);
  const double width = hi - lo;
  // The kernels keep scales as float: one that would be denormal there has no usable inverse.
  if (!(width / double(qmax - qmin) > double(FLT_MIN))) {
    p.zero_point = qmin;
    return p;
  }
  p.scale = static_cast<float>(width / double(qmax - qmin));
  p.zero_point = std::clamp<int64_t>(qmin - std::llrint(lo / p.scale), qmin, qmax);
  return p;
}

QuantizedWeight QuantizeWeight(const at::Tensor& weight, int64_t axis) {
  if (axis != 0) {
    QuantizedWeight made = QuantizeWeight(weight.transpose(0, axis), 0);
    made.bytes = made.bytes.transpose(0, axis).contiguous();
    return made;
  }
  const at::Tensor w = weight.detach().contiguous();
  const int64_t channels = w.size(0);
  const int64_t each = channels == 0 ? 0 : w.numel() / channels;
  QuantizedWeight out;
  out.bytes = at::empty(w.sizes(), at::TensorOptions().dtype(at::kChar));
  out.scales = at::empty({channels}, at::TensorOptions().dtype(at::kFloat));
  out.zero_points = at::zeros({channels}, at::TensorOptions().dtype(at::kLong));
  const float* from = w.const_data_ptr<float>();
  int8_t* to = out.bytes.mutable_data_ptr<int8_t>();
  float* scales = out.scales.mutable_data_ptr<float>();
  for (int64_t c = 0; c < channels; ++c) {
    float largest = 0;
    for (int64_t i = 0; i < each; ++i) largest = std::max(largest, std::abs(from[c * each + i]));
    const float scale = largest / 127 >= FLT_MIN ? largest / 127 : 1.0f;
    scales[c] = scale;
    for (int64_t i = 0; i < each; ++i) {
      to[c * each + i] = static_cast<int8_t>(std::clamp(std::nearbyint(from[c * each + i] / scale), -127.0f, 127.0f));
    }
  }
  return out;
}

}  // namespace frametap::quant
