#include "backends/quant/curves.h"

#include "backends/quant/op_table.h"

namespace frametap::quant {
namespace {

using onednn::Curve;

std::optional<CurveOp> GeluOf(const Node& node) {
  const Arg* form = FindArg(node, "approximate");
  if (form == nullptr || form->kind != Arg::Kind::kConst || !form->constant.isString()) return std::nullopt;
  return CurveOp{form->constant.toStringRef() == "tanh" ? Curve::kGeluTanh : Curve::kGelu};
}

std::optional<CurveOp> ClampOf(const Node& node) {
  const auto low = ConstNumber(FindArg(node, "min_val"));
  const auto high = ConstNumber(FindArg(node, "max_val"));
  if (!low || !high) return std::nullopt;
  return CurveOp{Curve::kClamp, *low, *high};
}

std::optional<CurveOp> LeakyReluOf(const Node& node) {
  const auto slope = ConstNumber(FindArg(node, "negative_slope"));
  if (!slope) return std::nullopt;
  return CurveOp{Curve::kLeakyRelu, *slope};
}

}  // namespace

std::optional<CurveOp> CurveOf(const Node& node) {
  if (Is(node, "aten::relu")) return CurveOp{Curve::kRelu};
  if (Is(node, "aten::relu6")) return CurveOp{Curve::kClamp, 0, 6};
  if (Is(node, "aten::hardtanh")) return ClampOf(node);
  if (Is(node, "aten::hardswish")) return CurveOp{Curve::kHardswish};
  if (Is(node, "aten::silu")) return CurveOp{Curve::kSwish};
  if (Is(node, "aten::gelu")) return GeluOf(node);
  if (Is(node, "aten::sigmoid")) return CurveOp{Curve::kSigmoid};
  if (Is(node, "aten::tanh")) return CurveOp{Curve::kTanh};
  if (Is(node, "aten::leaky_relu")) return LeakyReluOf(node);
  return std::nullopt;
}

void SetCurve(const CurveOp& op, onednn::Layer* layer) {
  layer->curve = op.curve;
  layer->low = static_cast<float>(op.low);
  layer->high = static_cast<float>(op.high);
}

}  // namespace frametap::quant
