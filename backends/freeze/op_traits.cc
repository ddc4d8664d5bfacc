#include "backends/freeze/op_traits.h"

#include "backends/quant/layouts.h"
#include "backends/quant/op_table.h"

namespace frametap::freeze {
namespace {

using quant::Family;
using quant::Is;

}  // namespace

bool TakesBfloat16(const Node& node) {
  if (Is(node, "aten::scaled_dot_product_attention")) {
    // The least number of float32 in a mask would become minus infinity.
    return quant::IsNone(quant::FindArg(node, "attn_mask")) &&
           quant::ConstNumber(quant::FindArg(node, "dropout_p")) == 0.0;
  }
  const Family family = quant::FamilyOf(node);
  if (family == Family::kMean) return quant::IsNone(quant::FindArg(node, "dtype"));
  return quant::WorksAroundElements(node) || family == Family::kShape;
}

}  // namespace frametap::freeze
