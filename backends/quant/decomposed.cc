#include "backends/quant/decomposed.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "backends/onednn/layer.h"
#include "backends/onednn/library.h"
#include "backends/quant/convolution.h"
#include "backends/quant/decomposed_operators.h"
#include "backends/quant/dynamic_linear.h"
#include "backends/quant/kernel_tensor.h"
#include "backends/quant/linears.h"
#include "backends/quant/op_table.h"
#include "backends/quant/operators.h"
#include "backends/quant/params.h"

namespace frametap::quant {
namespace {

constexpr int64_t kMiddle = 128;
constexpr const char* kNotOnlyAWeight = "its weight is also read by an op that is not a layer";

bool IsOf(const Node& node, const char* name, const char* overload) {
  return node.op && node.op->operator_name().overload_name == overload &&
         absl::StrCat(kDecomposed, "::", name) == node.op->operator_name().name;
}
bool IsOf(const Node& node, const char* name) {
  return IsOf(node, name, "") || IsOf(node, name, "tensor") || IsOf(node, name, "tensor2");
}
bool IsDecomposed(const Node& node) {
  return node.op && absl::StartsWith(node.op->operator_name().name, absl::StrCat(kDecomposed, "::"));
}
bool IsDequantize(const Node& node) {
  return IsOf(node, "dequantize_per_tensor") || IsOf(node, "dequantize_per_channel", "");
}

std::optional<c10::ScalarType> DtypeOf(const Node& node, const char* name) {
  const auto number = ConstInt(FindArg(node, name));
  return number ? std::optional(static_cast<c10::ScalarType>(*number)) : std::nullopt;
}

// The amount that makes bytes of an int8 tensor unsigned. Nothing for other dtypes.
std::optional<int64_t> ToUnsigned(std::optional<c10::ScalarType> dtype) {
  if (dtype == at::kByte) return 0;
  return dtype == at::kChar ? std::optional(kMiddle) : std::nullopt;
}

// A frozen weight in int8.
struct Weight {
  at::Tensor bytes, scales, zero_points;
  int64_t axis = 0;
};

class Adoption {
 public:
  Adoption(const Graph& graph, const std::vector<ValueId>& origin, const std::vector<at::Tensor>& known,
           const std::vector<bool>& written, FrozenWeights* frozen)
      : graph_(graph),
        known_(known),
        written_(written),
        frozen_(frozen),
        uses_(graph),
        aliases_(graph),
        step_{Rewrite(graph, &origin), std::vector<NodeDisposition>(graph.nodes.size())},
        out_(step_.rewrite),
        bytes_(graph.values.size()),
        params_(graph.values.size()) {}

  Step Run() {
    FindConstants();
    FindActivations();
    FindWeights();
    FindDynamicLayers();
    for (size_t i = 0; i < graph_.nodes.size(); ++i) Emit(NodeId(i));
    out_.CopyOutputs();
    return std::move(step_);
  }

 private:
  const Node* Def(ValueId v) const {
    const NodeId def = graph_.value(v).def;
    return def.valid() ? &graph_.node(def) : nullptr;
  }
  std::optional<double> Number(const Node& node, const char* name) const {
    const Arg* const arg = FindArg(node, name);
    if (arg == nullptr || arg->kind != Arg::Kind::kValue) return ConstNumber(arg);
    const at::Tensor& tensor = known_[arg->value.raw()];
    return tensor.defined() && tensor.numel() == 1 ? std::optional(tensor.item().toDouble()) : std::nullopt;
  }
  const at::Tensor& KnownArg(const Node& node, const char* name) const {
    static const at::Tensor none;
    const auto v = TensorArg(node, name);
    return v ? known_[v->raw()] : none;
  }
  bool GivesFloat(const Node& node) const { return IsFloatTensor(graph_.value(node.outputs[0]).type); }

