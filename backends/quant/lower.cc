// Lower: the reference graph on int8 kernels. Patterns of dequantize, op, quantize become one op on bytes.
//   L1  A kernel is emitted where its last op stood: all it reads exists by then.
//   L2  A dequantize is emitted when a float op first needs it, else never.
//   L3  Floats are contiguous wherever the reference has them so: a view of them stays legal. Views of bytes become
//       reshapes, since images are channels_last there.
//   L4  Floats that attention rounds to bfloat16 are made in it (halves.h). Such a value has a name of its own.
//   L5  A layer norm whose result one op quantizes gives bytes, and floats if they are read as well. Nothing writes to them.
// Not here: the patterns (patterns.h), copies of residuals that are written over (accumulators.h).
#include <c10/core/MemoryFormat.h>

#include "absl/strings/str_cat.h"
#include "backends/onednn/library.h"
#include "backends/quant/accumulators.h"
#include "backends/quant/attention_ops.h"
#include "backends/quant/convolution.h"
#include "backends/quant/curves.h"
#include "backends/quant/halves.h"
#include "backends/quant/kernel_tensor.h"
#include "backends/quant/layer_norm.h"
#include "backends/quant/lower.h"
#include "backends/quant/op_table.h"
#include "backends/quant/operators.h"
#include "backends/quant/patterns.h"
#include "backends/quant/quantize.h"
#include "backends/quant/recurrence.h"
#include "backends/quant/rewrite.h"
#include "backends/quant/states.h"

namespace frametap::quant {
namespace {

onednn::Quantization QuantizationOf(const Params& p) {
  return {static_cast<float>(p.scale), static_cast<int32_t>(p.zero_point)};
}

class Lowering {
 public:
  Lowering(const Graph& from, const std::vector<ValueId>* origin, FrozenWeights* frozen)
      : from_(from),
        frozen_(frozen),
        patterns_(from),
        is_half_(FindHalves(from, patterns_)),
        is_written_(WrittenMemory(from)),
        step_{Rewrite(from, origin), std::vector<NodeDisposition>(from.nodes.size())} {}

