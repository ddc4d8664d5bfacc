// Lower: the reference graph on int8 kernels. Patterns of dequantize, op, quantize become one op on bytes.
//   L1  A kernel is emitted where its last op stood: all it reads exists by then.
//   L2  A dequantize is emitted when a float op first needs it, else never.
//   L3  The sum of a residual is written into its accumulator only if that memory is not read afterwards; else a copy.
//   L4  Floats are contiguous wherever the reference has them so: a view of them stays legal. Views of bytes become
//       reshapes, since images are channels_last there.
//   L5  The sum of a float result of a linear layer and another tensor is part of the kernel, which raises nothing that the
//       sum would not.
#include <ATen/ops/count_nonzero.h>
#include <c10/core/MemoryFormat.h>

#include <algorithm>
#include <array>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "backends/onednn/library.h"
#include "backends/quant/convolution.h"
#include "backends/quant/curves.h"
#include "backends/quant/kernel_tensor.h"
#include "backends/quant/lower.h"
#include "backends/quant/op_table.h"
#include "backends/quant/operators.h"
#include "backends/quant/quantize.h"
#include "backends/quant/recurrence.h"
#include "backends/quant/rewrite.h"

namespace frametap::quant {
namespace {

constexpr size_t kAccumulatorArg = 1;  // of frametap::qconv_add

// A kernel with a weight, found in the reference graph.
struct Kernel {
  NodeId anchor;
  NodeId add;          // or invalid
  NodeId post;         // or invalid
  NodeId quantize;     // or invalid: f32 result
  ValueId other;       // with `add`: the other addend (dequantized)
  NodeId float_sum{};  // of a linear layer without `post` and `quantize`; or invalid
  ValueId addend{};    // with `float_sum`: the other addend (floats)
  ValueId rows{};      // of a dynamic layer: its input (floats)
  int bits = 8;        // with `rows`
};

// An op on bytes without a weight.
struct ByteOp {
  NodeId op;
  NodeId relu;  // of an add, or invalid
  NodeId quantize;
};

using onednn::Curve;

onednn::Quantization QuantizationOf(const Params& p) {
  return {static_cast<float>(p.scale), static_cast<int32_t>(p.zero_point)};
}

class Lowering {
 public:
  Lowering(const Graph& from, const std::vector<ValueId>* origin, FrozenWeights* frozen)
      : from_(from), frozen_(frozen), uses_(from), step_{Rewrite(from, origin), std::vector<Fate>(from.nodes.size())} {
    for (const auto& [v, tensor] : from.constants) constants_.emplace(v, tensor);
  }

  Step Run() {
    Find();
    for (size_t i = 0; i < from_.nodes.size(); ++i) {
      const NodeId n(i);
      const Node& node = from_.node(n);
      if (const auto kernel = kernel_at_.find(n); kernel != kernel_at_.end()) {
        EmitKernel(kernel->second);
        NoteKernel(kernel->second.anchor);
        continue;
      }
      if (const auto op = byte_op_at_.find(n); op != byte_op_at_.end()) {
        EmitByteOp(op->second);
        NoteKernel(op->second.op);
        continue;
      }
      if (absorbed_[i] || IsDequantize(node)) continue;
      if (Is(node, "frametap::quantize_per_tensor")) {
        EmitQuantize(node);
        step_.fates[i].is_int8 = true;
      } else if (IsRecurrence(node)) {
        EmitRecurrence(node);
      } else {
        Materialise(node.args, node);
        out_.Copy(node);
      }
      step_.fates[i].now = LastNode();
    }
    for (ValueId v : from_.outputs) Materialise(v, Node());
    out_.CopyOutputs();
    NoteTheRest();
    CopyLiveAccumulators();
    return std::move(step_);
  }

 private:
  NodeId LastNode() const { return NodeId(out_.graph.nodes.size() - 1); }

  // The kernel that was emitted last stands for `first`, which it begins with.
  void NoteKernel(NodeId first) {
    step_.fates[first.raw()].now = LastNode();
    step_.fates[first.raw()].is_int8 = true;
  }

