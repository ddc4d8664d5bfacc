#include "backends/quant/annotate.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "backends/onednn/library.h"
#include "backends/quant/attention_ops.h"
#include "backends/quant/convolution.h"
#include "backends/quant/curves.h"
#include "backends/quant/dynamic_linear.h"
#include "backends/quant/op_table.h"
#include "backends/quant/recurrence.h"

namespace frametap::quant {
namespace {

// Why an op that computes with a value of this type has no int8 form.
std::string NotFloat32(const Type& type) {
  if (type.is_number()) return "one of its operands is a number that may differ from call to call";
  if (type.kind != Type::Kind::kTensor || !type.device.is_cpu())
    return "it computes with something else than a tensor on the CPU";
  if (!c10::isFloatingType(type.dtype))
    return absl::StrCat("it computes in ", DtypeName(type.dtype), "; only float32 is quantized");
  return absl::StrCat("it computes in ", DtypeName(type.dtype),
                      "; int8 takes the place of float32: call .float() on the model and its data");
}

// A7.
constexpr int64_t kLargeWeight = 512 * 1024;

constexpr const char* kFloatReaders =
    "its result is read by float ops only; int8 would cost two conversions and save nothing";

class Annotator {
 public:
  Annotator(const NormalizedGraph& normal, const QuantConfig& config, const std::vector<std::string>& excluded)
      : normal_(normal), graph_(normal.graph), config_(config), excluded_(excluded), uses_(normal.graph) {
    const size_t nodes = graph_.nodes.size();
    const size_t values = graph_.values.size();
    a_.role.assign(nodes, Role::kFloat);
    a_.owner.resize(nodes);
    relu_of_.resize(nodes);
    a_.reason.assign(nodes, "");
    a_.quantized.assign(values, false);
    a_.source.assign(values, true);
    a_.in_two_bytes.assign(nodes, false);
    parent_.resize(values);
    for (size_t v = 0; v < values; ++v) parent_[v] = static_cast<uint32_t>(v);
    for (const Node& node : graph_.nodes) families_.push_back(FamilyOf(node));
  }

