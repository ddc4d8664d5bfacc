#include "backends/quant/dynamic_linear.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>

#include "backends/quant/buffer.h"
#include "backends/quant/extremes.h"
#include "backends/quant/wide_loop.h"

namespace frametap::quant {
namespace {

FRAMETAP_WIDE_LOOP
void ToBytes(const float* __restrict x, uint8_t* __restrict to, int64_t n, float inverse, float lo, float hi,
             int32_t zero_point) {
  for (int64_t i = 0; i < n; ++i) to[i] = ToByte(x[i], inverse, lo, hi, zero_point);
}

FRAMETAP_WIDE_LOOP
void Rescale(float* __restrict y, int64_t n, float scale, float shift, const float* __restrict sums,
             const float* __restrict bias) {
  for (int64_t i = 0; i < n; ++i) y[i] = y[i] * scale - sums[i] * shift + bias[i];
}

// D4. `first`: the bytes of the row.
FRAMETAP_WIDE_LOOP
void RestToBytes(const float* __restrict x, const uint8_t* __restrict first, uint8_t* __restrict to, int64_t n,
                 float scale, int32_t zero_point, float inverse, float lo, float hi, int32_t rest_zero_point) {
  for (int64_t i = 0; i < n; ++i) {
    const float rest = x[i] - static_cast<float>(static_cast<int32_t>(first[i]) - zero_point) * scale;
    to[i] = ToByte(rest, inverse, lo, hi, rest_zero_point);
  }
}

FRAMETAP_WIDE_LOOP
void RescaleTwo(const float* __restrict first, const float* __restrict rest, float* __restrict y, int64_t n,
                float scale, float rest_scale, float shift, const float* __restrict sums,
                const float* __restrict bias) {
  for (int64_t i = 0; i < n; ++i) y[i] = first[i] * scale + rest[i] * rest_scale - sums[i] * shift + bias[i];
}

struct RowParams {
  float scale = 1;
  int32_t zero_point = 0;
};

// D4.
float MostOf(int bits) { return bits == 7 || bits == 14 ? 127.0f : 255.0f; }

// D4. Rests lie within half a step on both sides of zero.
RowParams ParamsOfRest(const RowParams& first, float qmax) {
  return {first.scale / qmax, static_cast<int32_t>((qmax + 1) / 2)};
}

void QuantizeRest(const RowParams& p, const RowParams& rest, const float* x, const uint8_t* first, uint8_t* to,
                  int64_t n, float qmax) {
  if (std::isnan(p.scale)) {
    std::fill(to, to + n, uint8_t{0});
    return;
  }
  const auto zero = static_cast<float>(rest.zero_point);
  RestToBytes(x, first, to, n, p.scale, p.zero_point, 1.0f / rest.scale, -zero, qmax - zero, rest.zero_point);
}

// D1. Returns a scale of NaN if an element is not finite (D2).
RowParams ParamsOf(const Extremes& found, float qmax, float least_scale) {
  RowParams p;
  if (!found.finite()) {
    p.scale = std::numeric_limits<float>::quiet_NaN();
    return p;
  }
  const float range = found.hi - found.lo;
  // Half of each before the difference, which is infinite otherwise.
  const float even = std::isinf(range) ? 2 * (found.hi / (2 * qmax) - found.lo / (2 * qmax)) : range / qmax;
  const float step = std::max(even, least_scale);
  if (step > FLT_MIN) {
    p.scale = step;
    p.zero_point = static_cast<int32_t>(std::clamp(std::nearbyint(-found.lo / step), 0.0f, qmax));
  }
  return p;
}

void QuantizeBy(const RowParams& p, const float* x, uint8_t* to, int64_t n, float qmax) {
  if (std::isnan(p.scale)) {
    std::fill(to, to + n, uint8_t{0});
    return;
  }
  const auto zero = static_cast<float>(p.zero_point);
  ToBytes(x, to, n, 1.0f / p.scale, -zero, qmax - zero, p.zero_point);
}

RowParams QuantizeRow(const float* x, uint8_t* to, int64_t n, float qmax) {
  const RowParams p = ParamsOf(ExtremesOf(x, n, 0), qmax, 0);
  QuantizeBy(p, x, to, n, qmax);
  return p;
}

// D3.
RowParams ParamsOfTensor(const float* x, int64_t n, float qmax, float least_scale) {
  TORCH_CHECK(n > 0, "dynamic_linear: a tensor without elements has no extremes to choose a scale by");
  const Extremes found = ExtremesOf(x, n, 0);
  TORCH_CHECK(found.finite() || std::none_of(x, x + n, [](float v) { return std::isnan(v); }),
              "min nan should be less than max nan");
  return ParamsOf(found, qmax, least_scale);
}

}  // namespace

onednn::Layer DynamicLinear::ProductsOf(onednn::Layer layer) {
  layer.bias = at::Tensor();
  return layer;
}

DynamicLinear::DynamicLinear(const onednn::Layer& layer, const Inputs& inputs)
    : inputs_(layer.inputs()), outputs_(layer.outputs()), bias_(static_cast<size_t>(outputs_), 0.0f), rows_(inputs) {
  const at::Tensor sums =
      layer.weight.to(at::kDouble).sum(1).mul(layer.scales.to(at::kDouble)).to(at::kFloat).contiguous();
  sums_.assign(sums.const_data_ptr<float>(), sums.const_data_ptr<float>() + outputs_);
  if (layer.bias.defined()) std::copy_n(layer.bias.contiguous().const_data_ptr<float>(), outputs_, bias_.begin());
  qmax_ = MostOf(rows_.bits);
}

at::Tensor RoundedRows(const at::Tensor& x, int bits) {
  const at::Tensor from = x.contiguous();
  const at::Tensor to = at::detail::empty_cpu(from.sizes(), at::kFloat);
  const int64_t n = from.size(-1), rows = n == 0 ? 0 : from.numel() / n;
  std::vector<uint8_t> bytes(static_cast<size_t>(n)), rests(static_cast<size_t>(n));
  for (int64_t i = 0; i < rows; ++i) {
    const float* const x_row = from.const_data_ptr<float>() + i * n;
    const RowParams p = QuantizeRow(x_row, bytes.data(), n, MostOf(bits));
    float* const row = to.mutable_data_ptr<float>() + i * n;
    for (int64_t k = 0; k < n; ++k) row[k] = static_cast<float>(bytes[static_cast<size_t>(k)] - p.zero_point) * p.scale;
    if (!HasTwoBytes(bits, rows)) continue;
    const RowParams rest = ParamsOfRest(p, MostOf(bits));
    QuantizeRest(p, rest, x_row, bytes.data(), rests.data(), n, MostOf(bits));
    for (int64_t k = 0; k < n; ++k) {
      row[k] += static_cast<float>(rests[static_cast<size_t>(k)] - rest.zero_point) * rest.scale;
    }
  }
  return to;
}

at::Tensor DynamicLinear::Run(onednn::LayerKernel& products, const at::Tensor& x) const {
  TORCH_CHECK(x.scalar_type() == at::kFloat && x.device().is_cpu() && x.dim() > 0 && x.size(-1) == inputs_,
              "dynamic_linear: expected rows of ", inputs_, " floats on the CPU, got ", x.scalar_type(), " of sizes ",
              x.sizes());
  const at::Tensor from = x.contiguous();
  c10::DimVector sizes(x.sizes().begin(), x.sizes().end());
  sizes.back() = outputs_;
  at::Tensor result = at::detail::empty_cpu(sizes, at::kFloat);
  RunRows(products, from.const_data_ptr<float>(), inputs_ == 0 ? 0 : from.numel() / inputs_,
          result.mutable_data_ptr<float>());
  return result;
}

void DynamicLinear::RunRows(onednn::LayerKernel& products, const float* x, int64_t rows, float* y) const {
  if (HasTwoBytes(rows_.bits, rows)) return RunInTwoBytes(products, x, rows, y);
  const bool is_shared = rows_.share == Share::kTensor;
  const Buffer<RowParams, DynamicLinear> memory_of_params(rows);
  const Buffer<uint8_t, DynamicLinear> memory_of_bytes(rows * inputs_);
  RowParams* const params = memory_of_params.data();
  uint8_t* const bytes = memory_of_bytes.data();
  if (is_shared) std::fill(params, params + rows, ParamsOfTensor(x, rows * inputs_, qmax_, rows_.least_scale));
  at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, inputs_)), [&](int64_t a, int64_t b) {
    for (int64_t i = a; i < b; ++i) {
      if (!is_shared) params[i] = ParamsOf(ExtremesOf(x + i * inputs_, inputs_, 0), qmax_, 0);
      QuantizeBy(params[i], x + i * inputs_, bytes + i * inputs_, inputs_, qmax_);
    }
  });
  products.RunRows(bytes, rows, y);
  at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, outputs_)), [&](int64_t a, int64_t b) {
    for (int64_t i = a; i < b; ++i) {
      const float shift = params[i].scale * static_cast<float>(params[i].zero_point);
      Rescale(y + i * outputs_, outputs_, params[i].scale, shift, sums_.data(), bias_.data());
    }
  });
}