  // Where the other parts of kernels went, and dequantized values.
  void NoteTheRest() {
    const auto fold = [&](NodeId part, NodeId first) {
      if (!part.valid() || part == first) return;
      step_.fates[part.raw()].folded = absl::StrCat("in the int8 kernel of ", NameWithPlace(from_.node(first)));
    };
    for (const auto& [last, k] : kernel_at_) {
      for (const NodeId part : {k.add, k.post, k.quantize, k.float_sum}) fold(part, k.anchor);
    }
    for (const auto& [last, b] : byte_op_at_) {
      for (const NodeId part : {b.relu, b.quantize}) fold(part, b.op);
    }
    for (size_t i = 0; i < from_.nodes.size(); ++i) {
      const Node& node = from_.nodes[i];
      if (!IsDequantize(node)) continue;
      if (out_.has(node.outputs[0])) {
        step_.fates[i].now = out_.graph.value(out_.at(node.outputs[0])).def;
        step_.fates[i].is_int8 = true;
      } else {
        step_.fates[i].folded = "all that read it read its bytes";
      }
    }
  }

  // Rounded rows are floats as well, which a dynamic layer has no need of.
  static bool IsDequantize(const Node& node) {
    return Is(node, "frametap::dequantize_per_tensor") || Is(node, "frametap::dequantize_per_channel") ||
           Is(node, "frametap::round_rows");
  }

  const Node* Def(ValueId v) const {
    const NodeId def = from_.value(v).def;
    return def.valid() ? &from_.node(def) : nullptr;
  }

  // The parameters of a dequantized activation.
  std::optional<Params> Dequantized(ValueId v) const {
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

  Params ParamsOf(const Node& quantize) const {
    Params p;
    p.scale = *ConstNumber(FindArg(quantize, "scale"));
    p.zero_point = *ConstInt(FindArg(quantize, "zero_point"));
    p.qmin = *ConstInt(FindArg(quantize, "qmin"));
    p.qmax = *ConstInt(FindArg(quantize, "qmax"));
    return p;
  }

  // The only reader of the node's result if it is a quantize.
  NodeId QuantizeAfter(NodeId n) const {
    const NodeId next = uses_.sole(from_.node(n).outputs[0]);
    return next.valid() && Is(from_.node(next), "frametap::quantize_per_tensor") ? next : NodeId();
  }

  const at::Tensor* ConstantOf(ValueId v) const {
    const auto it = constants_.find(v);
    return it == constants_.end() ? nullptr : &it->second;
  }

  const OpRow* Row(NodeId n) const { return RowOf(from_.node(n)); }
  bool IsFamily(NodeId n, Family f) const { return n.valid() && FamilyOf(from_.node(n)) == f; }

  void Find() {
    absorbed_.assign(from_.nodes.size(), false);
    for (size_t i = 0; i < from_.nodes.size(); ++i) {
      const NodeId n(i);
      const OpRow* row = Row(n);
      if (row == nullptr || absorbed_[i]) continue;
      if (row->family == Family::kConv || row->family == Family::kLinear) {
        FindKernel(n);
      } else {
        FindByteOp(n);
      }
    }
  }

  void FindKernel(NodeId n) {
    const Node& node = from_.node(n);
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
      absorbed_[n.raw()] = true;
      kernel_at_.emplace(n, k);
      return;
    }
    NodeId last = n;
    NodeId next = uses_.sole(node.outputs[0]);
    if (IsFamily(n, Family::kConv) && TakesSum(node, from_.value(node.outputs[0]).type.sizes.size()) &&
        IsFamily(next, Family::kAdd)) {
      const auto a = TensorArg(from_.node(next), "self");
      const auto b = TensorArg(from_.node(next), "other");
      const ValueId other = a && *a == node.outputs[0] ? b.value_or(ValueId()) : a.value_or(ValueId());
      NodeId after = uses_.sole(from_.node(next).outputs[0]);
      if (IsFamily(after, Family::kRelu)) after = uses_.sole(from_.node(after).outputs[0]);
      const bool ends_in_bytes = after.valid() && Is(from_.node(after), "frametap::quantize_per_tensor");
      if (other.valid() && Dequantized(other) && ends_in_bytes &&
          from_.value(other).type.sizes == from_.value(node.outputs[0]).type.sizes &&
          Is(from_.node(next), "aten::add", "Tensor") && ConstNumber(FindArg(from_.node(next), "alpha")) == 1.0 &&
          !absorbed_[next.raw()]) {
        k.add = last = next;
        k.other = other;
        next = uses_.sole(from_.node(next).outputs[0]);
      }
    }
    if (TakeFloatSum(n, next, &k)) {
      absorbed_[n.raw()] = absorbed_[next.raw()] = true;
      kernel_at_.emplace(next, k);
      return;
    }
    if (next.valid() && !absorbed_[next.raw()] && PostOf(next, k.add.valid())) {
      k.post = last = next;
    }
    k.quantize = QuantizeAfter(last);
    if (k.add.valid() && !k.quantize.valid()) return;
    if (k.quantize.valid()) last = k.quantize;
    for (const NodeId part : {k.anchor, k.add, k.post, k.quantize}) {
      if (part.valid()) absorbed_[part.raw()] = true;
    }
    kernel_at_.emplace(last, k);
  }

