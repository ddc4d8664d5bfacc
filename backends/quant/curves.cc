#include "backends/quant/curves.h"

#include <ATen/core/stack.h>
#include <ATen/ops/arange.h>

#include "backends/quant/op_table.h"
#include "backends/quant/operators.h"
#include "backends/reference/boxing.h"

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
  if (Is(node, "aten::hardsigmoid")) return CurveOp{Curve::kHardsigmoid};
  if (Is(node, "aten::tanh")) return CurveOp{Curve::kTanh};
  if (Is(node, "aten::leaky_relu")) return LeakyReluOf(node);
  return std::nullopt;
}

at::Tensor QuantizeAll(const at::Tensor& tensor, const Params& params) {
  static const auto quantize = FindOperator("frametap::quantize_per_tensor");
  torch::jit::Stack stack{tensor.detach(), params.scale, params.zero_point,
                          params.qmin,     params.qmax,  static_cast<int64_t>(at::kByte)};
  quantize.callBoxed(stack);
  return stack[0].toTensor();
}

at::Tensor TableOf(const Node& curve, const Params& in, const Params& out) {
  static const auto dequantize = FindOperator("frametap::dequantize_per_tensor");
  torch::jit::Stack stack{at::arange(256, at::kByte), in.scale, in.zero_point};
  dequantize.callBoxed(stack);
  const auto& parameters = curve.op->schema().arguments();
  for (size_t i = 1; i < curve.args.size(); ++i) {
    stack.push_back(Box(curve.args[i].constant, BoxingFor(*parameters[i].type())));
  }
  curve.op->callBoxed(stack);
  return QuantizeAll(stack[0].toTensor(), out);
}

void SetCurve(const CurveOp& op, onednn::Layer* layer) {
  layer->curve = op.curve;
  layer->low = static_cast<float>(op.low);
  layer->high = static_cast<float>(op.high);
}

}  // namespace frametap::quant
