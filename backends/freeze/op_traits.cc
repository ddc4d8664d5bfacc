#include "backends/freeze/op_traits.h"

#include "absl/strings/match.h"
#include "backends/quant/op_table.h"

namespace frametap::freeze {
namespace {

using quant::Family;
using quant::Is;

// Whether torch's op computes each element from elements at its place or around it, in any layout and floating type.
bool WorksAroundElements(const Node& node) {
  switch (quant::FamilyOf(node)) {
    case Family::kAdd:
    case Family::kMul:
    case Family::kRelu:
    case Family::kCurve:
    case Family::kMaxPool:
    case Family::kAvgPool:
    case Family::kAdaptivePool:
    case Family::kCat:
      return true;
    case Family::kMove:
      return absl::StrContains(node.op->operator_name().name, "upsample");
    default:
      return false;
  }
}

}  // namespace

bool KeepsLayout(const Node& node) {
  const Family family = quant::FamilyOf(node);
  return WorksAroundElements(node) || family == Family::kMean || family == Family::kBatchNorm ||
         Is(node, "aten::div", "Tensor");
}

bool TakesBfloat16(const Node& node) {
  if (Is(node, "aten::scaled_dot_product_attention")) {
    // The least number of float32 in a mask would become minus infinity.
    return quant::IsNone(quant::FindArg(node, "attn_mask")) &&
           quant::ConstNumber(quant::FindArg(node, "dropout_p")) == 0.0;
  }
  const Family family = quant::FamilyOf(node);
  if (family == Family::kMean) return quant::IsNone(quant::FindArg(node, "dtype"));
  return WorksAroundElements(node) || family == Family::kShape;
}

}  // namespace frametap::freeze