  Annotation Run() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      ChooseAnchor(NodeId(i));
      ChooseDynamic(NodeId(i));
      ChooseBfloat16(NodeId(i));
    }
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (a_.role[i] == Role::kAnchor) Absorb(NodeId(i));
    }
    for (size_t i = 0; i < graph_.nodes.size(); ++i) PairWithRelu(NodeId(i));
    FindBytes();
    for (size_t i = graph_.nodes.size(); i-- > 0;) Ask(NodeId(i));
    for (size_t v = 0; v < graph_.values.size(); ++v)
      a_.params_class.push_back(ValueId(Root(static_cast<uint32_t>(v))));
    return std::move(a_);
  }

 private:
  Family family(NodeId n) const { return families_[n.raw()]; }
  const Type& type(ValueId v) const { return graph_.value(v).type; }

  uint32_t Root(uint32_t v) {
    while (parent_[v] != v) v = parent_[v] = parent_[parent_[v]];
    return v;
  }

  // "" if the node may be int8 as far as its surroundings go. `floats`: its result stays float, and may be written to.
  std::string Excluded(NodeId n, bool floats = false) const {
    const Node& node = graph_.node(n);
    if (const std::string request = FloatByRequest(config_, node); !request.empty()) return request;
    if (IsUnderAutocast(graph_, node)) {
      return "it ran under autocast; capture without autocast to quantize it";
    }
    if (n.raw() < excluded_.size() && !excluded_[n.raw()].empty()) return excluded_[n.raw()];
    std::string why;
    const auto check = [&](ValueId v) {
      if (normal_.rewritten[v.raw()] && why.empty()) {
        why = absl::StrCat("%", graph_.value(v).name, " is written in place by ", normal_.writer[v.raw()],
                           "; use the out-of-place form");
      }
    };
    ForEachUse(node.args, check);
    if (!floats) {
      for (ValueId v : node.outputs) check(v);
    }
    return why;
  }

  bool FrozenFloat(const Node& node, const char* name, bool optional) const {
    const Arg* arg = FindArg(node, name);
    if (arg == nullptr || IsNone(arg)) return optional;
    return normal_.FrozenFloat(node, name).defined();
  }

  // A1.
  void ChooseAnchor(NodeId n) {
    const Family kind = family(n);
    if (kind != Family::kConv && kind != Family::kLinear) return;
    const Node& node = graph_.node(n);
    std::string& why = a_.reason[n.raw()];
    why = Excluded(n, true);
    if (!why.empty()) return;
    const auto input = TensorArg(node, "input");
    if (!input || !IsFloatTensor(type(*input))) {
      why = input ? NotFloat32(type(*input)) : "its input is a constant";
    } else if (!IsFloatTensor(type(node.outputs[0]))) {
      why = NotFloat32(type(node.outputs[0]));
    } else if (!FrozenFloat(node, "weight", false) || !FrozenFloat(node, "bias", true)) {
      why = "its weight or bias is not a frozen float32 parameter";
    } else if (kind == Family::kConv) {
      why = ConvObstacle(node, *input);
    } else if (normal_.known[FindArg(node, "weight")->value.raw()].dim() != 2) {
      why = "its weight has not two dimensions";
    }
    if (!why.empty()) return;
    if (kind == Family::kLinear && HasFewRows(node)) {
      a_.role[n.raw()] = Role::kDynamic;
      a_.in_two_bytes[n.raw()] = true;
      why = "int8 linear; each of its few rows has parameters of its own, and elements have two bytes";
      return;
    }
    a_.role[n.raw()] = Role::kAnchor;
    why =
        kind == Family::kConv ? "int8 convolution, one weight scale a channel" : "int8 linear, one weight scale a row";
  }

  // A7. With choices, forms are timed instead.
  bool HasFewRows(const Node& layer) const {
    const ValueId input = *TensorArg(layer, "input");
    const Sizes& sizes = type(input).sizes;
    int64_t rows = 1;
    for (size_t i = 0; i + 1 < sizes.size(); ++i) rows *= sizes[i];
    return config_.choices == nullptr && !sizes.empty() && rows >= 1 && rows <= kFewRows &&
           normal_.FrozenFloat(layer, "weight").numel() >= kLargeWeight && ComesFromFloats(input);
  }

  // Whether no int8 op could hand the value on in 8 bits. Curves and reshapes ask the op before them.
  bool ComesFromFloats(ValueId v) const {
    const NodeId def = graph_.value(v).def;
    if (!def.valid() || a_.role[def.raw()] == Role::kDynamic) return true;
    switch (family(def)) {
      case Family::kCurve:
      case Family::kRelu:
      case Family::kShape:
        return graph_.node(def).args[0].kind == Arg::Kind::kValue && ComesFromFloats(graph_.node(def).args[0].value);
      case Family::kFloat:
        return true;
      default:
        return false;
    }
  }

  // A6.
  void ChooseDynamic(NodeId n) {
    if (family(n) != Family::kRecurrent) return;
    std::string& why = a_.reason[n.raw()];
    why = Excluded(n);
    if (!why.empty() || !RecurrenceOf(normal_, graph_.node(n), &why)) return;
    a_.role[n.raw()] = Role::kDynamic;
    why = "int8 products; each row of the input and of the state has parameters of its own";
  }

  // A8.
  void ChooseBfloat16(NodeId n) {
    if (!AttendsInBfloat16(graph_, graph_.node(n), config_) || !Excluded(n).empty()) return;
    a_.role[n.raw()] = Role::kBfloat16;
    a_.reason[n.raw()] = kAttendsInBfloat16;
  }

  std::string ConvObstacle(const Node& node, ValueId input) const {
    std::string why;
    ConvolutionOf(node, type(input).sizes.size(), normal_.known[FindArg(node, "weight")->value.raw()].sizes(), &why);
    return why;
  }

  NodeId SoleReader(ValueId v) const { return uses_.sole(v); }

  void MakePart(NodeId part, NodeId owner, const std::string& how) {
    a_.role[part.raw()] = Role::kPart;
    a_.owner[part.raw()] = owner;
    a_.reason[part.raw()] = absl::StrCat(how, " ", NameWithPlace(graph_.node(owner)));
  }

  bool IsPlainAdd(NodeId n) const {
    const Node& node = graph_.node(n);
    return IsPair(n) && Is(node, "aten::add", "Tensor") && ConstNumber(FindArg(node, "alpha")) == 1.0 &&
           type(*TensorArg(node, "self")).sizes == type(*TensorArg(node, "other")).sizes;
  }

  // A sum, difference or product of two tensors that has an int8 kernel of its own.
  bool IsPair(NodeId n) const {
    const Node& node = graph_.node(n);
    if (family(n) != Family::kAdd && family(n) != Family::kMul) return false;
    if (family(n) == Family::kAdd && !ConstNumber(FindArg(node, "alpha"))) return false;
    const auto a = TensorArg(node, "self");
    const auto b = TensorArg(node, "other");
    return a && b && *a != *b && IsFloatTensor(type(*a)) && IsFloatTensor(type(*b)) && Excluded(n).empty();
  }

  bool TakesSum(NodeId anchor) const {
    const Node& node = graph_.node(anchor);
    return family(anchor) == Family::kConv && quant::TakesSum(node, type(node.outputs[0]).sizes.size());
  }

  // Longest first: anchor, add, relu; then anchor with relu or a curve.
  void Absorb(NodeId anchor) {
    const ValueId result = graph_.node(anchor).outputs[0];
    const NodeId next = normal_.rewritten[result.raw()] ? NodeId() : SoleReader(result);
    if (!next.valid() || a_.role[next.raw()] != Role::kFloat) return;
    if (TakesSum(anchor) && IsPlainAdd(next) && LastAnchorOf(next) == anchor) {
      residual_.push_back({next, anchor});
      return;
    }
    const bool relu = family(next) == Family::kRelu;
    const bool curve = family(next) == Family::kCurve && CurveOf(graph_.node(next)).has_value();
    if ((relu || curve) && Excluded(next).empty()) MakePart(next, anchor, "computed inside");
  }

  // A relu that alone reads a sum is computed with it; AskPair decides for both.
  void PairWithRelu(NodeId add) {
    if (!IsPair(add) || family(add) != Family::kAdd) return;
    const NodeId next = SoleReader(graph_.node(add).outputs[0]);
    if (!next.valid() || family(next) != Family::kRelu || !Excluded(next).empty()) return;
    relu_of_[add.raw()] = next;
    a_.role[next.raw()] = Role::kPart;
    a_.owner[next.raw()] = add;
  }

  // If two convolutions end in one add, the later one computes the sum.
  NodeId LastAnchorOf(NodeId add) const {
    NodeId last;
    for (const char* name : {"self", "other"}) {
      const ValueId v = *TensorArg(graph_.node(add), name);
      const NodeId def = graph_.value(v).def;
      if (!def.valid() || a_.role[def.raw()] != Role::kAnchor || !TakesSum(def)) continue;
      if (SoleReader(v) == add && (!last.valid() || last < def)) last = def;
    }
    return last;
  }

  // Whether this op has a byte form at all; `why` otherwise.
  bool HasByteForm(NodeId n, std::string* why) const {
    const Node& node = graph_.node(n);
    *why = Excluded(n);
    if (!why->empty()) return false;
    for (ValueId v : ActivationsOf(graph_.node(n))) {
      if (!IsFloatTensor(type(v))) {
        *why = NotFloat32(type(v));
        return false;
      }
    }
    switch (family(n)) {
      case Family::kAdd:
      case Family::kMul:
        if (IsPair(n)) return true;
        *why = "only a sum, difference or product of two different float32 tensors has an int8 kernel";
        return false;
      case Family::kMove:
        if (PadsWithZero(node)) return true;
        *why = "padding with another value than zero would widen the range of its input";
        return false;
      case Family::kMaxPool:
        if (ConstInts(FindArg(node, "kernel_size")) && ConstInts(FindArg(node, "padding")) && Ranked(node)) return true;
        break;
      case Family::kAvgPool:
        if (ConstInts(FindArg(node, "kernel_size")) && ConstInts(FindArg(node, "padding")) && Ranked(node) &&
            (IsNone(FindArg(node, "divisor_override")))) {
          return true;
        }
        *why = "a divisor of its own would leave the range of its input";
        return false;
      case Family::kAdaptivePool:
        if (ConstInts(FindArg(node, "output_size")) && Ranked(node)) return true;
        break;
      case Family::kMean:
        if (Ranked(node) && IsMeanOverImage(node, type(*TensorArg(node, "self")).sizes.size())) return true;
        *why = "only a mean over height and width of a batch of images has an int8 form";
        return false;
      case Family::kCurve:
        if (IsOfFirstAlone(node)) return true;
        break;
      case Family::kRelu:
      case Family::kShape:
        return true;
      case Family::kCat:
        if (!ActivationsOf(graph_.node(n)).empty()) return true;
        break;
      default:
        break;
    }
    *why = "its arguments are not constant";
    return false;
  }

  bool IsOfFirstAlone(const Node& node) const {
    const bool has_constants = std::all_of(node.args.begin() + 1, node.args.end(),
                                           [](const Arg& arg) { return arg.kind == Arg::Kind::kConst; });
    return has_constants && node.args[0].kind == Arg::Kind::kValue && IsFloatTensor(type(node.outputs[0]));
  }

  bool Ranked(const Node& node) const {
    const auto input = TensorArg(node, "self");
    return input && (type(*input).sizes.size() == 4 || type(*input).sizes.size() == 3);
  }

  // bytes_[v]: an int8 op could hand v on in 8 bits. Optimistic; Ask decides.
  void FindBytes() {
    bytes_.assign(graph_.values.size(), false);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const NodeId n(i);
      bool can = a_.role[i] == Role::kAnchor && !normal_.rewritten[graph_.nodes[i].outputs[0].raw()];
      if (a_.role[i] == Role::kPart) can = bytes_[graph_.node(a_.owner[i]).outputs[0].raw()];
      std::string why;
      if (a_.role[i] == Role::kFloat && IsByteFamily(family(n)) && HasByteForm(n, &why)) {
        const auto inputs = ActivationsOf(graph_.node(n));
        const auto from_bytes = [&](ValueId v) { return bool(bytes_[v.raw()]); };
        const auto can_be_bytes = [&](ValueId v) { return bytes_[v.raw()] || IsKnown(v); };
        can = std::any_of(inputs.begin(), inputs.end(), from_bytes) &&
              (family(n) == Family::kAdd ||
               (family(n) == Family::kMul ? std::all_of(inputs.begin(), inputs.end(), can_be_bytes)
                                          : std::all_of(inputs.begin(), inputs.end(), from_bytes)));
      }
      for (ValueId v : graph_.nodes[i].outputs) bytes_[v.raw()] = can;
    }
  }

  // A frozen operand is quantized once.
  bool IsKnown(ValueId v) const { return normal_.known[v.raw()].defined(); }

  void AskFor(ValueId v) { a_.quantized[v.raw()] = true; }

  // A2, one node; called from the last to the first.
  void Ask(NodeId n) {
    const Node& node = graph_.node(n);
    const size_t i = n.raw();
    if (a_.role[i] == Role::kAnchor) {
      AskFor(*TensorArg(node, "input"));
      return;
    }
    if (a_.role[i] == Role::kDynamic || a_.role[i] == Role::kBfloat16) return;
    if (a_.role[i] == Role::kPart) return;  // what it reads beside its owner's result was asked for when it was made
    std::string& why = a_.reason[i];
    if (!IsByteFamily(family(n))) {
      if (why.empty()) why = FloatReason(n);
      return;
    }
    if (!HasByteForm(n, &why)) return;
    const ValueId result = node.outputs[0];
    if (family(n) == Family::kAdd || family(n) == Family::kMul) {
      AskPair(n);
      return;
    }
    if (!a_.quantized[result.raw()]) {
      why = kFloatReaders;
      return;
    }
    for (ValueId v : ActivationsOf(graph_.node(n))) {
      if (!bytes_[v.raw()]) {
        why = absl::StrCat("its input %", graph_.value(v).name,
                           " comes from a float op or from outside; its result is quantized instead");
        return;
      }
    }
    if (family(n) == Family::kCurve || IsAverage(family(n))) {
      a_.role[i] = Role::kPointwise;
      why = family(n) == Family::kCurve ? "int8 curve, read from a table" : "int8 mean";
      AskFor(ActivationsOf(graph_.node(n))[0]);
      return;
    }
    a_.role[i] = Role::kFollows;
    why = "on bytes, with the parameters of its input";
    a_.source[result.raw()] = false;
    for (ValueId v : ActivationsOf(graph_.node(n))) {
      AskFor(v);
      parent_[Root(result.raw())] = Root(v.raw());
    }
  }

  void AskPair(NodeId n) {
    const NodeId relu = relu_of_[n.raw()];
    const ValueId last = graph_.node(relu.valid() ? relu : n).outputs[0];
    const auto inputs = ActivationsOf(graph_.node(n));
    std::string why;
    if (!a_.quantized[last.raw()]) {
      why = kFloatReaders;
    } else if (!bytes_[last.raw()] && family(n) == Family::kMul) {
      why = "a factor of the product comes from a float op or from outside; its result is quantized instead";
    } else if (!bytes_[last.raw()]) {
      why = "both inputs of the sum come from float ops or from outside; its result is quantized instead";
    }
    if (!why.empty()) {
      a_.reason[n.raw()] = why;
      if (relu.valid()) {
        a_.role[relu.raw()] = Role::kFloat;
        a_.reason[relu.raw()] = why;
      }
      return;
    }
    NodeId owner = n;
    for (const auto& [add, anchor] : residual_) {
      if (add == n) owner = anchor;
    }
    if (owner != n) {
      MakePart(n, owner, "added inside");
    } else {
      a_.role[n.raw()] = Role::kPointwise;
      a_.reason[n.raw()] = family(n) == Family::kMul ? "int8 product" : "int8 addition";
    }
    if (relu.valid()) MakePart(relu, owner, "computed inside");
    for (ValueId v : inputs) {
      const NodeId def = graph_.value(v).def;
      if (owner != n && def == owner) continue;  // the accumulator of the kernel never exists in 8 bits
      AskFor(v);
    }
  }

  std::string FloatReason(NodeId n) const {
    const Node& node = graph_.node(n);
    if (node.is_scalar()) return "arithmetic on numbers";
    const OpRow* row = RowOf(node);
    if (row != nullptr && row->why != nullptr) return row->why;
    if (family(n) == Family::kDropout) return "dropout in training mode; call eval() before capturing";
    if (row == nullptr && !node.outputs.empty()) {
      const Type& made = type(node.outputs[0]);
      if (made.kind == Type::Kind::kTensor && !c10::isFloatingType(made.dtype))
        return absl::StrCat("its result is of ", DtypeName(made.dtype), "; only float32 is quantized");
    }
    return absl::StrCat("no int8 kernel for ", node.op_name());
  }

  const NormalizedGraph& normal_;
  const Graph& graph_;
  const QuantConfig& config_;
  const std::vector<std::string>& excluded_;
  const Uses uses_;
  Annotation a_;
  std::vector<uint32_t> parent_;
  std::vector<Family> families_;  // by node
  std::vector<bool> bytes_;
  std::vector<NodeId> relu_of_;                      // by add
  std::vector<std::pair<NodeId, NodeId>> residual_;  // add, convolution that can compute it
};

}  // namespace

