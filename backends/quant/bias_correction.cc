#include "backends/quant/bias_correction.h"

#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>

#include <algorithm>
#include <vector>

#include "backends/quant/convolution.h"
#include "backends/quant/op_table.h"
#include "backends/quant/operators.h"

namespace frametap::quant {
namespace {

using Dequantize = at::Tensor(const at::Tensor& bytes, const at::Tensor& scales, const at::Tensor& zero_points,
                              int64_t axis);

// Returns the weight less the floats that the reference graph dequantizes from its bytes.
at::Tensor ErrorOf(const at::Tensor& weight, const QuantizedWeight& q, int64_t axis) {
  const auto dequantize = FindOperator("frametap::dequantize_per_channel").typed<Dequantize>();
  return at::sub(weight.detach(), dequantize.call(q.bytes, q.scales, q.zero_points, axis));
}

// Each result of a transposed convolution sees one of `stride` many elements of the kernel, along each of the axes.
double SeenOf(const Node& layer, size_t axes) {
  const std::vector<int64_t> strides = ConstInts(FindArg(layer, "stride")).value_or(std::vector<int64_t>{1});
  double seen = 1;
  for (size_t i = 0; i < axes; ++i) seen /= static_cast<double>(strides[std::min(i, strides.size() - 1)]);
  return seen;
}

}  // namespace

int64_t ChannelsOf(const Node& layer, int64_t weight_rank) {
  return FamilyOf(layer) == Family::kConv ? 1 - weight_rank : -1;
}

at::Tensor BiasCorrection(const Node& layer, const at::Tensor& weight, const QuantizedWeight& quantized,
                          const at::Tensor& means) {
  const at::Tensor error = ErrorOf(weight, quantized, OutputAxisOf(layer));
  if (FamilyOf(layer) != Family::kConv) return at::matmul(error, means);
  const int64_t groups = ConstInt(FindArg(layer, "groups")).value_or(1);
  const at::Tensor taken = error.flatten(2).sum(2);
  const at::Tensor of_groups = means.view({groups, -1, 1});
  if (!IsTransposedConvolution(layer)) {
    return at::matmul(taken.view({groups, -1, taken.size(1)}), of_groups).flatten();
  }
  const at::Tensor by_output = taken.view({groups, -1, taken.size(1)}).transpose(1, 2);
  return at::mul(at::matmul(by_output, of_groups).flatten(), SeenOf(layer, static_cast<size_t>(weight.dim()) - 2));
}

}  // namespace frametap::quant