  // L5. `sum`: the only reader of the result of `layer`, or invalid.
  bool TakeFloatSum(NodeId layer, NodeId sum, Kernel* kernel) const {
    if (!IsFamily(layer, Family::kLinear) || !sum.valid() || absorbed_[sum.raw()]) return false;
    const Node& node = from_.node(sum);
    if (!Is(node, "aten::add", "Tensor") || ConstNumber(FindArg(node, "alpha")) != 1.0) return false;
    const auto a = TensorArg(node, "self"), b = TensorArg(node, "other");
    if (!a || !b || *a == *b) return false;
    const Value& result = from_.value(from_.node(layer).outputs[0]);
    const ValueId addend = *a == from_.node(layer).outputs[0] ? *b : *a;
    const Type& type = from_.value(addend).type;
    if (!IsFloatTensor(type) || type.sizes != result.type.sizes || IsUnderAutocast(from_, node)) return false;
    kernel->float_sum = sum;
    kernel->addend = addend;
    return true;
  }

  std::optional<Convolution> ConvolutionOf(NodeId n) const {
    const Node& node = from_.node(n);
    const Node& weight = *Def(*TensorArg(node, "weight"));
    std::string why;
    return quant::ConvolutionOf(node, from_.value(*TensorArg(node, "input")).type.sizes.size(),
                                ConstantOf(weight.args[0].value)->sizes(), &why);
  }

  // The post op that `n` is for a kernel.
  std::optional<CurveOp> PostOf(NodeId n, bool after_sum) const {
    const std::optional<CurveOp> op = CurveOf(from_.node(n));
    return !op || op->curve == Curve::kRelu || !after_sum ? op : std::nullopt;
  }

  std::vector<ValueId> ActivationsOf(const Node& node, Family family) const {
    std::vector<ValueId> out;
    if (family == Family::kCat) {
      ForEachUse({node.args[0]}, [&](ValueId v) { out.push_back(v); });
    } else if (family == Family::kAdd || family == Family::kMul) {
      for (size_t i = 0; i < 2; ++i) {
        if (node.args[i].kind == Arg::Kind::kValue) out.push_back(node.args[i].value);
      }
    } else if (node.args[0].kind == Arg::Kind::kValue) {
      out.push_back(node.args[0].value);
    }
    return out;
  }

  void FindByteOp(NodeId n) {
    const Node& node = from_.node(n);
    const Family family = FamilyOf(node);
    ByteOp op;
    op.op = n;
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
        if (!input || !IsMeanOverImage(node, from_.value(*input).type.sizes.size())) return;
        break;
      }
      case Family::kMove:
        if (!PadsWithZero(node)) return;
        break;
      case Family::kMul:
      case Family::kCurve:
      case Family::kRelu:
      case Family::kMaxPool:
      case Family::kAvgPool:
      case Family::kAdaptivePool:
      case Family::kShape:
      case Family::kCat:
        break;
      default:
        return;
    }
    op.quantize = QuantizeAfter(op.relu.valid() ? op.relu : n);
    if (!op.quantize.valid()) return;
    const Params out = ParamsOf(from_.node(op.quantize));
    const std::vector<ValueId> inputs = ActivationsOf(node, family);
    const bool is_pair = family == Family::kAdd || family == Family::kMul;
    if (inputs.empty() || (is_pair && inputs.size() != 2)) return;
    for (ValueId v : inputs) {
      const auto p = Dequantized(v);
      if (!p) return;
      const bool keeps_params = !is_pair && family != Family::kCurve;
      if (keeps_params && (p->scale != out.scale || p->zero_point != out.zero_point)) return;
    }
    for (const NodeId part : {op.op, op.relu, op.quantize}) {
      if (part.valid()) absorbed_[part.raw()] = true;
    }
    byte_op_at_.emplace(op.quantize, op);
  }

