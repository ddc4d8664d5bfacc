// Lower: the reference graph on int8 kernels. Patterns of dequantize, op, quantize become one op on bytes.
//   L1  A kernel is emitted where its last op stood: all it reads exists by then.
//   L2  A dequantize is emitted when a float op first needs it, else never.
//   L3  The sum of a residual is written into its accumulator only if nobody reads that memory afterwards; else a copy.
//   L4  Floats are contiguous wherever the reference has them so: a view of them stays legal. Views of bytes become
//       reshapes, since images are channels_last there.
#include <c10/core/MemoryFormat.h>

#include <algorithm>
#include <bit>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "backends/quant/onednn_adapter.h"
#include "backends/quant/op_table.h"
#include "backends/quant/operators.h"
#include "backends/quant/quantize.h"
#include "backends/quant/rewrite.h"

namespace frametap::quant {
namespace {

// Position of `qaccum` among the arguments that ConvSumArgs gives.
constexpr size_t kAccumulatorArg = 6;

// A kernel with a weight, found in the reference graph.
struct Kernel {
  NodeId anchor;
  NodeId add;       // or invalid
  NodeId post;      // or invalid
  NodeId quantize;  // or invalid: f32 result
  ValueId other;    // with `add`: the other addend (dequantized)
};

// An op on bytes without a weight.
struct ByteOp {
  NodeId op;
  NodeId relu;  // of an add, or invalid
  NodeId quantize;
};

class Lowering {
 public:
  Lowering(const Graph& from, const Int8Kernels& kernels, FrozenWeights* frozen)
      : from_(from), kernels_(kernels), frozen_(frozen), uses_(from), out_(from, nullptr) {
    for (const auto& [v, tensor] : from.constants) constants_.emplace(v, tensor);
  }

  Graph Run() {
    Find();
    for (size_t i = 0; i < from_.nodes.size(); ++i) {
      const NodeId n(i);
      const Node& node = from_.node(n);
      if (const auto kernel = kernel_at_.find(n); kernel != kernel_at_.end()) {
        EmitKernel(kernel->second);
      } else if (const auto op = byte_op_at_.find(n); op != byte_op_at_.end()) {
        EmitByteOp(op->second);
      } else if (absorbed_[i] || IsDequantize(node)) {
        continue;
      } else if (Is(node, "frametap::quantize_per_tensor")) {
        EmitQuantize(node);
      } else {
        Materialise(node.args, node);
        out_.Copy(node);
      }
    }
    for (ValueId v : from_.outputs) Materialise(v, Node());
    out_.CopyOutputs();
    CopyLiveAccumulators();
    return std::move(out_.graph);
  }

