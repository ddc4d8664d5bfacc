#include "backends/quant/decomposed_operators.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/round.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace frametap::quant {
namespace {

using Optional = std::optional<c10::ScalarType>;
using Pair = std::tuple<at::Tensor, at::Tensor>;

template <class T>
std::pair<int64_t, int64_t> LimitsOf() {
  return {std::numeric_limits<T>::min(), std::numeric_limits<T>::max()};
}

void CheckLimits(int64_t qmin, int64_t qmax, c10::ScalarType dtype) {
  std::pair<int64_t, int64_t> limits;
  switch (dtype) {
    case at::kByte:
      limits = LimitsOf<uint8_t>();
      break;
    case at::kChar:
      limits = LimitsOf<int8_t>();
      break;
    case at::kUInt16:
      limits = LimitsOf<uint16_t>();
      break;
    case at::kShort:
      limits = LimitsOf<int16_t>();
      break;
    case at::kInt:
      limits = LimitsOf<int32_t>();
      break;
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "quantized_decomposed: a quantized tensor of ", dtype,
                                  " has no kernel in frametap; compile the model without freezing it");
  }
  TORCH_CHECK(qmin >= limits.first, "quant_min out of bounds for dtype, quant_min_lower_bound: ", limits.first,
              " quant_min: ", qmin);
  TORCH_CHECK(qmax <= limits.second, "quant_max out of bounds for dtype, quant_max_upper_bound: ", limits.second,
              " quant_max: ", qmax);
}

at::Tensor InFloat(const at::Tensor& input) {
  if (input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16) return input.to(at::kFloat);
  TORCH_CHECK(input.scalar_type() == at::kFloat,
              "Expecting input to have dtype torch.float32, but got dtype: ", input.scalar_type());
  return input;
}

void CheckDtype(const at::Tensor& input, c10::ScalarType dtype) {
  TORCH_CHECK(input.scalar_type() == dtype, "Expecting input to have dtype: ", dtype, ", but got ",
              input.scalar_type());
}

void CheckOne(const at::Tensor& scale, const at::Tensor& zero_point) {
  TORCH_CHECK(zero_point.numel() == 1,
              "Expecting zero_point tensor to be one element, but received : ", zero_point.numel());
  TORCH_CHECK(scale.numel() == 1, "Expecting scale tensor to be one element, but received : ", scale.numel());
}

at::Tensor Quantize(const at::Tensor& input, double scale, int64_t zero_point, int64_t qmin, int64_t qmax,
                    c10::ScalarType dtype) {
  const at::Tensor x = InFloat(input);
  CheckLimits(qmin, qmax, dtype);
  return x.mul(1.0 / scale).round_().add_(zero_point).clamp_(qmin, qmax).to(dtype);
}

at::Tensor QuantizeBy(const at::Tensor& input, const at::Tensor& scale, const at::Tensor& zero_point, int64_t qmin,
                      int64_t qmax, c10::ScalarType dtype) {
  CheckOne(scale, zero_point);
  return Quantize(input, scale.item().toDouble(), zero_point.item().toLong(), qmin, qmax, dtype);
}

at::Tensor QuantizeByAll(const at::Tensor& input, const at::Tensor& scale, const at::Tensor& zero_point,
                         const at::Tensor& qmin, const at::Tensor& qmax, c10::ScalarType dtype) {
  return QuantizeBy(input, scale, zero_point, qmin.item().toLong(), qmax.item().toLong(), dtype);
}

at::Tensor Dequantize(const at::Tensor& input, double scale, int64_t zero_point, int64_t qmin, int64_t qmax,
                      c10::ScalarType dtype, Optional out_dtype) {
  CheckDtype(input, dtype);
  return input.to(out_dtype.value_or(at::kFloat)).sub(zero_point).mul(scale);
}

at::Tensor DequantizeBy(const at::Tensor& input, const at::Tensor& scale, const at::Tensor& zero_point, int64_t qmin,
                        int64_t qmax, c10::ScalarType dtype, Optional out_dtype) {
  CheckOne(scale, zero_point);
  return Dequantize(input, scale.item().toDouble(), zero_point.item().toLong(), qmin, qmax, dtype, out_dtype);
}

at::Tensor DequantizeByAll(const at::Tensor& input, const at::Tensor& scale, const at::Tensor& zero_point,
                           const at::Tensor& qmin, const at::Tensor& qmax, c10::ScalarType dtype, Optional out_dtype) {
  return DequantizeBy(input, scale, zero_point, qmin.item().toLong(), qmax.item().toLong(), dtype, out_dtype);
}

