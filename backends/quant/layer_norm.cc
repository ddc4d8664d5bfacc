#include "backends/quant/layer_norm.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/ops/layer_norm.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backends/quant/op_table.h"
#include "backends/quant/operators.h"
#include "backends/quant/rewrite.h"
#include "backends/quant/wide_loop.h"

namespace frametap::quant {
namespace {

// As many sums at a time as hide the time that an addition takes.
constexpr int64_t kSums = 4;

[[gnu::always_inline]] inline float SumOf(const Lanes (&sums)[kSums]) {
  using Eight [[gnu::vector_size(8 * sizeof(float))]] = float;
  using Four [[gnu::vector_size(4 * sizeof(float))]] = float;
  const Lanes x = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  const Eight a = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
                  __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
  const Four b = __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
  const Four c = b + __builtin_shufflevector(b, b, 2, 3, 0, 1);
  return c[0] + c[1];
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

// Where a row goes; null: nowhere.
struct Target {
  float* floats = nullptr;
  uint8_t* bytes = nullptr;
  c10::BFloat16* halves = nullptr;
};

FRAMETAP_WIDE_LOOP
void ToFloats(const Row& row, const ByteRange&, const Target& to) {
  float* __restrict floats = to.floats;
  Normalise(row, [&](int64_t i, float y) { floats[i] = y; });
}

FRAMETAP_WIDE_LOOP
void ToBytes(const Row& row, const ByteRange& r, const Target& to) {
  uint8_t* __restrict bytes = to.bytes;
  Normalise(row, [&](int64_t i, float y) { bytes[i] = ToByte(y, r.inverse, r.lo, r.hi, r.zero_point); });
}

FRAMETAP_WIDE_LOOP
void ToFloatsAndBytes(const Row& row, const ByteRange& r, const Target& to) {
  float* __restrict floats = to.floats;
  uint8_t* __restrict bytes = to.bytes;
  Normalise(row, [&](int64_t i, float y) {
    floats[i] = y;
    bytes[i] = ToByte(y, r.inverse, r.lo, r.hi, r.zero_point);
  });
}

FRAMETAP_WIDE_LOOP
void ToHalves(const Row& row, const ByteRange&, const Target& to) {
  c10::BFloat16* __restrict halves = to.halves;
  Normalise(row, [&](int64_t i, float y) { halves[i] = ToBfloat16(y); });
}

FRAMETAP_WIDE_LOOP
void ToFloatsAndHalves(const Row& row, const ByteRange&, const Target& to) {
  float* __restrict floats = to.floats;
  c10::BFloat16* __restrict halves = to.halves;
  Normalise(row, [&](int64_t i, float y) {
    floats[i] = y;
    halves[i] = ToBfloat16(y);
  });
}

bool IsDense(const at::Tensor& x) { return x.scalar_type() == at::kFloat && x.device().is_cpu() && x.is_contiguous(); }

bool FitsRow(const std::optional<at::Tensor>& x, int64_t size) { return !x || (IsDense(*x) && x->numel() == size); }

using Optional = std::optional<at::Tensor>;

struct Norm {
  const at::Tensor& x;
  at::IntArrayRef shape;
  const Optional& weight;
  const Optional& bias;
  double eps;
};

at::Tensor Empty(const Norm& norm, at::ScalarType type) { return at::detail::empty_cpu(norm.x.sizes(), type); }

// `results`: dense, of the sizes of the input.
void Run(const Norm& norm, std::initializer_list<at::Tensor> results, const ByteRange& range = {}) {
  Target all;
  for (const at::Tensor& result : results) {
    if (result.scalar_type() == at::kFloat) all.floats = result.mutable_data_ptr<float>();
    if (result.scalar_type() == at::kByte) all.bytes = result.mutable_data_ptr<uint8_t>();
    if (result.scalar_type() == at::kBFloat16) all.halves = result.mutable_data_ptr<c10::BFloat16>();
  }
  const auto loop = all.bytes != nullptr    ? all.floats != nullptr ? ToFloatsAndBytes : ToBytes
                    : all.halves != nullptr ? all.floats != nullptr ? ToFloatsAndHalves : ToHalves
                                            : ToFloats;
  const int64_t size = c10::multiply_integers(norm.shape);
  const std::vector<float> ones(norm.weight ? 0 : static_cast<size_t>(size), 1.0f);
  const std::vector<float> zeros(norm.bias ? 0 : static_cast<size_t>(size), 0.0f);
  const float* const w = norm.weight ? norm.weight->const_data_ptr<float>() : ones.data();
  const float* const b = norm.bias ? norm.bias->const_data_ptr<float>() : zeros.data();
  const float* const from = norm.x.const_data_ptr<float>();
  at::parallel_for(0, norm.x.numel() / size, std::max<int64_t>(1, kGrain / size), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto at_row = [&](auto* data) { return data == nullptr ? data : data + i * size; };
      loop({from + i * size, w, b, size, static_cast<float>(norm.eps)}, range,
           {at_row(all.floats), at_row(all.bytes), at_row(all.halves)});
    }
  });
}

// Z2
bool Takes(const Norm& norm) {
  const size_t rank = norm.shape.size();
  const at::Tensor& x = norm.x;
  if (!IsDense(x) || rank == 0 || static_cast<size_t>(x.dim()) < rank || x.numel() == 0) return false;
  const int64_t size = c10::multiply_integers(norm.shape);
  return x.sizes().slice(x.sizes().size() - rank) == norm.shape && FitsRow(norm.weight, size) &&
         FitsRow(norm.bias, size);
}

at::Tensor ByTorch(const Norm& norm) { return at::layer_norm(norm.x, norm.shape, norm.weight, norm.bias, norm.eps); }

at::Tensor Quantized(const at::Tensor& x, double scale, int64_t zero_point, int64_t qmin, int64_t qmax) {
  using Call = at::Tensor(const at::Tensor&, double, int64_t, int64_t, int64_t, at::ScalarType);
  static const auto op = FindOperator("frametap::quantize_per_tensor").typed<Call>();
  return op.call(x, scale, zero_point, qmin, qmax, at::kByte);
}

at::Tensor NormToBytes(const at::Tensor& x, at::IntArrayRef shape, const Optional& weight, const Optional& bias,
                       double eps, double scale, int64_t zero_point, int64_t qmin, int64_t qmax) {
  const Norm norm{x, shape, weight, bias, eps};
  if (!Takes(norm)) return Quantized(ByTorch(norm), scale, zero_point, qmin, qmax);
  at::Tensor bytes = Empty(norm, at::kByte);
  Run(norm, {bytes}, RangeOf(scale, zero_point, qmin, qmax));
  return bytes;
}

std::tuple<at::Tensor, at::Tensor> NormWithBytes(const at::Tensor& x, at::IntArrayRef shape, const Optional& weight,
                                                 const Optional& bias, double eps, double scale, int64_t zero_point,
                                                 int64_t qmin, int64_t qmax) {
  const Norm norm{x, shape, weight, bias, eps};
  if (!Takes(norm)) {
    const at::Tensor floats = ByTorch(norm);
    return {floats, Quantized(floats, scale, zero_point, qmin, qmax)};
  }
  at::Tensor floats = Empty(norm, at::kFloat), bytes = Empty(norm, at::kByte);
  Run(norm, {floats, bytes}, RangeOf(scale, zero_point, qmin, qmax));
  return {floats, bytes};
}

// torch's last argument is for GPUs.
at::Tensor NormToFloats(const at::Tensor& x, at::IntArrayRef shape, const Optional& weight, const Optional& bias,
                        double eps, bool) {
  const Norm norm{x, shape, weight, bias, eps};
  if (!Takes(norm)) return ByTorch(norm);
  at::Tensor floats = Empty(norm, at::kFloat);
  Run(norm, {floats});
  return floats;
}

at::Tensor NormToBfloat16(const at::Tensor& x, at::IntArrayRef shape, const Optional& weight, const Optional& bias,
                          double eps, bool) {
  const Norm norm{x, shape, weight, bias, eps};
  if (!Takes(norm)) return ByTorch(norm).to(at::kBFloat16);
  at::Tensor halves = Empty(norm, at::kBFloat16);
  Run(norm, {halves});
  return halves;
}

std::tuple<at::Tensor, at::Tensor> NormWithBfloat16(const at::Tensor& x, at::IntArrayRef shape, const Optional& weight,
                                                    const Optional& bias, double eps, bool) {
  const Norm norm{x, shape, weight, bias, eps};
  if (!Takes(norm)) {
    const at::Tensor floats = ByTorch(norm);
    return {floats, floats.to(at::kBFloat16)};
  }
  at::Tensor floats = Empty(norm, at::kFloat), halves = Empty(norm, at::kBFloat16);
  Run(norm, {floats, halves});
  return {floats, halves};
}

}  // namespace

