#include "backends/quant/small_linear.h"

#include <algorithm>
#include <limits>

#include "backends/quant/wide_loop.h"

namespace frametap::quant {
namespace {

using onednn::Curve;

constexpr int64_t kVector = 16;

int64_t WholeVectors(int64_t n) { return (n + kVector - 1) / kVector * kVector; }

FRAMETAP_WIDE_LOOP
void SumProducts(const uint8_t* __restrict x, const int32_t* __restrict weights, int64_t inputs, int64_t stride,
                 int32_t* __restrict sums) {
  for (int64_t o = 0; o < stride; o += kVector) {
    int32_t each[kVector] = {};
    for (int64_t i = 0; i < inputs; ++i) {
      const int32_t value = x[i];
      const int32_t* __restrict row = weights + i * stride + o;
      for (int64_t k = 0; k < kVector; ++k) each[k] += value * row[k];
    }
    for (int64_t k = 0; k < kVector; ++k) sums[o + k] = each[k];
  }
}

FRAMETAP_WIDE_LOOP
void ToFloats(const int32_t* __restrict sums, const float* __restrict scales, const float* __restrict bias, float low,
              float high, int64_t n, float* __restrict to) {
  for (int64_t i = 0; i < n; ++i) {
    float v = static_cast<float>(sums[i]) * scales[i] + bias[i];
    v = v > low ? v : low;
    to[i] = v < high ? v : high;
  }
}

FRAMETAP_WIDE_LOOP
void ToBytes(const int32_t* __restrict sums, const float* __restrict scales, const float* __restrict bias, float low,
             float high, int32_t zero_point, int64_t n, uint8_t* __restrict to) {
  for (int64_t i = 0; i < n; ++i) {
    to[i] = ToByte(static_cast<float>(sums[i]) * scales[i] + bias[i], 1.0f, low, high, zero_point);
  }
}

}  // namespace

bool SmallLinear::Takes(const onednn::Layer& layer) {
  const bool compares = layer.curve == Curve::kNone || layer.curve == Curve::kRelu || layer.curve == Curve::kClamp;
  return !layer.is_float() && !layer.is_convolution() && !layer.has_addend && !layer.gives_bfloat16 && compares &&
         layer.x.scale == 1 && layer.x.zero_point == 0 && (!layer.out || layer.out->scale == 1) &&
         layer.outputs() <= kMostOutputs &&
         layer.inputs() * WholeVectors(layer.outputs()) + kProductsToBeginRow <= kMostProducts;
}

SmallLinear::SmallLinear(const onednn::Layer& layer)
    : inputs_(layer.inputs()),
      outputs_(layer.outputs()),
      stride_(WholeVectors(outputs_)),
      weights_(static_cast<size_t>(inputs_ * stride_), 0),
      scales_(layer.scales.const_data_ptr<float>(), layer.scales.const_data_ptr<float>() + outputs_),
      bias_(static_cast<size_t>(outputs_), 0.0f),
      low_(-std::numeric_limits<float>::infinity()),
      high_(std::numeric_limits<float>::infinity()),
      gives_bytes_(layer.out.has_value()) {
  const int8_t* const plain = layer.weight.const_data_ptr<int8_t>();
  for (int64_t o = 0; o < outputs_; ++o) {
    for (int64_t i = 0; i < inputs_; ++i) weights_[static_cast<size_t>(i * stride_ + o)] = plain[o * inputs_ + i];
  }
  if (layer.bias.defined()) std::copy_n(layer.bias.const_data_ptr<float>(), outputs_, bias_.begin());
  if (layer.curve == Curve::kRelu) low_ = 0;
  if (layer.curve == Curve::kClamp) {
    low_ = layer.low;
    high_ = layer.high;
  }
  if (layer.out) {
    out_zero_ = layer.out->zero_point;
    const float least = static_cast<float>(-out_zero_), most = static_cast<float>(255 - out_zero_);
    low_ = std::clamp(low_, least, most);
    high_ = std::clamp(high_, least, most);
  }
}

void SmallLinear::Run(const uint8_t* x, int64_t rows, void* result) const {
  alignas(64) int32_t sums[kMostOutputs];
  for (int64_t row = 0; row < rows; ++row) {
    SumProducts(x + row * inputs_, weights_.data(), inputs_, stride_, sums);
    if (gives_bytes_) {
      ToBytes(sums, scales_.data(), bias_.data(), low_, high_, out_zero_, outputs_,
              static_cast<uint8_t*>(result) + row * outputs_);
    } else {
      ToFloats(sums, scales_.data(), bias_.data(), low_, high_, outputs_, static_cast<float*>(result) + row * outputs_);
    }
  }
}

}  // namespace frametap::quant