void DynamicLinear::RunInTwoBytes(onednn::LayerKernel& products, const float* x, int64_t rows, float* y) const {
  const Buffer<RowParams, DynamicLinear> params(rows);
  const Buffer<uint8_t, DynamicLinear> bytes(2 * rows * inputs_);
  const Buffer<float, DynamicLinear> sums(2 * rows * outputs_);
  for (int64_t i = 0; i < rows; ++i) {
    const float* const row = x + i * inputs_;
    uint8_t* const first = bytes.data() + 2 * i * inputs_;
    const RowParams p = params.data()[i] = QuantizeRow(row, first, inputs_, qmax_);
    QuantizeRest(p, ParamsOfRest(p, qmax_), row, first, first + inputs_, inputs_, qmax_);
  }
  products.RunRows(bytes.data(), 2 * rows, sums.data());
  for (int64_t i = 0; i < rows; ++i) {
    const RowParams p = params.data()[i], rest = ParamsOfRest(p, qmax_);
    const float shift = p.scale * static_cast<float>(p.zero_point) + rest.scale * static_cast<float>(rest.zero_point);
    const float* const first = sums.data() + 2 * i * outputs_;
    RescaleTwo(first, first + outputs_, y + i * outputs_, outputs_, p.scale, rest.scale, shift, sums_.data(),
               bias_.data());
  }
}

}  // namespace frametap::quant