  void EmitRecurrence(const Node& node) {
    const auto& weights = node.args[2].items;
    const auto& biases = node.args[3].items;
    const int bits = static_cast<int>(*ConstInt(FindArg(node, "bits")));
    std::vector<Arg> kernels;
    for (size_t i = 0; i < weights.size(); ++i) {
      const Node* const weight = Def(weights[i].value);
      onednn::Layer layer;
      layer.weight = *ConstantOf(weight->args[0].value);
      layer.scales = *ConstantOf(weight->args[1].value);
      if (!biases.empty()) layer.bias = *ConstantOf(biases[i].value);
      const at::Tensor kernel = FrozenDynamicKernel(frozen_, layer, {bits}, RowsOfProduct(from_, node, i, layer));
      kernels.push_back(Arg::Of(out_.AddConstant(from_.value(weights[i].value).name + "_kernel", kernel)));
    }
    Materialise({node.args[0], node.args[1]}, node);
    std::vector<Arg> args = out_.Args({node.args[0], node.args[1]});
    args.push_back(Arg::List(std::move(kernels)));
    args.push_back(Arg::List({}));
    for (size_t i = 4; i < node.args.size(); ++i) args.push_back(node.args[i]);
    out_.CopyWith(node, std::move(args));
  }

  // The bytes of a dequantized value, in the new graph.
  ValueId Bytes(ValueId dequantized) { return out_.at(Def(dequantized)->args[0].value); }

  // L2.
  void Materialise(ValueId v, const Node& reader) {
    const Node* def = Def(v);
    if (def == nullptr || !IsDequantize(*def) || out_.has(v)) return;
    Node now = *def;
    now.state = reader.state;
    Materialise(now.args, reader);
    out_.Copy(now);
  }
  void Materialise(const std::vector<Arg>& args, const Node& reader) {
    ForEachUse(args, [&](ValueId v) { Materialise(v, reader); });
  }

  void EmitQuantize(const Node& node) {
    Materialise(node.args, node);
    Node now = node;
    if (FeedsImages(node.outputs[0])) now.op = FindOperator("frametap::quantize_per_tensor_channels_last");
    out_.Copy(now);
  }

  // Whether some op on images reads these bytes.
  bool FeedsImages(ValueId bytes) const {
    const size_t rank = from_.value(bytes).type.sizes.size();
    if (rank < 3 || rank > 5) return false;
    for (const NodeId reader : uses_.nodes[bytes.raw()]) {
      if (!IsDequantize(from_.node(reader))) continue;
      for (const NodeId n : uses_.nodes[from_.node(reader).outputs[0].raw()]) {
        if (Row(n) == nullptr || !absorbed_[n.raw()]) continue;
        switch (Row(n)->family) {
          case Family::kConv:
            return true;
          case Family::kMaxPool:
          case Family::kAvgPool:
          case Family::kAdaptivePool:
          case Family::kMean:
            if (rank == 4) return true;
            break;
          default:
            break;
        }
      }
    }
    return false;
  }

  // The kernel takes dense images that are channels_last: images of a slice, or former matrices, are copied.
  ValueId Accumulator(ValueId dequantized, const Node& reader) {
    const ValueId bytes = Bytes(dequantized);
    const Value value = out_.graph.value(bytes);
    const Node* def = value.def.valid() ? &out_.graph.node(value.def) : nullptr;
    for (const char* name : {"frametap::qconv", "frametap::qconv_add", "frametap::quantize_per_tensor_channels_last",
                             "frametap::qmax_pool2d", "frametap::qavg_pool2d", "frametap::qadaptive_avg_pool2d"}) {
      if (def != nullptr && Is(*def, name)) return bytes;
    }
    return out_.Emit(FindOperator("aten::contiguous"),
                     {Arg::Of(bytes), Arg::Const(static_cast<int64_t>(at::MemoryFormat::ChannelsLast))},
                     value.name + "_dense", value.type, ValueId(), reader);
  }

  // params/P3: one scale for each output, also where groups share them.
  static onednn::Layer ByOutput(onednn::Layer layer) {
    if (layer.is_transposed && layer.groups > 1) layer.scales = layer.scales.repeat({layer.groups});
    return layer;
  }