  // Weights that are still to be quantized (X2), which are bytes after this.
  void FindConstants() {
    is_computed_.assign(graph_.nodes.size(), false);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (!IsOf(node, "quantize_per_channel", "") && !IsOf(node, "quantize_per_tensor")) continue;
      Compute(NodeId(i));
    }
  }

  // A result that the graph hands out, or writes to, is a tensor of its own at each run.
  bool Compute(NodeId n) {
    const Node& node = graph_.node(n);
    const ValueId made = node.outputs[0];
    const auto shares = [&](ValueId v) { return aliases_.same(v, made); };
    if (written_[made.raw()] || std::any_of(graph_.outputs.begin(), graph_.outputs.end(), shares)) return false;
    for (const Arg& arg : node.args) {
      if (arg.kind == Arg::Kind::kList) return false;
      if (arg.kind == Arg::Kind::kValue && !known_[arg.value.raw()].defined()) return false;
    }
    const auto result = ComputedOnce(graph_, node, known_, frozen_);
    if (!result) return false;
    known_[node.outputs[0].raw()] = (*result)[0];
    return is_computed_[n.raw()] = true;
  }

  // X1. The parameters of quantized activations, and of their dequantized forms.
  void FindActivations() {
    for (const Node& node : graph_.nodes) {
      const bool quantizes = IsOf(node, "quantize_per_tensor");
      if ((!quantizes && !IsOf(node, "dequantize_per_tensor")) || KnownArg(node, "input").defined()) continue;
      const auto shift = ToUnsigned(DtypeOf(node, "dtype"));
      const auto scale = Number(node, "scale"), zero = Number(node, "zero_point"), low = Number(node, "quant_min"),
                 high = Number(node, "quant_max");
      const auto input = TensorArg(node, "input");
      if (!shift || !scale || !zero || !low || !high || !input || !(*scale > 0)) continue;
      Params p;
      p.scale = *scale;
      p.zero_point = static_cast<int64_t>(*zero) + *shift;
      p.qmin = static_cast<int64_t>(*low) + *shift;
      p.qmax = static_cast<int64_t>(*high) + *shift;
      const bool fits = p.zero_point >= 0 && p.zero_point <= 255 && p.qmin >= 0 && p.qmax <= 255 && p.qmin < p.qmax;
      if (!fits) continue;
      if (quantizes) {
        if (IsFloatTensor(graph_.value(*input).type)) params_[node.outputs[0].raw()] = p;
      } else if (GivesFloat(node) && IsNoneOrFloat(FindArg(node, "out_dtype")) && IsBytes(*input, *shift)) {
        // The limits follow from the bytes, and not from this op.
        const std::optional<Params>& given = params_[input->raw()];
        p.qmin = given ? given->qmin : 0;
        p.qmax = given ? given->qmax : 255;
        params_[node.outputs[0].raw()] = p;
      }
    }
  }

  static bool IsNoneOrFloat(const Arg* arg) { return IsNone(arg) || ConstInt(arg) == static_cast<int64_t>(at::kFloat); }
  // Whether the new graph has the value as unsigned bytes. Bytes that come from elsewhere are, if nothing is to be added.
  bool IsBytes(ValueId v, int64_t shift) const {
    const Node* const def = Def(v);
    if (def != nullptr && IsOf(*def, "quantize_per_tensor")) {
      return params_[v.raw()].has_value() && ToUnsigned(DtypeOf(*def, "dtype")) == shift;
    }
    return shift == 0 && graph_.value(v).type.dtype == at::kByte;
  }

