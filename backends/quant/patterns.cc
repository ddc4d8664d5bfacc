#include "backends/quant/patterns.h"

#include <ATen/ops/count_nonzero.h>

#include "backends/quant/operators.h"
#include "backends/quant/quantize.h"

namespace frametap::quant {

bool IsDequantize(const Node& node) {
  return Is(node, "frametap::dequantize_per_tensor") || Is(node, "frametap::dequantize_per_channel") ||
         Is(node, "frametap::round_rows");
}

Patterns::Patterns(const Graph& reference)
    : graph_(reference), uses_(reference), taken_(reference.nodes.size(), false) {
  for (const auto& [v, tensor] : graph_.constants) constants_.emplace(v, tensor);
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    const OpRow* const row = RowOf(graph_.nodes[i]);
    if (row == nullptr || taken_[i]) continue;
    if (row->family == Family::kConv || row->family == Family::kLinear) {
      FindKernel(NodeId(i));
    } else {
      FindByteOp(NodeId(i));
    }
  }
}

const Kernel* Patterns::KernelAt(NodeId last) const {
  const auto found = kernel_at_.find(last);
  return found == kernel_at_.end() ? nullptr : &found->second;
}

const ByteOp* Patterns::ByteOpAt(NodeId last) const {
  const auto found = byte_op_at_.find(last);
  return found == byte_op_at_.end() ? nullptr : &found->second;
}

const Node* Patterns::Def(ValueId v) const {
  const NodeId def = graph_.value(v).def;
  return def.valid() ? &graph_.node(def) : nullptr;
}

std::optional<Params> Patterns::Dequantized(ValueId v) const {
  const Node* def = Def(v);
  if (def == nullptr || !Is(*def, "frametap::dequantize_per_tensor")) return std::nullopt;
  const auto scale = ConstNumber(FindArg(*def, "scale"));
  const auto zero = ConstInt(FindArg(*def, "zero_point"));
  if (!scale || !zero || def->args[0].kind != Arg::Kind::kValue) return std::nullopt;
  Params p;
  p.scale = *scale;
  p.zero_point = *zero;
  return p;
}

Params ParamsOf(const Node& quantize) {
  Params p;
  p.scale = *ConstNumber(FindArg(quantize, "scale"));
  p.zero_point = *ConstInt(FindArg(quantize, "zero_point"));
  p.qmin = *ConstInt(FindArg(quantize, "qmin"));
  p.qmax = *ConstInt(FindArg(quantize, "qmax"));
  return p;
}

// The only reader of the node's result if it is a quantize.
NodeId Patterns::QuantizeAfter(NodeId n) const {
  const NodeId next = uses_.sole(graph_.node(n).outputs[0]);
  return next.valid() && Is(graph_.node(next), "frametap::quantize_per_tensor") ? next : NodeId();
}

const at::Tensor* Patterns::ConstantOf(ValueId v) const {
  const auto it = constants_.find(v);
  return it == constants_.end() ? nullptr : &it->second;
}

void Patterns::FindKernel(NodeId n) {
  const Node& node = graph_.node(n);
  const auto x = TensorArg(node, "input");
  const auto w = TensorArg(node, "weight");
  if (!x || !w) return;
  const Node* const rounds = Def(*x);
  const bool is_dynamic = IsFamily(n, Family::kLinear) && rounds != nullptr && Is(*rounds, "frametap::round_rows");
  if (!is_dynamic && !Dequantized(*x)) return;
  const Node* weight = Def(*w);
  if (weight == nullptr || !Is(*weight, "frametap::dequantize_per_channel")) return;
  for (size_t i = 0; i < 3; ++i) {
    if (weight->args[i].kind != Arg::Kind::kValue || ConstantOf(weight->args[i].value) == nullptr) return;
  }
  if (ConstantOf(weight->args[2].value)->count_nonzero().item<int64_t>() != 0) return;
  const Arg* bias = FindArg(node, "bias");
  if (bias != nullptr && !IsNone(bias) && (bias->kind != Arg::Kind::kValue || !ConstantOf(bias->value))) return;
  if (ConstInt(&weight->args[3]) != OutputAxisOf(node)) return;
  if (IsFamily(n, Family::kConv) && !ConvolutionOf(n)) return;

  Kernel k;
  k.anchor = n;
  if (is_dynamic) {
    k.rows = rounds->args[0].value;
    k.bits = static_cast<int>(*ConstInt(FindArg(*rounds, "bits")));
    taken_[n.raw()] = true;
    kernel_at_.emplace(n, k);
    return;
  }
  NodeId last = n;
  NodeId next = uses_.sole(node.outputs[0]);
  if (IsFamily(n, Family::kConv) && TakesSum(node, graph_.value(node.outputs[0]).type.sizes.size()) &&
      IsFamily(next, Family::kAdd)) {
    const auto a = TensorArg(graph_.node(next), "self");
    const auto b = TensorArg(graph_.node(next), "other");
    const ValueId other = a && *a == node.outputs[0] ? b.value_or(ValueId()) : a.value_or(ValueId());
    NodeId after = uses_.sole(graph_.node(next).outputs[0]);
    if (IsFamily(after, Family::kRelu)) after = uses_.sole(graph_.node(after).outputs[0]);
    const bool ends_in_bytes = after.valid() && Is(graph_.node(after), "frametap::quantize_per_tensor");
    if (other.valid() && Dequantized(other) && ends_in_bytes &&
        graph_.value(other).type.sizes == graph_.value(node.outputs[0]).type.sizes &&
        Is(graph_.node(next), "aten::add", "Tensor") && ConstNumber(FindArg(graph_.node(next), "alpha")) == 1.0 &&
        !taken_[next.raw()]) {
      k.add = last = next;
      k.other = other;
      next = uses_.sole(graph_.node(next).outputs[0]);
    }
  }
  if (TakeFloatSum(n, next, &k)) {
    taken_[n.raw()] = taken_[next.raw()] = true;
    kernel_at_.emplace(next, k);
    return;
  }
  if (next.valid() && !taken_[next.raw()] && PostOf(next, k.add.valid())) {
    k.post = last = next;
  }
  k.quantize = QuantizeAfter(last);
  if (k.add.valid() && !k.quantize.valid()) return;
  if (k.quantize.valid()) last = k.quantize;
  for (const NodeId part : {k.anchor, k.add, k.post, k.quantize}) {
    if (part.valid()) taken_[part.raw()] = true;
  }
  kernel_at_.emplace(last, k);
}