  onednn::Layer LayerOf(const Kernel& k) const {
    const Node& node = from_.node(k.anchor);
    const ValueId x = *TensorArg(node, "input");
    const Node& weight = *Def(*TensorArg(node, "weight"));
    onednn::Layer layer;
    layer.weight = *ConstantOf(weight.args[0].value);
    layer.scales = *ConstantOf(weight.args[1].value);
    if (const auto bias = TensorArg(node, "bias")) layer.bias = *ConstantOf(*bias);
    layer.x = QuantizationOf(*Dequantized(x));
    if (k.quantize.valid()) layer.out = QuantizationOf(ParamsOf(from_.node(k.quantize)));
    if (k.add.valid()) layer.accumulator = QuantizationOf(*Dequantized(k.other));
    if (k.post.valid()) SetCurve(*PostOf(k.post, k.add.valid()), &layer);
    layer.has_addend = k.float_sum.valid();
    if (IsFamily(k.anchor, Family::kConv)) SetNumbers(*ConvolutionOf(k.anchor), &layer);
    return layer;
  }

  void EmitDynamic(const Kernel& k) {
    const Node& node = from_.node(k.anchor);
    const Node& weight = *Def(*TensorArg(node, "weight"));
    onednn::Layer layer;
    layer.weight = *ConstantOf(weight.args[0].value);
    layer.scales = *ConstantOf(weight.args[1].value);
    if (const auto bias = TensorArg(node, "bias")) layer.bias = *ConstantOf(*bias);
    Materialise(k.rows, node);
    const at::Tensor kernel = FrozenDynamicKernel(frozen_, layer, {k.bits}, from_.value(k.rows).type.sizes);
    const ValueId constant = out_.AddConstant(from_.value(weight.args[0].value).name + "_kernel", kernel);
    const ValueId result = node.outputs[0];
    const Value& value = from_.value(result);
    out_.Map(result, out_.Emit(FindOperator("frametap::dynamic_linear"), {Arg::Of(out_.at(k.rows)), Arg::Of(constant)},
                               value.name, value.type, result, node));
  }

  void EmitKernel(const Kernel& k) {
    if (k.rows.valid()) {
      EmitDynamic(k);
      return;
    }
    const Node& node = from_.node(k.anchor);
    const bool conv = IsFamily(k.anchor, Family::kConv);
    const ValueId x = *TensorArg(node, "input");
    const NodeId last = k.quantize.valid()    ? k.quantize
                        : k.post.valid()      ? k.post
                        : k.float_sum.valid() ? k.float_sum
                                              : k.anchor;
    const ValueId result = from_.node(last).outputs[0];
    const ValueId weight = Def(*TensorArg(node, "weight"))->args[0].value;
    const Type x_type = Retyped(from_.value(x).type, at::kByte);
    Sizes x_sizes = x_type.sizes;
    ValueId bytes = Bytes(x);
    if (conv) {
      const Convolution c = *ConvolutionOf(k.anchor);
      bytes = PaddedAtEnd(c, bytes, x_type, Dequantized(x)->zero_point, node, &out_);
      x_sizes = SizesAtEnd(c, std::move(x_sizes));
    }
    std::vector<Arg> args{Arg::Of(bytes)};
    if (k.add.valid()) args.push_back(Arg::Of(Accumulator(k.other, node)));
    const onednn::Layer layer = LayerOf(k);
    const at::Tensor kernel = FrozenKernel(frozen_, layer, x_sizes, [&] { return ByOutput(layer); });
    args.push_back(Arg::Of(out_.AddConstant(from_.value(weight).name + "_kernel", kernel)));
    if (k.float_sum.valid()) {
      Materialise(k.addend, from_.node(k.float_sum));
      args.push_back(Arg::Of(out_.at(k.addend)));
    }
    const char* op = k.add.valid()         ? "frametap::qconv_add"
                     : conv                ? "frametap::qconv"
                     : k.float_sum.valid() ? "frametap::packed_linear"
                                           : "frametap::qlinear";
    const Value& value = from_.value(result);
    ValueId now = out_.Emit(FindOperator(op), std::move(args), value.name, value.type, result, node);
    if (k.quantize.valid()) {
      now = Limited(now, ParamsOf(from_.node(k.quantize)), node);
    } else if (conv) {
      now = out_.Emit(FindOperator("frametap::planes"), {Arg::Of(now)}, value.name, value.type, result, node);
    }
    out_.Map(result, now);
  }

