#include "backends/quant/layer_norm.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/ops/layer_norm.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backends/quant/op_table.h"
#include "backends/quant/operators.h"
#include "backends/quant/wide_loop.h"

namespace frametap::quant {
namespace {

constexpr int64_t kGrain = 16384;

// As many sums at a time as hide the time that an addition takes.
constexpr int64_t kSums = 4;

[[gnu::always_inline]] inline float SumOf(const Lanes (&sums)[kSums]) {
  const Lanes all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  float lanes[kLanes];
  std::memcpy(lanes, &all, sizeof(all));
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

struct Row {
  const float* x;
  const float* weight;
  const float* bias;
  int64_t size;
  float eps;
};

// The mean, and the inverse of the standard deviation.
[[gnu::always_inline]] inline std::pair<float, float> MomentsOf(const Row& row) {
  const float* __restrict x = row.x;
  const int64_t n = row.size, whole = n / (kSums * kLanes) * (kSums * kLanes);
  Lanes sums[kSums] = {}, squares[kSums] = {}, lanes;
  float rest = 0;
  for (int64_t i = 0; i < whole; i += kSums * kLanes) {
    for (int64_t k = 0; k < kSums; ++k) {
      Load(x + i + k * kLanes, &lanes);
      sums[k] += lanes;
    }
  }
  for (int64_t i = whole; i < n; ++i) rest += x[i];
  const float mean = (SumOf(sums) + rest) / static_cast<float>(n);

  rest = 0;
  for (int64_t i = 0; i < whole; i += kSums * kLanes) {
    for (int64_t k = 0; k < kSums; ++k) {
      Load(x + i + k * kLanes, &lanes);
      lanes -= mean;
      squares[k] += lanes * lanes;
    }
  }
  for (int64_t i = whole; i < n; ++i) rest += (x[i] - mean) * (x[i] - mean);
  return {mean, 1.0f / std::sqrt((SumOf(squares) + rest) / static_cast<float>(n) + row.eps)};
}

// Calls write(i, element i of the result).
template <class F>
[[gnu::always_inline]] inline void Normalise(const Row& row, const F& write) {
  const auto [mean, inverse] = MomentsOf(row);
  const float* __restrict x = row.x;
  const float* __restrict weight = row.weight;
  const float* __restrict bias = row.bias;
  const int64_t n = row.size;
  for (int64_t i = 0; i < n; ++i) write(i, (x[i] - mean) * inverse * weight[i] + bias[i]);
}

FRAMETAP_WIDE_LOOP
void ToBytes(const Row& row, ByteRange r, uint8_t* __restrict to) {
  Normalise(row, [&](int64_t i, float y) { to[i] = ToByte(y, r.inverse, r.lo, r.hi, r.zero_point); });
}

FRAMETAP_WIDE_LOOP
void ToFloatsAndBytes(const Row& row, ByteRange r, float* __restrict floats, uint8_t* __restrict to) {
  Normalise(row, [&](int64_t i, float y) {
    floats[i] = y;
    to[i] = ToByte(y, r.inverse, r.lo, r.hi, r.zero_point);
  });
}

bool IsDense(const at::Tensor& x) { return x.scalar_type() == at::kFloat && x.device().is_cpu() && x.is_contiguous(); }

bool FitsRow(const std::optional<at::Tensor>& x, int64_t size) { return !x || (IsDense(*x) && x->numel() == size); }

using Optional = std::optional<at::Tensor>;

// `floats`: null, or where the result goes as well.
at::Tensor Run(const at::Tensor& x, at::IntArrayRef shape, const Optional& weight, const Optional& bias, double eps,
               const ByteRange& range, at::Tensor* floats) {
  const int64_t size = c10::multiply_integers(shape);
  const std::vector<float> ones(weight ? 0 : static_cast<size_t>(size), 1.0f);
  const std::vector<float> zeros(bias ? 0 : static_cast<size_t>(size), 0.0f);
  const float* const w = weight ? weight->const_data_ptr<float>() : ones.data();
  const float* const b = bias ? bias->const_data_ptr<float>() : zeros.data();
  at::Tensor bytes = at::detail::empty_cpu(x.sizes(), at::kByte);
  const float* const from = x.const_data_ptr<float>();
  uint8_t* const to = bytes.mutable_data_ptr<uint8_t>();
  float* const all = floats != nullptr ? floats->mutable_data_ptr<float>() : nullptr;
  at::parallel_for(0, x.numel() / size, std::max<int64_t>(1, kGrain / size), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Row row{from + i * size, w, b, size, static_cast<float>(eps)};
      if (all == nullptr) {
        ToBytes(row, range, to + i * size);
      } else {
        ToFloatsAndBytes(row, range, all + i * size, to + i * size);
      }
    }
  });
  return bytes;
}

// Z2
bool Takes(const at::Tensor& x, at::IntArrayRef shape, const Optional& weight, const Optional& bias) {
  const size_t rank = shape.size();
  if (!IsDense(x) || rank == 0 || static_cast<size_t>(x.dim()) < rank || x.numel() == 0) return false;
  const int64_t size = c10::multiply_integers(shape);
  return x.sizes().slice(x.sizes().size() - rank) == shape && FitsRow(weight, size) && FitsRow(bias, size);
}

at::Tensor Quantized(const at::Tensor& x, double scale, int64_t zero_point, int64_t qmin, int64_t qmax) {
  using Call = at::Tensor(const at::Tensor&, double, int64_t, int64_t, int64_t, at::ScalarType);
  static const auto op = FindOperator("frametap::quantize_per_tensor").typed<Call>();
  return op.call(x, scale, zero_point, qmin, qmax, at::kByte);
}

at::Tensor NormToBytes(const at::Tensor& x, at::IntArrayRef shape, const Optional& weight, const Optional& bias,
                       double eps, double scale, int64_t zero_point, int64_t qmin, int64_t qmax) {
  if (Takes(x, shape, weight, bias)) {
    return Run(x, shape, weight, bias, eps, RangeOf(scale, zero_point, qmin, qmax), nullptr);
  }
  return Quantized(at::layer_norm(x, shape, weight, bias, eps), scale, zero_point, qmin, qmax);
}

std::tuple<at::Tensor, at::Tensor> NormWithBytes(const at::Tensor& x, at::IntArrayRef shape, const Optional& weight,
                                                 const Optional& bias, double eps, double scale, int64_t zero_point,
                                                 int64_t qmin, int64_t qmax) {
  if (Takes(x, shape, weight, bias)) {
    at::Tensor floats = at::detail::empty_cpu(x.sizes(), at::kFloat);
    at::Tensor bytes = Run(x, shape, weight, bias, eps, RangeOf(scale, zero_point, qmin, qmax), &floats);
    return {floats, bytes};
  }
  const at::Tensor floats = at::layer_norm(x, shape, weight, bias, eps);
  return {floats, Quantized(floats, scale, zero_point, qmin, qmax)};
}

}  // namespace

bool IsNormToBytes(const Node& node) {
  return Is(node, "frametap::layer_norm_to_bytes") || Is(node, "frametap::layer_norm_with_bytes");
}

void RegisterLayerNorm() {
  const std::string args =
      "(Tensor input, int[] normalized_shape, Tensor? weight, Tensor? bias, float eps, float scale, int zero_point, "
      "int qmin, int qmax) -> ";
  auto* defs = new torch::Library(torch::Library::FRAGMENT, "frametap", std::nullopt, __FILE__, __LINE__);
  defs->def(("layer_norm_to_bytes" + args + "Tensor").c_str());
  defs->def(("layer_norm_with_bytes" + args + "(Tensor, Tensor)").c_str());
  auto* cpu = new torch::Library(torch::Library::IMPL, "frametap", c10::DispatchKey::CPU, __FILE__, __LINE__);
  cpu->impl("layer_norm_to_bytes", TORCH_FN(NormToBytes));
  cpu->impl("layer_norm_with_bytes", TORCH_FN(NormWithBytes));
}

}  // namespace frametap::quant