  // X2, X3.
  void FindWeights() {
    weights_.resize(graph_.values.size());
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (!IsDequantize(node) || !KnownArg(node, "input").defined()) continue;
      const ValueId v = node.outputs[0];
      std::string why;
      std::optional<Weight> weight = WeightOf(node, &why);
      for (const NodeId reader : uses_.nodes[v.raw()]) {
        if (why.empty()) why = WhyNot(graph_.node(reader), v, *weight);
      }
      if (why.empty() && (uses_.nodes[v.raw()].empty() || uses_.outputs[v.raw()] > 0)) why = kNotOnlyAWeight;
      if (why.empty()) {
        weights_[v.raw()] = *std::move(weight);
      } else if (Compute(NodeId(i))) {
        for (const NodeId reader : uses_.nodes[v.raw()]) {
          if (IsLayer(graph_.node(reader))) step_.fates[reader.raw()].note = why;
        }
      }
    }
  }

  std::optional<Weight> WeightOf(const Node& node, std::string* why) const {
    const at::Tensor& given = KnownArg(node, "input");
    const auto shift = ToUnsigned(given.scalar_type());
    if (!shift || !GivesFloat(node)) {
      *why = absl::StrCat("its weight is of ", c10::toString(given.scalar_type()), ", and kernels take int8");
      return std::nullopt;
    }
    Weight made;
    at::Tensor zeros;
    if (IsOf(node, "dequantize_per_channel", "")) {
      made.axis = ConstInt(FindArg(node, "axis")).value_or(-1);
      if (made.axis < 0) made.axis += given.dim();
      made.scales = KnownArg(node, "scales");
      zeros = KnownArg(node, "zero_points");
      const bool has_zeros = !IsNone(FindArg(node, "zero_points"));
      if (!made.scales.defined() || zeros.defined() != has_zeros || made.axis < 0 || made.axis >= given.dim()) {
        *why = "the scales of its weight are not parameters or buffers";
        return std::nullopt;
      }
      if (!has_zeros) zeros = at::zeros(made.scales.sizes(), at::kLong);
    } else {
      const auto scale = Number(node, "scale"), zero = Number(node, "zero_point");
      if (!scale || !zero || given.dim() == 0) {
        *why = "the scale of its weight is not a constant";
        return std::nullopt;
      }
      made.axis = -1;  // every axis will do
      made.scales = at::full({1}, *scale, at::kDouble);
      zeros = at::full({1}, static_cast<int64_t>(*zero), at::kLong);
    }
    const int64_t middle = *shift == 0 ? kMiddle : 0;  // of uint8
    if (zeros.to(at::kLong).ne(middle).any().item<bool>()) {
      *why = "its weight has zero points, and kernels take a symmetric one";
      return std::nullopt;
    }
    if (!at::isfinite(made.scales).all().item<bool>()) {
      *why = "a scale of its weight is not finite";
      return std::nullopt;
    }
    made.bytes = FrozenWeights::Of(frozen_, "signed bytes", {given}, [&] {
      const at::Tensor copy = given.detach().contiguous();
      return FrozenWeights::Tensors{middle == 0 ? copy.clone() : copy.to(at::kShort).sub(middle).to(at::kChar)};
    })[0];
    return made;
  }

  // Why a layer does not read `v` as a weight in bytes; "" if it does.
  std::string WhyNot(const Node& layer, ValueId v, const Weight& weight) const {
    const auto input = TensorArg(layer, "input");
    if (!IsLayer(layer) || TensorArg(layer, "weight") != v || input == v) {
      return kNotOnlyAWeight;
    }
    if (IsUnderAutocast(graph_, layer)) return "it ran under autocast";
    if (!input) return "its input is not a tensor of the graph";
    const int64_t axis = OutputAxisOf(layer);
    if (weight.axis >= 0 && weight.axis != axis) {
      return absl::StrCat("its weight has scales along axis ", weight.axis, ", and kernels take them along axis ",
                          axis);
    }
    if (!IsNone(FindArg(layer, "bias")) && !IsFloatBias(layer))
      return "its bias is not a parameter or buffer of float32";
    const Node* const def = Def(*input);
    const std::optional<Params>& p = params_[input->raw()];
    const bool is_dynamic = def != nullptr && IsDynamic(*def);
    if (!p && !is_dynamic) return "its input is not quantized to 8 bits with one scale, so only its weight is int8";
    if (is_dynamic && !Is(layer, "aten::linear")) return "a convolution has no kernel with parameters of each call";
    const bool is_wide = is_dynamic || p->qmax > 127;
    if (is_wide && !onednn::HasExactProducts()) {
      return "products of 8-bit activations saturate on this processor; take a quantizer with a reduced range";
    }
    if (is_dynamic || !IsConvolution(layer)) return weight.bytes.dim() == 2 ? "" : "its weight is not a matrix";
    std::string why;
    ConvolutionOf(layer, graph_.value(*input).type.sizes.size(), weight.bytes.sizes(), &why);
    return why;
  }