bool IsPlainNorm(const Graph& graph, const Node& node) {
  return Is(node, "aten::layer_norm") && !IsUnderAutocast(graph, node) &&
         ConstInts(FindArg(node, "normalized_shape")) && ConstNumber(FindArg(node, "eps")) &&
         IsFloatTensor(graph.value(node.outputs[0]).type);
}

bool IsNormToBytes(const Node& node) {
  return Is(node, "frametap::layer_norm_to_bytes") || Is(node, "frametap::layer_norm_with_bytes");
}

void RegisterLayerNorm() {
  const std::string norm = "(Tensor input, int[] normalized_shape, Tensor? weight, Tensor? bias, float eps, ";
  const std::string bytes = norm + "float scale, int zero_point, int qmin, int qmax) -> ";
  const std::string floats = norm + "bool cudnn_enable) -> ";
  auto* defs = new torch::Library(torch::Library::FRAGMENT, "frametap", std::nullopt, __FILE__, __LINE__);
  defs->def(("layer_norm" + floats + "Tensor").c_str());
  defs->def(("layer_norm_to_bfloat16" + floats + "Tensor").c_str());
  defs->def(("layer_norm_with_bfloat16" + floats + "(Tensor, Tensor)").c_str());
  defs->def(("layer_norm_to_bytes" + bytes + "Tensor").c_str());
  defs->def(("layer_norm_with_bytes" + bytes + "(Tensor, Tensor)").c_str());
  auto* cpu = new torch::Library(torch::Library::IMPL, "frametap", c10::DispatchKey::CPU, __FILE__, __LINE__);
  cpu->impl("layer_norm", TORCH_FN(NormToFloats));
  cpu->impl("layer_norm_to_bfloat16", TORCH_FN(NormToBfloat16));
  cpu->impl("layer_norm_with_bfloat16", TORCH_FN(NormWithBfloat16));
  cpu->impl("layer_norm_to_bytes", TORCH_FN(NormToBytes));
  cpu->impl("layer_norm_with_bytes", TORCH_FN(NormWithBytes));
}

}  // namespace frametap::quant
