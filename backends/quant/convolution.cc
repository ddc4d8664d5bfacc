#include "backends/quant/convolution.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "backends/quant/op_table.h"

namespace frametap::quant {
namespace {

using Numbers = std::array<int64_t, 3>;

// One number stands for all axes.
bool Read(const Node& node, const char* name, size_t axes, Numbers* to, std::string* why) {
  const auto list = ConstInts(FindArg(node, name));
  if (!list || (list->size() != 1 && list->size() != axes)) {
    *why = absl::StrCat("its ", name, " is not constant");
    return false;
  }
  for (size_t i = 0; i < axes; ++i) (*to)[i] = list->size() == 1 ? list->front() : (*list)[i];
  return true;
}

}  // namespace

bool IsTransposedConvolution(const Node& node) { return FindArg(node, "output_padding") != nullptr; }

bool TakesSum(const Node& convolution, size_t rank) { return rank == 4 && !IsTransposedConvolution(convolution); }

int64_t OutputAxisOf(const Node& layer) { return IsTransposedConvolution(layer) ? 1 : 0; }

std::optional<Convolution> ConvolutionOf(const Node& node, size_t input_rank, c10::IntArrayRef weight,
                                         std::string* why) {
  if (weight.size() < 3 || weight.size() > 5 || input_rank != weight.size()) {
    *why = "it has no batch dimension";
    return std::nullopt;
  }
  Convolution c;
  c.axes = weight.size() - 2;
  c.is_transposed = IsTransposedConvolution(node);
  const auto groups = ConstInt(FindArg(node, "groups"));
  if (!groups) {
    *why = "its groups are not constant";
    return std::nullopt;
  }
  c.groups = *groups;
  if (!Read(node, "stride", c.axes, &c.stride, why) || !Read(node, "dilation", c.axes, &c.dilation, why)) {
    return std::nullopt;
  }
  const Arg* padding = FindArg(node, "padding");
  if (padding != nullptr && padding->kind == Arg::Kind::kConst && padding->constant.isString()) {
    const bool is_same = padding->constant.toStringRef() == "same";
    for (size_t i = 0; i < c.axes && is_same; ++i) {
      const int64_t all = c.dilation[i] * (weight[2 + i] - 1);
      c.padding[i] = all / 2;
      c.more_at_end[i] = all % 2;
    }
    return c;
  }
  if (!Read(node, "padding", c.axes, &c.padding, why)) return std::nullopt;
  if (!c.is_transposed) return c;
  if (c.groups > 1 && c.groups == weight[0]) {
    *why = "it is depthwise, and oneDNN's int8 kernels for transposed ones take longer than float32";
    return std::nullopt;
  }
  if (!Read(node, "output_padding", c.axes, &c.output_padding, why)) return std::nullopt;
  for (size_t i = 0; i < c.axes; ++i) {
    if (c.output_padding[i] <= c.padding[i]) continue;
    *why =
        "its output padding is larger than its padding, and oneDNN's int8 kernels are wrong at pixels that no window "
        "reaches";
    return std::nullopt;
  }
  return c;
}

}  // namespace frametap::quant