  static bool IsConvolution(const Node& node) { return RowOf(node)->family == Family::kConv; }
  bool IsFloatBias(const Node& layer) const {
    const at::Tensor& bias = KnownArg(layer, "bias");
    return bias.defined() && bias.scalar_type() == at::kFloat && bias.device().is_cpu();
  }

  // X4. Whether the node dequantizes bytes with parameters that the op before chose for the same tensor.
  bool IsDynamic(const Node& dequantize) const {
    if (!IsOf(dequantize, "dequantize_per_tensor", "tensor") || !GivesFloat(dequantize)) return false;
    const auto q = TensorArg(dequantize, "input");
    const Node* const quantize = q ? Def(*q) : nullptr;
    if (quantize == nullptr || !IsOf(*quantize, "quantize_per_tensor", "tensor")) return false;
    const auto scale = TensorArg(*quantize, "scale"), zero = TensorArg(*quantize, "zero_point"),
               x = TensorArg(*quantize, "input");
    const Node* const choose = scale ? Def(*scale) : nullptr;
    if (choose == nullptr || !IsOf(*choose, "choose_qparams", "tensor") || !zero || !x) return false;
    const auto shift = ToUnsigned(DtypeOf(*choose, "dtype"));
    const auto has = [&](const Node& node, const char* low, const char* high) {
      return shift && DtypeOf(node, "dtype") == DtypeOf(*choose, "dtype") && ConstInt(FindArg(node, low)) == -*shift &&
             ConstInt(FindArg(node, high)) == 255 - *shift;
    };
    return TensorArg(*choose, "input") == x && IsFloatTensor(graph_.value(*x).type) && !written_[x->raw()] &&
           choose->outputs[0] == *scale && choose->outputs[1] == *zero && TensorArg(dequantize, "scale") == scale &&
           TensorArg(dequantize, "zero_point") == zero && has(*choose, "quant_min", "quant_max") &&
           has(*quantize, "quant_min", "quant_max") && DtypeOf(dequantize, "dtype") == DtypeOf(*choose, "dtype") &&
           ConstNumber(FindArg(*choose, "eps")).has_value();
  }

