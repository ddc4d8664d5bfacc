#include "backends/quant/bias_correction.h"

#include <ATen/ops/add.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>

#include <algorithm>
#include <vector>

#include "backends/quant/convolution.h"
#include "backends/quant/op_table.h"

namespace frametap::quant {
namespace {

// Each result of a transposed convolution sees one of `stride` many elements of the kernel, along each of the axes.
double SeenOf(const Node& layer, size_t axes) {
  const std::vector<int64_t> strides = ConstInts(FindArg(layer, "stride")).value_or(std::vector<int64_t>{1});
  double seen = 1;
  for (size_t i = 0; i < axes; ++i) seen /= static_cast<double>(strides[std::min(i, strides.size() - 1)]);
  return seen;
}

// Returns the result of the layer with this weight, away from the border, where channel i of the input is means[i].
at::Tensor ResultOfMeans(const Node& layer, const at::Tensor& weight, const at::Tensor& means) {
  if (FamilyOf(layer) != Family::kConv) return at::matmul(weight, means);
  const int64_t groups = ConstInt(FindArg(layer, "groups")).value_or(1);
  const at::Tensor taken = weight.flatten(2).sum(2);
  const at::Tensor of_groups = means.view({groups, -1, 1});
  if (!IsTransposedConvolution(layer)) {
    return at::matmul(taken.view({groups, -1, taken.size(1)}), of_groups).flatten();
  }
  const at::Tensor by_output = taken.view({groups, -1, taken.size(1)}).transpose(1, 2);
  return at::mul(at::matmul(by_output, of_groups).flatten(), SeenOf(layer, static_cast<size_t>(weight.dim()) - 2));
}

}  // namespace

int64_t ChannelsOf(const Node& layer, int64_t weight_rank) {
  return FamilyOf(layer) == Family::kConv ? 1 - weight_rank : -1;
}

at::Tensor BiasCorrection(const Node& layer, const at::Tensor& weight, const at::Tensor& rounded,
                          const ChannelFacts& facts) {
  at::Tensor shift = facts.residual_errors;
  const auto add = [&](const at::Tensor& by, const at::Tensor& means) {
    if (!means.defined()) return;
    const at::Tensor more = ResultOfMeans(layer, by, means);
    shift = shift.defined() ? at::add(shift, more) : more;
  };
  add(at::sub(weight.detach(), rounded), facts.means);
  add(rounded, facts.errors);
  return shift;
}

}  // namespace frametap::quant