int BitsOfActivations(const QuantConfig& config) {
  if (config.activation_bits != 0) return config.activation_bits;
  return onednn::HasExactProducts() ? 8 : 7;
}

bool AttendsInBfloat16(const Graph& graph, const Node& node, const QuantConfig& config) {
  if (!IsAttention(node)) return false;
  const auto dtype = config.float_dtype.value_or(onednn::HasBfloat16Products() ? at::kBFloat16 : at::kFloat);
  const bool is_asked = dtype == at::kBFloat16 && FloatByRequest(config, node).empty();
  if (!is_asked || IsUnderAutocast(graph, node) || HasDropout(node)) return false;
  const std::array<const char*, 3> factors{"query", "key", "value"};
  return std::all_of(factors.begin(), factors.end(), [&](const char* name) {
    const auto factor = TensorArg(node, name);
    return factor && IsFloatTensor(graph.value(*factor).type);
  });
}

namespace {

// The ops of the program that a node stands for.
std::vector<std::string> NamesOf(const Node& node) {
  if (!Is(node, "frametap::attention_chain")) return {node.op_name()};
  return {"aten.matmul", "aten.bmm", "aten.baddbmm", "aten.einsum", "aten.softmax"};
}

}  // namespace

std::string FloatByRequest(const QuantConfig& config, const Node& node) {
  for (const std::string& name : NamesOf(node)) {
    // With its overload or without: "aten.add.Tensor" or "aten.add".
    const std::string without_overload = name.substr(0, name.find('.', name.find('.') + 1));
    if (config.float_ops.contains(name) || config.float_ops.contains(without_overload))
      return "left in float by request (float_ops)";
  }
  if (node.where == nullptr) return "";
  for (const ModuleScope& scope : node.where->scope) {
    // A ModuleList is a path and not a scope: nothing calls it.
    absl::string_view path = scope.path.str();
    while (!path.empty()) {
      if (config.float_scopes.contains(path))
        return absl::StrCat("left in float by request (float_scopes: ", path, ")");
      const size_t dot = path.rfind('.');
      path = dot == absl::string_view::npos ? absl::string_view() : path.substr(0, dot);
    }
  }
  return "";
}

Annotation Annotate(const NormalizedGraph& normal, const QuantConfig& config,
                    const std::vector<std::string>& excluded) {
  return Annotator(normal, config, excluded).Run();
}

}  // namespace frametap::quant