 private:
  static bool IsDequantize(const Node& node) {
    return Is(node, "frametap::dequantize_per_tensor") || Is(node, "frametap::dequantize_per_channel");
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
  bool IsFamily(NodeId n, Family f) const { return n.valid() && Row(n) != nullptr && Row(n)->family == f; }

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
    if (!x || !w || !Dequantized(*x)) return;
    const Node* weight = Def(*w);
    if (weight == nullptr || !Is(*weight, "frametap::dequantize_per_channel")) return;
    for (size_t i = 0; i < 3; ++i) {
      if (weight->args[i].kind != Arg::Kind::kValue || ConstantOf(weight->args[i].value) == nullptr) return;
    }
    const Arg* bias = FindArg(node, "bias");
    if (bias != nullptr && !IsNone(bias) && (bias->kind != Arg::Kind::kValue || !ConstantOf(bias->value))) return;
    if (IsFamily(n, Family::kConv) && !Is(node, "aten::conv2d")) return;

    Kernel k;
    k.anchor = n;
    NodeId last = n;
    NodeId next = uses_.sole(node.outputs[0]);
    if (IsFamily(n, Family::kConv) && IsFamily(next, Family::kAdd)) {
      const auto a = TensorArg(from_.node(next), "self");
      const auto b = TensorArg(from_.node(next), "other");
      const ValueId other = a && *a == node.outputs[0] ? b.value_or(ValueId()) : a.value_or(ValueId());
      NodeId after = uses_.sole(from_.node(next).outputs[0]);
      if (IsFamily(after, Family::kRelu)) after = uses_.sole(from_.node(after).outputs[0]);
      const bool ends_in_bytes = after.valid() && Is(from_.node(after), "frametap::quantize_per_tensor");
      if (other.valid() && Dequantized(other) && ends_in_bytes &&
          from_.value(other).type.sizes == from_.value(node.outputs[0]).type.sizes &&
          ConstNumber(FindArg(from_.node(next), "alpha")) == 1.0 && !absorbed_[next.raw()]) {
        k.add = last = next;
        k.other = other;
        next = uses_.sole(from_.node(next).outputs[0]);
      }
    }
    if (next.valid() && !absorbed_[next.raw()] && PostOf(next, n, k.add.valid())) {
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

  // The post op that `n` is for the kernel of `anchor`.
  std::optional<PostOp> PostOf(NodeId n, NodeId anchor, bool after_sum) const {
    const Node& node = from_.node(n);
    PostOp post;
    if (Is(node, "aten::relu")) {
      post.name = "relu";
      return post;
    }
    if (after_sum) return std::nullopt;
    if (IsFamily(anchor, Family::kLinear)) {
      if (!Is(node, "aten::gelu")) return std::nullopt;
      const Arg* form = FindArg(node, "approximate");
      if (form == nullptr || form->kind != Arg::Kind::kConst || !form->constant.isString()) return std::nullopt;
      post.name = "gelu";
      post.algorithm = form->constant.toStringRef();
      return post;
    }
    if (Is(node, "aten::hardtanh") || Is(node, "aten::relu6")) {
      const bool six = Is(node, "aten::relu6");
      const auto lo = six ? 0.0 : ConstNumber(FindArg(node, "min_val"));
      const auto hi = six ? 6.0 : ConstNumber(FindArg(node, "max_val"));
      if (!lo || !hi) return std::nullopt;
      post.name = "hardtanh";
      post.numbers = {*lo, *hi};
      return post;
    }
    if (Is(node, "aten::hardswish")) post.name = "hardswish";
    if (Is(node, "aten::silu")) post.name = "swish";
    if (post.name == "none") return std::nullopt;
    return post;
  }

  std::vector<ValueId> ActivationsOf(const Node& node, Family family) const {
    std::vector<ValueId> out;
    if (family == Family::kCat) {
      ForEachUse({node.args[0]}, [&](ValueId v) { out.push_back(v); });
    } else if (family == Family::kAdd) {
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
    const Family family = Row(n)->family;
    ByteOp op;
    op.op = n;
    switch (family) {
      case Family::kAdd: {
        // The kernel of a convolution that comes later may still take this add in.
        if (ConstNumber(FindArg(node, "alpha")) != 1.0) return;
        const NodeId next = uses_.sole(node.outputs[0]);
        if (IsFamily(next, Family::kRelu)) op.relu = next;
        break;
      }
      case Family::kRelu:
      case Family::kMaxPool:
      case Family::kAvgPool:
      case Family::kAdaptivePool:
      case Family::kMean:
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
    if (inputs.empty() || (family == Family::kAdd && inputs.size() != 2)) return;
    for (ValueId v : inputs) {
      const auto p = Dequantized(v);
      if (!p) return;
      if (family != Family::kAdd && (p->scale != out.scale || p->zero_point != out.zero_point)) return;
      if (family == Family::kAdd && from_.value(v).type.sizes != from_.value(node.outputs[0]).type.sizes) return;
    }
    for (const NodeId part : {op.op, op.relu, op.quantize}) {
      if (part.valid()) absorbed_[part.raw()] = true;
    }
    byte_op_at_.emplace(op.quantize, op);
  }

  // The bytes behind a dequantized value, in the new graph.
  ValueId Bytes(ValueId dequantized) { return out_.at(Def(dequantized)->args[0].value); }

  // L2.
  void Materialise(ValueId v, const Node& reader) {
    const Node* def = Def(v);
    if (def == nullptr || !IsDequantize(*def) || out_.has(v)) return;
    Node now = *def;
    now.state = reader.state;
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
    if (from_.value(bytes).type.sizes.size() != 4) return false;
    for (const NodeId reader : uses_.nodes[bytes.raw()]) {
      if (!IsDequantize(from_.node(reader))) continue;
      for (const NodeId n : uses_.nodes[from_.node(reader).outputs[0].raw()]) {
        if (Row(n) == nullptr || !absorbed_[n.raw()]) continue;
        switch (Row(n)->family) {
          case Family::kConv:
          case Family::kMaxPool:
          case Family::kAvgPool:
          case Family::kAdaptivePool:
          case Family::kMean:
            return true;
          default:
            break;
        }
      }
    }
    return false;
  }

  // The kernel takes dense images that are channels_last: those of a slice, or what was a matrix, are copied.
  ValueId Accumulator(ValueId dequantized, const Node& reader) {
    const ValueId bytes = Bytes(dequantized);
    const Value value = out_.graph.value(bytes);
    const Node* def = value.def.valid() ? &out_.graph.node(value.def) : nullptr;
    if (def != nullptr && Is(*def, "onednn::qconv2d_pointwise", "binary")) return bytes;
    for (const char* name : {"onednn::qconv_pointwise", "frametap::quantize_per_tensor_channels_last",
                             "frametap::qmax_pool2d", "frametap::qavg_pool2d", "frametap::qadaptive_avg_pool2d"}) {
      if (def != nullptr && Is(*def, name)) return bytes;
    }
    return out_.Emit(FindOperator("aten::contiguous"),
                     {Arg::Of(bytes), Arg::Const(static_cast<int64_t>(at::MemoryFormat::ChannelsLast))},
                     value.name + "_dense", value.type, ValueId(), reader);
  }

  static std::string TextOf(const Params& x, const ConvShape& shape) {
    return absl::StrCat("packed for conv ", std::bit_cast<uint64_t>(x.scale), " ", x.zero_point, " ",
                        absl::StrJoin(shape.stride, ","), " ", absl::StrJoin(shape.padding, ","), " ",
                        absl::StrJoin(shape.dilation, ","), " ", shape.groups);
  }

  static std::vector<int64_t> Pair(std::vector<int64_t> list) {
    if (list.size() == 1) list.push_back(list[0]);
    return list;
  }

  void EmitKernel(const Kernel& k) {
    const Node& node = from_.node(k.anchor);
    const bool conv = IsFamily(k.anchor, Family::kConv);
    const ValueId x = *TensorArg(node, "input");
    const Node& weight = *Def(*TensorArg(node, "weight"));
    const NodeId last = k.quantize.valid() ? k.quantize : k.post.valid() ? k.post : k.anchor;
    const ValueId result = from_.node(last).outputs[0];

    KernelCall call;
    call.x = Bytes(x);
    call.x_params = *Dequantized(x);
    call.scales = out_.at(weight.args[1].value);
    call.zero_points = out_.at(weight.args[2].value);
    if (const auto bias = TensorArg(node, "bias")) call.bias = out_.at(*bias);
    if (k.quantize.valid()) call.out = ParamsOf(from_.node(k.quantize));
    if (k.post.valid()) call.post = *PostOf(k.post, k.anchor, k.add.valid());

    const at::Tensor& bytes = *ConstantOf(weight.args[0].value);
    const Sizes& sizes = from_.value(x).type.sizes;
    const std::string name = from_.value(weight.args[0].value).name + "_packed";
    std::vector<Arg> args;
    c10::OperatorHandle op = kernels_.linear;
    if (conv) {
      ConvShape shape;
      shape.stride = Pair(*ConstInts(FindArg(node, "stride")));
      shape.padding = Pair(*ConstInts(FindArg(node, "padding")));
      shape.dilation = Pair(*ConstInts(FindArg(node, "dilation")));
      shape.groups = *ConstInt(FindArg(node, "groups"));
      const at::Tensor& scales = *ConstantOf(weight.args[1].value);
      const auto packed = FrozenWeights::Of(frozen_, TextOf(call.x_params, shape), {bytes, scales}, [&] {
        return FrozenWeights::Tensors{PackConv(kernels_, bytes, scales, call.x_params, shape, sizes)};
      });
      call.weight = out_.AddConstant(name, packed[0]);
      op = k.add.valid() ? kernels_.conv_sum : kernels_.conv;
      args = k.add.valid() ? ConvSumArgs(call, shape, Accumulator(k.other, node), *Dequantized(k.other))
                           : ConvArgs(call, shape);
    } else {
      std::vector<int64_t> rows;
      if (!sizes.empty() && std::all_of(sizes.begin(), sizes.end(), [](int64_t s) { return s > 0; })) {
        rows = {1, sizes.back()};
        for (size_t i = 0; i + 1 < sizes.size(); ++i) rows[0] *= sizes[i];
      }
      const auto packed = FrozenWeights::Of(frozen_, "packed for linear", {bytes},
                                            [&] { return FrozenWeights::Tensors{PackLinear(kernels_, bytes, rows)}; });
      call.weight = out_.AddConstant(name, packed[0]);
      args = LinearArgs(call);
    }
    const Value& value = from_.value(result);
    ValueId now = out_.Emit(op, std::move(args), value.name, value.type, result, node);
    if (call.out) {
      now = Limited(now, *call.out, node);
    } else if (conv) {
      now = out_.Emit(FindOperator("aten::contiguous"),
                      {Arg::Of(now), Arg::Const(static_cast<int64_t>(at::MemoryFormat::Contiguous))}, value.name,
                      value.type, result, node);
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
    const Family family = Row(b.op)->family;
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
        op = "frametap::qadd";
        args = {Arg::Of(Bytes(left)), Arg::Const(l.scale),      Arg::Const(l.zero_point),  Arg::Of(Bytes(right)),
                Arg::Const(r.scale),  Arg::Const(r.zero_point), Arg::Const(p.scale),       zero,
                Arg::Const(p.qmin),   Arg::Const(p.qmax),       Arg::Const(b.relu.valid())};
        break;
      }
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
        op = "aten::cat";
        args = {Arg::List(std::move(parts)), node.args[1]};
        break;
      }
      default: {  // kShape
        if (Is(node, "aten::contiguous")) {
          out_.Map(result, Bytes(node.args[0].value));
          return;
        }
        Node now = node;
        if (Is(node, "aten::view")) now.op = FindOperator("aten::reshape");
        args = {first()};
        for (size_t i = 1; i < node.args.size(); ++i) args.push_back(out_.Args({node.args[i]})[0]);
        out_.Map(result, out_.Emit(*now.op, std::move(args), value.name, value.type, result, node));
        return;
      }
    }
    out_.Map(result, out_.Emit(FindOperator(op, overload), std::move(args), value.name, value.type, result, node));
  }

  // L3. A copy changes what shares memory with what, so each one starts the search anew.
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
      if (node.op && node.op->operator_name() == kernels_.conv_sum.operator_name()) {
        const ValueId accumulator = node.args[kAccumulatorArg].value;
        // What is named only later is what the kernel wrote, or made from it.
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
  const Int8Kernels& kernels_;
  FrozenWeights* const frozen_;
  const Uses uses_;
  Rewrite out_;
  absl::flat_hash_map<ValueId, at::Tensor> constants_;
  std::vector<bool> absorbed_;
  absl::flat_hash_map<NodeId, Kernel> kernel_at_;
  absl::flat_hash_map<NodeId, ByteOp> byte_op_at_;
};

}  // namespace

absl::StatusOr<Graph> Lower(const Graph& reference, FrozenWeights* frozen) {
  RegisterOperators();
  const auto kernels = FindInt8Kernels();
  if (!kernels.ok()) return kernels.status();
  try {
    return Lowering(reference, **kernels, frozen).Run();
  } catch (const c10::Error& e) {
    return absl::UnimplementedError(absl::StrCat("lowering to int8 kernels: ", e.what_without_backtrace()));
  }
}

}  // namespace frametap::quant
