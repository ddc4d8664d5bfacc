#include "backends/freeze/finite.h"

#include <ATen/ops/_is_all_true.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <cmath>

#include "backends/quant/extremes.h"
#include "backends/quant/op_table.h"
#include "backends/quant/rewrite.h"
#include "ir/ops/op_rows.h"

namespace frametap::freeze {
namespace {

using quant::Family;

// How elements of a result follow from elements of the arguments.
enum class Way : uint8_t {
  kUnknown,   // it may make NaN
  kMoves,     // elements of an argument, or numbers of the call
  kComputes,  // finite if all arguments are
};

Way WayOf(const Node& node) {
  switch (quant::FamilyOf(node)) {
    case Family::kShape:
    case Family::kMove:
    case Family::kCat:
    case Family::kMaxPool:
    case Family::kDropout:
      return Way::kMoves;
    case Family::kAdd:
      return quant::Is(node, "aten::add", "Tensor") ? Way::kMoves : Way::kComputes;
    case Family::kFloat: {
      const OpRow row = OpRowOf(node.op->operator_name());
      return row.Has(ops::kMovesElements)      ? Way::kMoves
             : row.Has(ops::kFiniteFromFinite) ? Way::kComputes
                                               : Way::kUnknown;
    }
    case Family::kCurve:
      // A quotient by a number is one.
      return quant::Is(node, "aten::div", "Tensor") && quant::ConstNumber(quant::FindArg(node, "other")) == 0.0
                 ? Way::kUnknown
                 : Way::kComputes;
    default:
      return Way::kComputes;
  }
}

Elements ElementsIn(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_floating_point()) return Elements::kFinite;
  if (tensor.layout() != at::kStrided || !tensor.is_cpu()) return Elements::kAny;
  if (tensor.scalar_type() != at::kFloat || !tensor.is_non_overlapping_and_dense()) {
    return at::_is_all_true(at::isfinite(tensor)).item<bool>() ? Elements::kFinite : Elements::kAny;
  }
  const auto* const x = tensor.const_data_ptr<float>();
  const int64_t count = tensor.numel();
  if (quant::ExtremesOf(x, count, 0).finite()) return Elements::kFinite;
  const bool is_below = std::all_of(x, x + count, [](float v) { return v < HUGE_VALF; });  // NaN is not
  return is_below ? Elements::kMinusInfinity : Elements::kAny;
}

Elements ElementsIn(const c10::IValue& constant) {
  if (!constant.isDouble() || std::isfinite(constant.toDouble())) return Elements::kFinite;
  return constant.toDouble() == -HUGE_VAL ? Elements::kMinusInfinity : Elements::kAny;
}

bool IsFloat(const Type& type) { return type.kind == Type::Kind::kTensor && c10::isFloatingType(type.dtype); }

// Whether a value of this type may hold NaN or infinity.
bool MayHold(const Type& type) {
  return IsFloat(type) || type.kind == Type::Kind::kTensorList || type.kind == Type::Kind::kFloat;
}

Elements WorstOf(const Node& node, const std::vector<Elements>& of) {
  // Running statistics of a batch norm count as written, and are inputs like others: they are checked.
  const size_t count = quant::FamilyOf(node) == Family::kBatchNorm ? 3 : node.args.size();
  Elements worst = Elements::kFinite;
  for (size_t i = 0; i < count; ++i) {
    const Arg& arg = node.args[i];
    if (arg.kind == Arg::Kind::kConst) worst = std::max(worst, ElementsIn(arg.constant));
    ForEachUseIn(arg, [&](ValueId v) { worst = std::max(worst, of[v.raw()]); });
  }
  return worst;
}

Elements ResultOf(const Node& node, const std::vector<Elements>& of) {
  const Way way = node.is_scalar() ? Way::kUnknown : WayOf(node);
  if (way == Way::kUnknown) return Elements::kAny;
  const Elements worst = WorstOf(node, of);
  return way == Way::kMoves || worst == Elements::kFinite ? worst : Elements::kAny;
}

}  // namespace

std::vector<bool> ComputedWith(const Graph& graph) {
  std::vector<bool> is_read(graph.values.size(), false);
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const Node& node = graph.nodes[i];
    const Way way = node.is_scalar() ? Way::kUnknown : WayOf(node);
    if (way == Way::kUnknown) continue;
    const auto mask = quant::TensorArg(node, "attn_mask");
    const bool moves_read =
        std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return is_read[v.raw()]; });
    if (way == Way::kMoves && (!moves_read || quant::FamilyOf(node) == Family::kAdd)) continue;
    ForEachUse(node.args, [&](ValueId v) { is_read[v.raw()] = is_read[v.raw()] || v != mask; });
  }
  return is_read;
}

std::vector<Elements> ElementsOf(const quant::NormalizedGraph& normal, const std::vector<bool>& computed_with) {
  const Graph& graph = normal.graph;
  std::vector<Elements> of(graph.values.size(), Elements::kFinite);
  for (size_t i = 0; i < of.size(); ++i) {
    if (graph.values[i].def.valid()) continue;
    if (normal.known[i].defined()) {
      of[i] = ElementsIn(normal.known[i]);
    } else if (IsFloat(graph.values[i].type)) {
      of[i] = computed_with[i] ? Elements::kFinite : Elements::kMinusInfinity;
    } else if (MayHold(graph.values[i].type)) {
      of[i] = Elements::kAny;  // a number is not checked
    }
    if (normal.written[i]) of[i] = Elements::kAny;
  }
  for (const Node& node : graph.nodes) {
    const Elements result = ResultOf(node, of);
    for (const ValueId v : node.outputs) {
      if (MayHold(graph.value(v).type)) of[v.raw()] = normal.written[v.raw()] ? Elements::kAny : result;
    }
  }
  return of;
}

bool LosesNaN(const quant::CurveOp& curve, bool is_transposed) {
  using onednn::Curve;
  return is_transposed || curve.curve == Curve::kRelu || curve.curve == Curve::kClamp ||
         curve.curve == Curve::kHardsigmoid || (curve.curve == Curve::kLeakyRelu && curve.low == 0);
}

std::vector<CheckedInput> InputsToCheck(const quant::NormalizedGraph& normal, const std::vector<bool>& computed_with,
                                        const std::vector<ValueId>& lossy) {
  const Graph& graph = normal.graph;
  std::vector<bool> leads(graph.values.size(), false);
  for (const ValueId v : lossy) leads[v.raw()] = true;
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const Node& node = graph.nodes[i];
    const bool is_on_way =
        std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return leads[v.raw()]; });
    if (is_on_way)
      ForEachUse(node.args, [&](ValueId v) { leads[v.raw()] = leads[v.raw()] || MayHold(graph.value(v).type); });
  }
  std::vector<CheckedInput> checked;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const ValueId v = graph.inputs[i];
    if (leads[v.raw()] && IsFloat(graph.value(v).type) && !normal.known[v.raw()].defined()) {
      checked.push_back({i, !computed_with[v.raw()]});
    }
  }
  return checked;
}

bool AreFinite(const std::vector<CheckedInput>& checked, const std::vector<c10::IValue>& inputs) {
  return std::all_of(checked.begin(), checked.end(), [&](const CheckedInput& input) {
    const Elements found = ElementsIn(inputs[input.index].toTensor());
    return found == Elements::kFinite || (input.may_be_mask && found == Elements::kMinusInfinity);
  });
}

}  // namespace frametap::freeze