  // The kernels saturate at 255; a narrower range is cut afterwards.
  ValueId Limited(ValueId bytes, const Params& p, const Node& like) {
    if (p.qmax >= 255) return bytes;
    const Value value = out_.graph.value(bytes);
    return out_.Emit(FindOperator("aten::clamp_max"), {Arg::Of(bytes), Arg::Const(p.qmax)}, value.name, value.type,
                     ValueId(), like);
  }

  void EmitByteOp(const ByteOp& b) {
    const Node& node = from_.node(b.op);
    const Family family = FamilyOf(node);
    const Node& quantize = from_.node(b.quantize);
    const Params p = ParamsOf(quantize);
    const ValueId result = quantize.outputs[0];
    const Value& value = from_.value(result);
    std::vector<Arg> args;
    const char* op = nullptr;
    const char* overload = "";
    const auto constant = [&](const char* name) { return Arg::Const(*ConstInts(FindArg(node, name))); };
    const auto zero = Arg::Const(p.zero_point);
    const auto first = [&] { return Arg::Of(Bytes(node.args[0].value)); };
    switch (family) {
      case Family::kAdd: {
        const ValueId left = node.args[0].value;
        const ValueId right = node.args[1].value;
        const Params l = *Dequantized(left);
        const Params r = *Dequantized(right);
        const double factor = *ConstNumber(FindArg(node, "alpha")) * (Is(node, "aten::sub", "Tensor") ? -1 : 1);
        op = "frametap::qadd";
        args = {
            Arg::Of(Bytes(left)),         Arg::Const(l.scale),      Arg::Const(l.zero_point),  Arg::Of(Bytes(right)),
            Arg::Const(r.scale * factor), Arg::Const(r.zero_point), Arg::Const(p.scale),       zero,
            Arg::Const(p.qmin),           Arg::Const(p.qmax),       Arg::Const(b.relu.valid())};
        break;
      }
      case Family::kMul: {
        const Params l = *Dequantized(node.args[0].value);
        const Params r = *Dequantized(node.args[1].value);
        op = "frametap::qmul";
        args = {first(),
                Arg::Const(l.zero_point),
                Arg::Of(Bytes(node.args[1].value)),
                Arg::Const(r.zero_point),
                Arg::Const(l.scale * r.scale),
                Arg::Const(p.scale),
                zero,
                Arg::Const(p.qmin),
                Arg::Const(p.qmax)};
        break;
      }
      case Family::kCurve:
        op = "frametap::qcurve";
        args = {first(),
                Arg::Of(out_.AddConstant(value.name + "_table", TableOf(node, *Dequantized(node.args[0].value), p)))};
        break;
      case Family::kRelu:
        op = "aten::clamp_min";
        args = {first(), zero};
        break;
      case Family::kMaxPool:
        op = "frametap::qmax_pool2d";
        args = {first(),
                constant("kernel_size"),
                constant("stride"),
                constant("padding"),
                constant("dilation"),
                *FindArg(node, "ceil_mode")};
        break;
      case Family::kAvgPool:
        op = "frametap::qavg_pool2d";
        args = {first(),
                zero,
                constant("kernel_size"),
                constant("stride"),
                constant("padding"),
                *FindArg(node, "ceil_mode"),
                *FindArg(node, "count_include_pad"),
                *FindArg(node, "divisor_override")};
        break;
      case Family::kAdaptivePool:
        op = "frametap::qadaptive_avg_pool2d";
        args = {first(), zero, constant("output_size")};
        break;
      case Family::kMean: {
        const Type& type = value.type;
        const ValueId pooled =
            out_.Emit(FindOperator("frametap::qadaptive_avg_pool2d"),
                      {first(), zero, Arg::Const(std::vector<int64_t>{1, 1})}, value.name, type, ValueId(), node);
        if (ConstBool(FindArg(node, "keepdim")) == true) {
          out_.Map(result, pooled);
          return;
        }
        op = "aten::flatten";
        overload = "using_ints";
        args = {Arg::Of(pooled), Arg::Const(int64_t{1}), Arg::Const(int64_t{3})};
        break;
      }
      case Family::kCat: {
        std::vector<Arg> parts;
        for (ValueId v : ActivationsOf(node, family)) parts.push_back(Arg::Of(Bytes(v)));
        args = {Arg::List(std::move(parts)), node.args[1]};
        out_.Map(result, out_.Emit(*node.op, std::move(args), value.name, value.type, result, node));
        return;
      }
      default: {  // kShape, kMove
        if (Is(node, "aten::contiguous")) {
          out_.Map(result, Bytes(node.args[0].value));
          return;
        }
        Node now = node;
        if (Is(node, "aten::view")) now.op = FindOperator("aten::reshape");
        args = {first()};
        for (size_t i = 1; i < node.args.size(); ++i) {
          // Zero as a byte; a padding with elements of the input takes no value.
          const bool is_zero = &node.args[i] == FindArg(node, "value") && PadsWithNumber(node);
          args.push_back(is_zero ? Arg::Const(static_cast<double>(p.zero_point)) : out_.Args({node.args[i]})[0]);
        }
        out_.Map(result, out_.Emit(*now.op, std::move(args), value.name, value.type, result, node));
        return;
      }
    }
    out_.Map(result, out_.Emit(FindOperator(op, overload), std::move(args), value.name, value.type, result, node));
  }

