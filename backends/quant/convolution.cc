#include "backends/quant/convolution.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "backends/quant/op_table.h"
#include "backends/quant/operators.h"

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

bool IsTransposedConvolution(const Node& node) {
  const Arg* const transposed = FindArg(node, "transposed");
  return transposed == nullptr ? FindArg(node, "output_padding") != nullptr : ConstBool(transposed) == true;
}

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
    *why = "it is depthwise and transposed, and oneDNN's kernels for these take longer than torch's";
    return std::nullopt;
  }
  if (!Read(node, "output_padding", c.axes, &c.output_padding, why)) return std::nullopt;
  for (size_t i = 0; i < c.axes; ++i) {
    if (c.output_padding[i] <= c.padding[i]) continue;
    *why =
        "its output padding is larger than its padding, and oneDNN's kernels are wrong at pixels that no window "
        "reaches";
    return std::nullopt;
  }
  return c;
}

void SetNumbers(const Convolution& c, onednn::Layer* layer) {
  layer->stride = c.stride;
  layer->padding = c.padding;
  layer->output_padding = c.output_padding;
  layer->dilation = c.dilation;
  layer->groups = c.groups;
  layer->is_transposed = c.is_transposed;
}

ValueId PaddedAtEnd(const Convolution& c, ValueId x, Type type, const c10::IValue& zero, const Node& like,
                    Rewrite* out) {
  std::vector<int64_t> around;  // from the last axis
  for (size_t i = c.axes; i-- > 0;) around.insert(around.end(), {0, c.more_at_end[i]});
  if (*std::max_element(around.begin(), around.end()) == 0) return x;
  type.sizes = SizesAtEnd(c, type.sizes);
  return out->Emit(FindOperator("aten::constant_pad_nd"), {Arg::Of(x), Arg::Const(around), Arg::Const(zero)},
                   out->graph.value(x).name + "_padded", type, ValueId(), like);
}

Sizes SizesAtEnd(const Convolution& c, Sizes x) {
  for (size_t i = 0; i < c.axes; ++i) x[2 + i] += c.more_at_end[i];
  return x;
}

}  // namespace frametap::quant