// V2. `sum`: the only reader of the result of `layer`, or invalid.
bool Patterns::TakeFloatSum(NodeId layer, NodeId sum, Kernel* kernel) const {
  if (!IsFamily(layer, Family::kLinear) || !sum.valid() || taken_[sum.raw()]) return false;
  const Node& node = graph_.node(sum);
  if (!Is(node, "aten::add", "Tensor") || ConstNumber(FindArg(node, "alpha")) != 1.0) return false;
  const auto a = TensorArg(node, "self"), b = TensorArg(node, "other");
  if (!a || !b || *a == *b) return false;
  const Value& result = graph_.value(graph_.node(layer).outputs[0]);
  const ValueId addend = *a == graph_.node(layer).outputs[0] ? *b : *a;
  const Type& type = graph_.value(addend).type;
  if (!IsFloatTensor(type) || type.sizes != result.type.sizes || IsUnderAutocast(graph_, node)) return false;
  kernel->float_sum = sum;
  kernel->addend = addend;
  return true;
}

std::optional<Convolution> Patterns::ConvolutionOf(NodeId n) const {
  const Node& node = graph_.node(n);
  const Node& weight = *Def(*TensorArg(node, "weight"));
  std::string why;
  return quant::ConvolutionOf(node, graph_.value(*TensorArg(node, "input")).type.sizes.size(),
                              ConstantOf(weight.args[0].value)->sizes(), &why);
}

std::optional<CurveOp> Patterns::PostOf(NodeId n, bool after_sum) const {
  const std::optional<CurveOp> op = CurveOf(graph_.node(n));
  return !op || op->curve == onednn::Curve::kRelu || !after_sum ? op : std::nullopt;
}

void Patterns::FindByteOp(NodeId n) {
  const Node& node = graph_.node(n);
  const Family family = FamilyOf(node);
  ByteOp op;
  op.op = n;
  if (!IsByteFamily(family)) return;
  switch (family) {
    case Family::kAdd: {
      // The kernel of a convolution that comes later may still take this add in.
      if (!ConstNumber(FindArg(node, "alpha"))) return;
      const NodeId next = uses_.sole(node.outputs[0]);
      if (IsFamily(next, Family::kRelu)) op.relu = next;
      break;
    }
    case Family::kMean: {
      const auto input = TensorArg(node, "self");
      if (!input || !IsMeanOverImage(node, graph_.value(*input).type.sizes.size())) return;
      break;
    }
    case Family::kMove:
      if (!PadsWithZero(node)) return;
      break;
    default:
      break;
  }
  op.quantize = QuantizeAfter(op.relu.valid() ? op.relu : n);
  if (!op.quantize.valid()) return;
  const Params out = ParamsOf(graph_.node(op.quantize));
  const std::vector<ValueId> inputs = ActivationsOf(node);
  const bool is_pair = family == Family::kAdd || family == Family::kMul;
  if (inputs.empty() || (is_pair && inputs.size() != 2)) return;
  for (ValueId v : inputs) {
    const auto p = Dequantized(v);
    if (!p) return;
    const bool keeps_params = !is_pair && family != Family::kCurve && !IsAverage(family);
    if (keeps_params && (p->scale != out.scale || p->zero_point != out.zero_point)) return;
  }
  for (const NodeId part : {op.op, op.relu, op.quantize}) {
    if (part.valid()) taken_[part.raw()] = true;
  }
  byte_op_at_.emplace(op.quantize, op);
}

}  // namespace frametap::quant