// The tensor with dimension `axis` first; the same call leads back.
at::Tensor AxisFirst(const at::Tensor& input, int64_t axis) {
  TORCH_CHECK(axis < input.dim(), "Expecting axis to be < ", input.dim());
  return input.transpose(0, axis);
}

at::Tensor AlongFirst(const at::Tensor& parameters, const at::Tensor& like) {
  TORCH_CHECK(parameters.dim() == 1 && parameters.size(0) == like.size(0),
              "expected one scale and zero point for each of ", like.size(0), " channels, got sizes ",
              parameters.sizes());
  std::vector<int64_t> sizes(static_cast<size_t>(like.dim()), 1);
  sizes[0] = parameters.size(0);
  return parameters.view(sizes);
}

at::Tensor QuantizeChannels(const at::Tensor& input, const at::Tensor& scales, const at::Tensor& zero_points,
                            int64_t axis, int64_t qmin, int64_t qmax, c10::ScalarType dtype) {
  const at::Tensor x = AxisFirst(InFloat(input), axis);
  CheckLimits(qmin, qmax, dtype);
  const at::Tensor rounded = x.mul(AlongFirst(scales, x).reciprocal()).round_();
  return rounded.add(AlongFirst(zero_points, x)).clamp(qmin, qmax).transpose(0, axis).to(dtype);
}

at::Tensor DequantizeChannels(const at::Tensor& input, const at::Tensor& scales,
                              const std::optional<at::Tensor>& zero_points, int64_t axis, int64_t qmin, int64_t qmax,
                              c10::ScalarType dtype, Optional out_dtype) {
  CheckDtype(input, dtype);
  const at::Tensor q = AxisFirst(input, axis);
  CheckLimits(qmin, qmax, dtype);
  const at::Tensor moved = zero_points ? q.sub(AlongFirst(*zero_points, q)) : q;
  return moved.mul(AlongFirst(scales, q)).to(out_dtype.value_or(at::kFloat)).transpose(0, axis);
}

Pair ChooseParameters(const at::Tensor& input, int64_t qmin, int64_t qmax, double eps, c10::ScalarType dtype) {
  const c10::ScalarType type = input.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kHalf || type == at::kBFloat16,
              "Expecting input to have dtype torch.float32/16/b16, but got dtype: ", type);
  TORCH_CHECK(qmin <= 0 && 0 <= qmax, "Used-specified quantization range must include 0.");
  TORCH_CHECK(qmin < qmax, "qmin must be strictly less than qmax for user-specified quantization range.");
  const auto [low, high] = at::aminmax(input);
  const double lowest = low.item().toDouble(), highest = high.item().toDouble();
  // As torch has it for extremes that no value has set.
  if (lowest == std::numeric_limits<double>::infinity() && highest == -std::numeric_limits<double>::infinity()) {
    return {at::full({1}, 1.0, at::kFloat), at::full({1}, 0, at::kLong)};
  }
  TORCH_CHECK(!std::isnan(lowest) && !std::isnan(highest), "min nan should be less than max nan");
  const at::Tensor zero = at::full({}, 0.0, low.options());
  const at::Tensor floor = at::minimum(low, zero);
  const at::Tensor least = at::full({1}, eps, at::kFloat);
  const at::Tensor scale = at::maximum(at::maximum(high, zero).sub(floor).div(static_cast<double>(qmax - qmin)), least);
  const at::Tensor zero_point = floor.div(scale).round().to(at::kInt).neg().add(qmin).clamp(qmin, qmax);
  return {scale.to(at::kDouble), zero_point.to(at::kLong)};
}

// Sizes and dtypes only.
at::Tensor Like(const at::Tensor& input, c10::ScalarType dtype) {
  return at::empty_like(input, input.options().dtype(dtype));
}
template <class... Args>
at::Tensor QuantizeMeta(const at::Tensor& input, Args... args) {
  return Like(input, std::get<sizeof...(Args) - 1>(std::tuple(args...)));
}
template <class... Args>
at::Tensor DequantizeMeta(const at::Tensor& input, Args... args) {
  return Like(input, std::get<sizeof...(Args) - 1>(std::tuple(args...)).value_or(at::kFloat));
}
Pair ChooseParametersMeta(const at::Tensor& input, int64_t, int64_t, double, c10::ScalarType) {
  return {at::empty({1}, input.options().dtype(at::kDouble)), at::empty({1}, input.options().dtype(at::kLong))};
}

}  // namespace

