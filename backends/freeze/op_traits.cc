#include "backends/freeze/op_traits.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "backends/quant/annotate.h"
#include "backends/quant/attention_ops.h"
#include "backends/quant/layouts.h"
#include "backends/quant/op_table.h"

namespace frametap::freeze {
namespace {

using quant::Family;

}  // namespace

bool IsConvolution(const Node& node) { return quant::FamilyOf(node) == Family::kConv; }

bool TakesBfloat16(const Node& node) {
  const Family family = quant::FamilyOf(node);
  if (family == Family::kMean) return quant::IsNone(quant::FindArg(node, "dtype"));
  return quant::WorksAroundElements(node) || family == Family::kShape;
}

bool IsMask(const Node& node, ValueId v) {
  return quant::IsAttention(node) && quant::TensorArg(node, "attn_mask") == v;
}

bool AttendsInBfloat16(const Graph& graph, const Node& node, const Config& config, bool gives_bfloat16) {
  if (config.products == Products::kDynamicInt8) return quant::AttendsInBfloat16(graph, node, config.by_request);
  return gives_bfloat16 && quant::IsAttention(node);
}

const Node* OrderReader(const Graph& graph) {
  const auto found = std::find_if(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) {
    return node.op && absl::StartsWith(node.op->operator_name().name, "aten::as_strided");
  });
  return found == graph.nodes.end() ? nullptr : &*found;
}

}  // namespace frametap::freeze