  Step Run() {
    for (size_t i = 0; i < from_.nodes.size(); ++i) {
      const NodeId n(i);
      const Node& node = from_.node(n);
      if (const Kernel* const kernel = patterns_.KernelAt(n)) {
        EmitKernel(*kernel);
        NoteKernel(kernel->anchor);
        continue;
      }
      if (const ByteOp* const op = patterns_.ByteOpAt(n)) {
        EmitByteOp(*op);
        NoteKernel(op->op);
        continue;
      }
      if (patterns_.IsTaken(n) || IsDequantize(node)) continue;
      if (Is(node, "frametap::quantize_per_tensor") && out_.has(node.outputs[0])) {
        const NodeId norm = from_.value(node.args[0].value).def;
        step_.fates[i].folded = absl::StrCat("in the kernel of ", NameWithPlace(from_.node(norm)));
        continue;
      }
      if (const NodeId quantize = QuantizeAfterNorm(n); quantize.valid()) {
        EmitNorm(node, from_.node(quantize));
      } else if (Is(node, "frametap::quantize_per_tensor")) {
        EmitQuantize(node);
        step_.fates[i].is_int8 = true;
      } else if (IsState(node)) {  // it is read before the next write
        Materialise(node.args, node);
        out_.Map(node.outputs[0], out_.at(node.args[0].value));
        step_.fates[i].folded = "it shares the memory of its argument";
        continue;
      } else if (IsRecurrence(node)) {
        EmitRecurrence(node);
      } else {
        Materialise(node.args, node);
        if (!EmitHalf(node)) EmitFloat(node);
      }
      step_.fates[i].now = LastNode();
    }
    for (ValueId v : from_.outputs) Materialise(v, Node());
    out_.CopyOutputs();
    NoteTheRest();
    CopyLiveAccumulators(&step_);
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
    for (const auto& [last, k] : patterns_.kernels()) {
      for (const NodeId part : {k.add, k.post, k.quantize, k.float_sum}) fold(part, k.anchor);
    }
    for (const auto& [last, b] : patterns_.byte_ops()) {
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

  void EmitRecurrence(const Node& node) {
    const auto& weights = node.args[2].items;
    const auto& biases = node.args[3].items;
    const int bits = static_cast<int>(*ConstInt(FindArg(node, "bits")));
    std::vector<Arg> kernels;
    for (size_t i = 0; i < weights.size(); ++i) {
      const Node* const weight = patterns_.Def(weights[i].value);
      onednn::Layer layer;
      layer.weight = *patterns_.ConstantOf(weight->args[0].value);
      layer.scales = *patterns_.ConstantOf(weight->args[1].value);
      if (!biases.empty()) layer.bias = *patterns_.ConstantOf(biases[i].value);
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

  bool IsHalf(ValueId v) const { return is_half_[v.raw()]; }
  Type TypeOf(ValueId v) const {
    const Type& type = from_.value(v).type;
    return IsHalf(v) ? Retyped(type, at::kBFloat16) : type;
  }
  std::string NameOf(ValueId v) const { return from_.value(v).name + (IsHalf(v) ? "_half" : ""); }

  // L4. Emits a node that makes a half. Returns false for others.
  bool EmitHalf(const Node& node) {
    if (node.outputs.size() != 1) return false;
    const ValueId result = node.outputs[0];
    const bool makes_half = IsHalf(result) || (IsBfloat16Attention(node) && IsHalf(*TensorArg(node, "query")));
    if (!makes_half) return false;
    const Value& value = from_.value(result);
    const ValueId now = out_.Emit(*node.op, out_.Args(node.args), value.name + "_half",
                                  Retyped(value.type, at::kBFloat16), result, node);
    out_.Map(result, IsHalf(result) ? now : out_.EmitConversion(now, at::kFloat, result, node));
    return true;
  }

  // The bytes of a dequantized value, in the new graph.
  ValueId Bytes(ValueId dequantized) { return out_.at(patterns_.Def(dequantized)->args[0].value); }

  // L2.
  void Materialise(ValueId v, const Node& reader) {
    const Node* def = patterns_.Def(v);
    if (def == nullptr || !IsDequantize(*def) || out_.has(v)) return;
    Node now = *def;
    now.state = reader.state;
    Materialise(now.args, reader);
    out_.Copy(now);
  }
  void Materialise(const std::vector<Arg>& args, const Node& reader) {
    ForEachUse(args, [&](ValueId v) { Materialise(v, reader); });
  }

  // L5. The op that quantizes the result of `n`, or an invalid id.
  NodeId QuantizeAfterNorm(NodeId n) const {
    const Node& node = from_.node(n);
    if (!IsPlainNorm(from_, node) || is_written_[node.outputs[0].raw()]) return NodeId();
    for (const NodeId reader : patterns_.uses().nodes[node.outputs[0].raw()]) {
      const Node& quantize = from_.node(reader);
      const bool takes = Is(quantize, "frametap::quantize_per_tensor") && !patterns_.IsTaken(reader);
      if (takes && !FeedsImages(quantize.outputs[0])) return reader;
    }
    return NodeId();
  }

  void EmitNorm(const Node& norm, const Node& quantize) {
    const Params p = ParamsOf(quantize);
    const ValueId floats = norm.outputs[0], bytes = quantize.outputs[0];
    Materialise(norm.args, norm);
    std::vector<Arg> args = out_.Args({norm.args.begin(), norm.args.begin() + 5});
    for (const Arg& arg : {Arg::Const(p.scale), Arg::Const(p.zero_point), Arg::Const(p.qmin), Arg::Const(p.qmax)}) {
      args.push_back(arg);
    }
    const Value& value = from_.value(bytes);
    if (patterns_.uses().count(floats) == 1) {
      out_.Map(bytes, out_.Emit(FindOperator("frametap::layer_norm_to_bytes"), std::move(args), value.name, value.type,
                                bytes, norm));
      return;
    }
    const Value& both = from_.value(floats);
    const auto made = out_.EmitAll(FindOperator("frametap::layer_norm_with_bytes"), std::move(args),
                                   {{both.name, both.type, floats}, {value.name, value.type, bytes}}, norm);
    out_.Map(floats, made[0]);
    out_.Map(bytes, made[1]);
  }

  void EmitFloat(const Node& node) {
    Node now = node;
    if (IsPlainNorm(from_, node)) now.op = *QuickerOperator(node);
    if (IsAttention(node) && !IsUnderAutocast(from_, node)) now.op = Float32Form(node);
    out_.CopyWith(std::move(now), out_.Args(node.args));
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
    for (const NodeId reader : patterns_.uses().nodes[bytes.raw()]) {
      if (!IsDequantize(from_.node(reader))) continue;
      for (const NodeId n : patterns_.uses().nodes[from_.node(reader).outputs[0].raw()]) {
        if (!patterns_.IsTaken(n)) continue;
        switch (FamilyOf(from_.node(n))) {
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
                             "frametap::max_pool2d", "frametap::qavg_pool2d", "frametap::qadaptive_avg_pool2d"}) {
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

  ValueId ResultOf(const Kernel& k) const {
    const NodeId last = k.quantize.valid()    ? k.quantize
                        : k.post.valid()      ? k.post
                        : k.float_sum.valid() ? k.float_sum
                                              : k.anchor;
    return from_.node(last).outputs[0];
  }

  onednn::Layer LayerOf(const Kernel& k) const {
    const Node& node = from_.node(k.anchor);
    const ValueId x = *TensorArg(node, "input");
    const Node& weight = *patterns_.Def(*TensorArg(node, "weight"));
    onednn::Layer layer;
    layer.weight = *patterns_.ConstantOf(weight.args[0].value);
    layer.scales = *patterns_.ConstantOf(weight.args[1].value);
    if (const auto bias = TensorArg(node, "bias")) layer.bias = *patterns_.ConstantOf(*bias);
    layer.x = QuantizationOf(*patterns_.Dequantized(x));
    if (k.quantize.valid()) layer.out = QuantizationOf(ParamsOf(from_.node(k.quantize)));
    if (k.add.valid()) layer.accumulator = QuantizationOf(*patterns_.Dequantized(k.other));
    if (k.post.valid()) SetCurve(*patterns_.PostOf(k.post, k.add.valid()), &layer);
    layer.has_addend = k.float_sum.valid();
    layer.gives_bfloat16 = IsHalf(ResultOf(k));
    if (patterns_.IsFamily(k.anchor, Family::kConv)) SetNumbers(*patterns_.ConvolutionOf(k.anchor), &layer);
    return layer;
  }

  void EmitDynamic(const Kernel& k) {
    const Node& node = from_.node(k.anchor);
    const Node& weight = *patterns_.Def(*TensorArg(node, "weight"));
    onednn::Layer layer;
    layer.weight = *patterns_.ConstantOf(weight.args[0].value);
    layer.scales = *patterns_.ConstantOf(weight.args[1].value);
    if (const auto bias = TensorArg(node, "bias")) layer.bias = *patterns_.ConstantOf(*bias);
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
    const bool conv = patterns_.IsFamily(k.anchor, Family::kConv);
    const ValueId x = *TensorArg(node, "input");
    const ValueId result = ResultOf(k);
    const ValueId weight = patterns_.Def(*TensorArg(node, "weight"))->args[0].value;
    const Type x_type = Retyped(from_.value(x).type, at::kByte);
    Sizes x_sizes = x_type.sizes;
    ValueId bytes = Bytes(x);
    if (conv) {
      const Convolution c = *patterns_.ConvolutionOf(k.anchor);
      bytes = PaddedAtEnd(c, bytes, x_type, patterns_.Dequantized(x)->zero_point, node, &out_);
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
    ValueId now = out_.Emit(FindOperator(op), std::move(args), NameOf(result), TypeOf(result), result, node);
    if (k.quantize.valid()) {
      now = Limited(now, ParamsOf(from_.node(k.quantize)), node);
    } else if (conv && !IsLaidOutAlone(result)) {
      now = out_.Emit(FindOperator("frametap::planes"), {Arg::Of(now)}, value.name, value.type, result, node);
    }
    out_.Map(result, now);
  }

  // Whether the next op makes the layout anyway.
  bool IsLaidOutAlone(ValueId v) const {
    const NodeId reader = patterns_.uses().sole(v);
    return reader.valid() && Is(from_.node(reader), "frametap::laid_out");
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
    const auto average = [&](const std::vector<Arg>& rest) {
      const Params q = *patterns_.Dequantized(node.args[0].value);
      std::vector<Arg> all{first(), Arg::Const(q.scale), Arg::Const(q.zero_point), Arg::Const(p.scale),
                           zero,    Arg::Const(p.qmin),  Arg::Const(p.qmax)};
      all.insert(all.end(), rest.begin(), rest.end());
      return all;
    };
    switch (family) {
      case Family::kAdd: {
        const ValueId left = node.args[0].value;
        const ValueId right = node.args[1].value;
        const Params l = *patterns_.Dequantized(left);
        const Params r = *patterns_.Dequantized(right);
        const double factor = *ConstNumber(FindArg(node, "alpha")) * (Is(node, "aten::sub", "Tensor") ? -1 : 1);
        op = "frametap::qadd";
        args = {
            Arg::Of(Bytes(left)),         Arg::Const(l.scale),      Arg::Const(l.zero_point),  Arg::Of(Bytes(right)),
            Arg::Const(r.scale * factor), Arg::Const(r.zero_point), Arg::Const(p.scale),       zero,
            Arg::Const(p.qmin),           Arg::Const(p.qmax),       Arg::Const(b.relu.valid())};
        break;
      }
      case Family::kMul: {
        const Params l = *patterns_.Dequantized(node.args[0].value);
        const Params r = *patterns_.Dequantized(node.args[1].value);
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
        args = {first(), Arg::Of(out_.AddConstant(value.name + "_table",
                                                  TableOf(node, *patterns_.Dequantized(node.args[0].value), p)))};
        break;
      case Family::kRelu:
        op = "aten::clamp_min";
        args = {first(), zero};
        break;
      case Family::kAvgPool:
        op = "frametap::qavg_pool2d";
        args = average({constant("kernel_size"), constant("stride"), constant("padding"), *FindArg(node, "ceil_mode"),
                        *FindArg(node, "count_include_pad"), *FindArg(node, "divisor_override")});
        break;
      case Family::kAdaptivePool:
        op = "frametap::qadaptive_avg_pool2d";
        args = average({constant("output_size")});
        break;
      case Family::kMean: {
        const Type& type = value.type;
        const ValueId pooled =
            out_.Emit(FindOperator("frametap::qadaptive_avg_pool2d"), average({Arg::Const(std::vector<int64_t>{1, 1})}),
                      value.name, type, ValueId(), node);
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
        for (ValueId v : ActivationsOf(node)) parts.push_back(Arg::Of(Bytes(v)));
        args = {Arg::List(std::move(parts)), node.args[1]};
        const auto quicker = QuickerOperator(node);
        out_.Map(result, out_.Emit(quicker.value_or(*node.op), std::move(args), value.name, value.type, result, node));
        return;
      }
      default: {  // kShape, kMove, kMaxPool
        if (Is(node, "aten::contiguous")) {
          out_.Map(result, Bytes(node.args[0].value));
          return;
        }
        c10::OperatorHandle now = QuickerOperator(node).value_or(*node.op);
        if (Is(node, "aten::view")) now = FindOperator("aten::reshape");
        args = {first()};
        for (size_t i = 1; i < node.args.size(); ++i) {
          // Zero as a byte; a padding with elements of the input takes no value.
          const bool is_zero = &node.args[i] == FindArg(node, "value") && PadsWithNumber(node);
          args.push_back(is_zero ? Arg::Const(static_cast<double>(p.zero_point)) : out_.Args({node.args[i]})[0]);
        }
        out_.Map(result, out_.Emit(now, std::move(args), value.name, value.type, result, node));
        return;
      }
    }
    out_.Map(result, out_.Emit(FindOperator(op, overload), std::move(args), value.name, value.type, result, node));
  }

  const Graph& from_;
  FrozenWeights* const frozen_;
  const Patterns patterns_;
  const std::vector<bool> is_half_;     // by value of `from`
  const std::vector<bool> is_written_;  // by value of `from`
  Step step_;
  Rewrite& out_ = step_.rewrite;
};

}  // namespace

Step LowerNormal(const NormalizedGraph& reference, FrozenWeights* frozen) {
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