  void FindDynamicLayers() {
    is_dynamic_.assign(graph_.nodes.size(), false);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (!Is(node, "aten::linear")) continue;
      const auto input = TensorArg(node, "input"), weight = TensorArg(node, "weight");
      const Node* const def = input ? Def(*input) : nullptr;
      is_dynamic_[i] = weight && weights_[weight->raw()] && def != nullptr && IsDynamic(*def);
    }
    // From the last to the first: what only such layers read is part of them.
    is_gone_.assign(graph_.nodes.size(), false);
    for (size_t i = graph_.nodes.size(); i-- > 0;) is_gone_[i] = OnlyDynamicLayersRead(graph_.nodes[i]);
  }

  bool OnlyDynamicLayersRead(const Node& node) const {
    if (!IsDecomposed(node) || KnownArg(node, "input").defined()) return false;
    bool any = false;
    for (ValueId v : node.outputs) {
      if (uses_.outputs[v.raw()] > 0) return false;
      for (const NodeId reader : uses_.nodes[v.raw()]) {
        if (!is_dynamic_[reader.raw()] && !is_gone_[reader.raw()]) return false;
        any = true;
      }
    }
    return any;
  }

  // -- the new graph --

  void Emit(NodeId n) {
    const Node& node = graph_.node(n);
    NodeDisposition& fate = step_.fates[n.raw()];
    if (is_computed_[n.raw()]) {
      const ValueId v = node.outputs[0];
      if (uses_.count(v) > 0) out_.Map(v, out_.AddConstant(graph_.value(v).name, known_[v.raw()]));
      fate.folded = "computed once, of frozen weights";
    } else if (is_gone_[n.raw()]) {
      fate.folded = "in the int8 kernel of each layer that reads it";
    } else if (is_dynamic_[n.raw()]) {
      EmitDynamic(node);
      fate.is_int8 = true;
    } else if (IsDequantize(node) && weights_[node.outputs[0].raw()]) {
      fate.folded = "its bytes are the weight of an int8 kernel";
      return;
    } else if (IsOf(node, "quantize_per_tensor") && params_[node.outputs[0].raw()]) {
      EmitQuantize(node);
    } else if (IsOf(node, "dequantize_per_tensor") && params_[node.outputs[0].raw()]) {
      EmitDequantize(node);
    } else if (IsLayer(node) && WeightOf(node)) {
      EmitLayer(node);
    } else {
      out_.Copy(node);
    }
    if (fate.folded.empty()) fate.now = NodeId(out_.graph.nodes.size() - 1);
  }

  const Weight* WeightOf(const Node& layer) const {
    const auto v = TensorArg(layer, "weight");
    return v && weights_[v->raw()] ? &*weights_[v->raw()] : nullptr;
  }

  void EmitQuantize(const Node& node) {
    const ValueId v = node.outputs[0];
    const Params& p = *params_[v.raw()];
    const Value& value = graph_.value(v);
    const auto& readers = uses_.nodes[v.raw()];
    const bool is_read_as_it_is =
        uses_.outputs[v.raw()] > 0 || std::any_of(readers.begin(), readers.end(), [&](NodeId n) {
          return !IsOf(graph_.node(n), "dequantize_per_tensor") || !params_[graph_.node(n).outputs[0].raw()];
        });
    if (is_read_as_it_is) out_.Copy(node);
    bytes_[v.raw()] = out_.Emit(FindOperator("frametap::quantize_per_tensor"),
                                {out_.Args({*FindArg(node, "input")})[0], Arg::Const(p.scale), Arg::Const(p.zero_point),
                                 Arg::Const(p.qmin), Arg::Const(p.qmax), Arg::Const(static_cast<int64_t>(at::kByte))},
                                value.name, Retyped(value.type, at::kByte), v, node);
  }

  void EmitDequantize(const Node& node) {
    const ValueId v = node.outputs[0], q = *TensorArg(node, "input");
    const Params& p = *params_[v.raw()];
    const Value& value = graph_.value(v);
    const ValueId bytes = bytes_[q.raw()].valid() ? bytes_[q.raw()] : out_.at(q);
    out_.Map(v, out_.Emit(FindOperator("frametap::dequantize_per_tensor"),
                          {Arg::Of(bytes), Arg::Const(p.scale), Arg::Const(p.zero_point)}, value.name,
                          Retyped(value.type, at::kFloat), v, node));
  }

  at::Tensor Copied(const at::Tensor& tensor, const char* what) const {
    return FrozenWeights::Of(frozen_, what, {tensor},
                             [&] { return FrozenWeights::Tensors{tensor.detach().clone().contiguous()}; })[0];
  }

  // One float for each output of the layer, as params/P3 has them.
  at::Tensor ScalesFor(const Node& layer, const Weight& weight) const {
    const int64_t count = weight.bytes.size(OutputAxisOf(layer));
    return FrozenWeights::Of(frozen_, absl::StrCat("scales ", count, " ", weight.scales[0].item().toDouble()),
                             {weight.bytes, weight.axis < 0 ? weight.bytes : weight.scales}, [&] {
                               const at::Tensor scales = weight.scales.detach().to(at::kFloat).flatten();
                               return FrozenWeights::Tensors{scales.expand({count}).clone()};
                             })[0];
  }

  void EmitLayer(const Node& node) {
    const Weight& weight = *WeightOf(node);
    const ValueId v = *TensorArg(node, "weight");
    const Value& value = graph_.value(v);
    const at::Tensor scales = ScalesFor(node, weight);
    const ValueId w = out_.Emit(FindOperator("frametap::dequantize_per_channel"),
                                {Arg::Of(out_.AddConstant(value.name + "_q", weight.bytes)),
                                 Arg::Of(out_.AddConstant(value.name + "_scales", scales)),
                                 Arg::Of(out_.AddConstant(value.name + "_zeros", at::zeros(scales.sizes(), at::kLong))),
                                 Arg::Const(OutputAxisOf(node))},
                                value.name, Retyped(value.type, at::kFloat), v, node);
    std::vector<Arg> args = WithValues(node.args, [&](ValueId old) { return old == v ? w : out_.at(old); });
    if (const auto bias = TensorArg(node, "bias")) {
      const at::Tensor copy = Copied(known_[bias->raw()], "copied");
      args[FindArg(node, "bias") - node.args.data()] =
          Arg::Of(out_.AddConstant(graph_.value(*bias).name + "_frozen", copy));
    }
    out_.CopyWith(node, std::move(args));
  }

  void EmitDynamic(const Node& node) {
    const Weight& weight = *WeightOf(node);
    const Node& quantize = *Def(*TensorArg(*Def(*TensorArg(node, "input")), "input"));
    const Node& choose = *Def(*TensorArg(quantize, "scale"));
    const ValueId x = *TensorArg(choose, "input"), result = node.outputs[0];
    onednn::Layer layer;
    layer.weight = weight.bytes;
    layer.scales = ScalesFor(node, weight);
    if (const auto bias = TensorArg(node, "bias")) layer.bias = Copied(known_[bias->raw()], "copied");
    const float least = static_cast<float>(*ConstNumber(FindArg(choose, "eps")));
    const at::Tensor kernel =
        FrozenDynamicKernel(frozen_, layer, {8, DynamicLinear::Share::kTensor, least}, graph_.value(x).type.sizes);
    const Value& value = graph_.value(result);
    const std::string name = graph_.value(*TensorArg(node, "weight")).name + "_kernel";
    out_.Map(result, out_.Emit(FindOperator("frametap::dynamic_linear"),
                               {Arg::Of(out_.at(x)), Arg::Of(out_.AddConstant(name, kernel))}, value.name, value.type,
                               result, node));
  }

  const Graph& graph_;
  std::vector<at::Tensor> known_;
  const std::vector<bool>& written_;
  FrozenWeights* const frozen_;
  const Uses uses_;
  const Aliases aliases_;
  Step step_;
  Rewrite& out_;
  std::vector<bool> is_computed_;               // by node
  std::vector<bool> is_dynamic_;                // by node: a linear layer
  std::vector<bool> is_gone_;                   // by node: part of dynamic layers
  std::vector<ValueId> bytes_;                  // by value: its unsigned bytes in the new graph
  std::vector<std::optional<Params>> params_;   // by value: of bytes and of dequantized values
  std::vector<std::optional<Weight>> weights_;  // by value: a dequantized weight
};

}  // namespace

bool HasDecomposed(const Graph& graph) { return std::any_of(graph.nodes.begin(), graph.nodes.end(), IsDecomposed); }

Step TakeDecomposed(const Graph& graph, const std::vector<ValueId>& origin, const std::vector<at::Tensor>& known,
                    const std::vector<bool>& written, FrozenWeights* frozen) {
  return Adoption(graph, origin, known, written, frozen).Run();
}

}  // namespace frametap::quant