void RegisterDecomposedOperators() {
  // Kept for ever: the dispatcher may be asked during the end of the process.
  auto* defs = new torch::Library(torch::Library::FRAGMENT, kDecomposed, std::nullopt, __FILE__, __LINE__);
  defs->def(
      "quantize_per_tensor(Tensor input, float scale, int zero_point, int quant_min, int quant_max, ScalarType dtype) "
      "-> Tensor");
  defs->def(
      "quantize_per_tensor.tensor(Tensor input, Tensor scale, Tensor zero_point, int quant_min, int quant_max, "
      "ScalarType dtype) -> Tensor");
  defs->def(
      "quantize_per_tensor.tensor2(Tensor input, Tensor scale, Tensor zero_point, Tensor quant_min, "
      "Tensor quant_max, ScalarType dtype) -> Tensor");
  defs->def(
      "dequantize_per_tensor(Tensor input, float scale, int zero_point, int quant_min, int quant_max, "
      "ScalarType dtype, *, ScalarType? out_dtype=None) -> Tensor");
  defs->def(
      "dequantize_per_tensor.tensor(Tensor input, Tensor scale, Tensor zero_point, int quant_min, int quant_max, "
      "ScalarType dtype, *, ScalarType? out_dtype=None) -> Tensor");
  defs->def(
      "dequantize_per_tensor.tensor2(Tensor input, Tensor scale, Tensor zero_point, Tensor quant_min, "
      "Tensor quant_max, ScalarType dtype, *, ScalarType? out_dtype=None) -> Tensor");
  defs->def(
      "quantize_per_channel(Tensor input, Tensor scales, Tensor zero_points, int axis, int quant_min, "
      "int quant_max, ScalarType dtype) -> Tensor");
  defs->def(
      "dequantize_per_channel(Tensor input, Tensor scales, Tensor? zero_points, int axis, int quant_min, "
      "int quant_max, ScalarType dtype, *, ScalarType? out_dtype=None) -> Tensor");
  defs->def(
      "choose_qparams.tensor(Tensor input, int quant_min, int quant_max, float eps, ScalarType dtype) "
      "-> (Tensor, Tensor)");
  auto* all = new torch::Library(torch::Library::IMPL, kDecomposed, c10::DispatchKey::CompositeExplicitAutograd,
                                 __FILE__, __LINE__);
  all->impl("quantize_per_tensor", TORCH_FN(Quantize));
  all->impl("quantize_per_tensor.tensor", TORCH_FN(QuantizeBy));
  all->impl("quantize_per_tensor.tensor2", TORCH_FN(QuantizeByAll));
  all->impl("dequantize_per_tensor", TORCH_FN(Dequantize));
  all->impl("dequantize_per_tensor.tensor", TORCH_FN(DequantizeBy));
  all->impl("dequantize_per_tensor.tensor2", TORCH_FN(DequantizeByAll));
  all->impl("quantize_per_channel", TORCH_FN(QuantizeChannels));
  all->impl("dequantize_per_channel", TORCH_FN(DequantizeChannels));
  all->impl("choose_qparams.tensor", TORCH_FN(ChooseParameters));
  auto* meta = new torch::Library(torch::Library::IMPL, kDecomposed, c10::DispatchKey::Meta, __FILE__, __LINE__);
  using Tensor = const at::Tensor&;
  using Dtype = c10::ScalarType;
  meta->impl("quantize_per_tensor", QuantizeMeta<double, int64_t, int64_t, int64_t, Dtype>);
  meta->impl("quantize_per_tensor.tensor", QuantizeMeta<Tensor, Tensor, int64_t, int64_t, Dtype>);
  meta->impl("quantize_per_tensor.tensor2", QuantizeMeta<Tensor, Tensor, Tensor, Tensor, Dtype>);
  meta->impl("dequantize_per_tensor", DequantizeMeta<double, int64_t, int64_t, int64_t, Dtype, Optional>);
  meta->impl("dequantize_per_tensor.tensor", DequantizeMeta<Tensor, Tensor, int64_t, int64_t, Dtype, Optional>);
  meta->impl("dequantize_per_tensor.tensor2", DequantizeMeta<Tensor, Tensor, Tensor, Tensor, Dtype, Optional>);
  meta->impl("quantize_per_channel", QuantizeMeta<Tensor, Tensor, int64_t, int64_t, int64_t, Dtype>);
  meta->impl("dequantize_per_channel",
             DequantizeMeta<Tensor, const std::optional<at::Tensor>&, int64_t, int64_t, int64_t, Dtype, Optional>);
  meta->impl("choose_qparams.tensor", TORCH_FN(ChooseParametersMeta));
}

}  // namespace frametap::quant