  // L3. A copy changes which values share memory, so each one starts the search again.
  void CopyLiveAccumulators() {
    Graph& g = out_.graph;
    const c10::OperatorHandle clone = FindOperator("aten::clone");
    for (std::optional<size_t> at = FirstLiveAccumulator(); at; at = FirstLiveAccumulator()) {
      Arg& accumulator = g.nodes[*at].args[kAccumulatorArg];
      const Value value = g.value(accumulator.value);
      Node copy;
      copy.op = clone;
      copy.args = {Arg::Of(accumulator.value), Arg::Const(c10::IValue())};
      copy.outputs = {out_.NewValue(value.name + "_copy", value.type, ValueId())};
      copy.state = g.nodes[*at].state;
      copy.where = g.nodes[*at].where;
      accumulator.value = copy.outputs[0];
      g.nodes.insert(g.nodes.begin() + static_cast<std::ptrdiff_t>(*at), std::move(copy));
      for (Fate& fate : step_.fates) {
        if (fate.now.valid() && fate.now.raw() >= *at) fate.now = NodeId(fate.now.raw() + 1);
      }
      std::vector<Node> nodes = std::move(g.nodes);
      g.nodes.clear();
      for (Node& node : nodes) g.AddNode(std::move(node));
    }
  }

  std::optional<size_t> FirstLiveAccumulator() const {
    const Graph& g = out_.graph;
    const Aliases aliases(g);
    std::vector<bool> defined(g.values.size(), false);
    for (ValueId v : g.inputs) defined[v.raw()] = true;
    for (size_t i = 0; i < g.nodes.size(); ++i) {
      const Node& node = g.nodes[i];
      if (Is(node, "frametap::qconv_add")) {
        const ValueId accumulator = node.args[kAccumulatorArg].value;
        // A value that is named only later was written by the kernel, or made from its result.
        bool live = aliases.same(node.args[0].value, accumulator);
        const auto look = [&](ValueId v) { live = live || (defined[v.raw()] && aliases.same(v, accumulator)); };
        for (size_t j = i + 1; j < g.nodes.size(); ++j) ForEachUse(g.nodes[j].args, look);
        for (ValueId v : g.outputs) look(v);
        for (ValueId v : g.inputs) live = live || aliases.same(v, accumulator);
        if (live) return i;
      }
      for (ValueId v : node.outputs) defined[v.raw()] = true;
    }
    return std::nullopt;
  }

  const Graph& from_;
  FrozenWeights* const frozen_;
  const Uses uses_;
  Step step_;
  Rewrite& out_ = step_.rewrite;
  absl::flat_hash_map<ValueId, at::Tensor> constants_;
  std::vector<bool> absorbed_;
  absl::flat_hash_map<NodeId, Kernel> kernel_at_;
  absl::flat_hash_map<NodeId, ByteOp> byte_op_at_;
};

}  // namespace

Step LowerNormal(const Normal& reference, FrozenWeights* frozen) {
  return Lowering(reference.graph, &reference.origin, frozen).Run();
}

absl::StatusOr<Graph> Lower(const Graph& reference, FrozenWeights* frozen) {
  RegisterOperators();
  if (absl::Status loaded = onednn::Load(); !loaded.ok()) return loaded;
  try {
    return Lowering(reference, nullptr, frozen).Run().rewrite.graph;
  } catch (const c10::Error& e) {
    return absl::UnimplementedError(absl::StrCat("lowering to int8 kernels: ", e.what_without_backtrace()));
  }
}

}  // namespace frametap::quant
