#include "backends/freeze/freeze.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "backends/freeze/finite.h"
#include "backends/freeze/op_traits.h"
#include "backends/freeze/schemes.h"
#include "backends/onednn/library.h"
#include "backends/quant/annotate.h"
#include "backends/quant/attention_ops.h"
#include "backends/quant/convolution.h"
#include "backends/quant/curves.h"
#include "backends/quant/kernel_tensor.h"
#include "backends/quant/layer_norm.h"
#include "backends/quant/layouts.h"
#include "backends/quant/lower.h"
#include "backends/quant/normalise.h"
#include "backends/quant/op_table.h"
#include "backends/quant/operators.h"
#include "backends/quant/pixels.h"
#include "backends/quant/recurrence.h"
#include "backends/quant/rewrite.h"

namespace frametap::freeze {
namespace {

using quant::Family;
using quant::Is;
using quant::TensorArg;

constexpr char kOurs[] = "of frametap";

// A layer with the ops that its kernel takes in.
struct Kernel {
  const Scheme* scheme;
  NodeId layer;
  NodeId view;     // or invalid: between the layer and the ops below
  NodeId add;      // or invalid
  NodeId curve;    // or invalid
  ValueId addend;  // with `add`
  std::optional<quant::Convolution> convolution;
  NodeId last() const { return curve.valid() ? curve : add.valid() ? add : layer; }
};

struct Sequence {
  const Scheme* scheme;
  quant::Recurrence recurrence;
};

class Lowering {
 public:
  Lowering(const quant::NormalizedGraph& normal, const Config& config, quant::FrozenWeights* frozen)
      : normal_(normal),
        from_(normal.graph),
        config_(config),
        frozen_(frozen),
        uses_(from_),
        aliases_(from_),
        computed_with_(ComputedWith(from_)),
        elements_(ElementsOf(normal, computed_with_)),
        layouts_(quant::LayoutsOf(normal)),
        order_reader_(OrderReader(from_)),
        out_(from_, &normal.origin) {
    for (EagerState& state : out_.graph.states) {
      if (!config_.keeps_grad_mode) state.grad_mode = false;  // F6
    }
    kernel_of_.resize(from_.nodes.size());
    reason_.resize(from_.nodes.size());
    is_ours_.assign(from_.nodes.size(), false);
    dense_.resize(from_.values.size());
    converted_.resize(from_.values.size());
    is_image_.assign(from_.values.size(), false);
    is_half_.assign(from_.values.size(), false);
  }

  Graph Run() {
    for (size_t i = 0; i < from_.nodes.size(); ++i) {
      if (quant::IsLayer(from_.nodes[i])) Find(NodeId(i));
      if (quant::FamilyOf(from_.nodes[i]) == Family::kRecurrent) FindRecurrence(NodeId(i));
    }
    if (config_.products == Products::kBfloat16 && onednn::HasBfloat16Products()) FindHalves();
    for (size_t i = 0; i < from_.nodes.size(); ++i) {
      const NodeId n(i);
      const NodeId layer = kernel_of_[i];
      if (const auto recurrence = recurrences_.find(n); recurrence != recurrences_.end()) {
        EmitRecurrence(n, recurrence->second);
      } else if (!layer.valid()) {
        EmitOp(n);
      } else if (const Kernel& kernel = kernels_.at(layer); kernel.last() == n) {
        EmitKernel(kernel);
      }
    }
    for (ValueId v : from_.outputs) out_.graph.outputs.push_back(Read(v, Node(), true, false));
    return std::move(out_.graph);
  }

  // finite/N1
  std::vector<CheckedInput> CheckedInputs() const {
    std::vector<ValueId> lossy;
    for (const auto& [layer, kernel] : kernels_) {
      const bool mixes_neighbours = kernel.convolution && kernel.scheme->products == Products::kBfloat16;
      const auto op = kernel.curve.valid() ? quant::CurveOf(from_.node(kernel.curve)) : std::nullopt;
      if (mixes_neighbours || (op && LosesNaN(*op, IsTransposed(kernel)))) lossy.push_back(ResultOf(kernel));
    }
    return InputsToCheck(normal_, computed_with_, lossy);
  }

  bool IsInt8(NodeId n) const {
    if (FormOf(n) != Form::kKernel || is_ours_[n.raw()]) return false;
    const auto recurrence = recurrences_.find(n);
    const Scheme& scheme = recurrence != recurrences_.end() ? *recurrence->second.scheme : *kernels_.at(n).scheme;
    return scheme.products == Products::kDynamicInt8;
  }
  // `n`: a node of the normalised graph.
  Form FormOf(NodeId n) const {
    const NodeId layer = kernel_of_[n.raw()];
    if (layer.valid()) return layer == n ? Form::kKernel : Form::kFused;
    return is_ours_[n.raw()] ? Form::kKernel : Form::kTorch;
  }
  std::string ReasonOf(NodeId n) const {
    return FormOf(n) == Form::kFused ? quant::NameWithPlace(from_.node(kernel_of_[n.raw()])) : reason_[n.raw()];
  }

 private:
  const Type& TypeOf(ValueId v) const { return from_.value(v).type; }
  // The type in which the new graph has the value.
  Type StoredType(ValueId v) const { return is_half_[v.raw()] ? quant::Retyped(TypeOf(v), at::kBFloat16) : TypeOf(v); }
  bool IsWritten(ValueId v) const { return normal_.written[v.raw()]; }
  // Returns whether the program can see how the value is stored: it is written, or shares memory with a result.
  bool IsSeen(ValueId v) const {
    return IsWritten(v) || std::any_of(from_.outputs.begin(), from_.outputs.end(),
                                       [&](ValueId output) { return aliases_.same(v, output); });
  }

  ValueId ResultOf(const Kernel& kernel) const { return from_.node(kernel.last()).outputs[0]; }

  // F4. A value that is written in place may not be read later than the program reads it.
  void Find(NodeId n) {
    Kernel kernel;
    kernel.layer = n;
    reason_[n.raw()] = WhyNotPacked(normal_, from_.node(n), order_reader_, &kernel.convolution);
    if (!reason_[n.raw()].empty()) return;
    kernel.scheme = &ChooseScheme(config_, from_.node(n), &reason_[n.raw()]);
    if (kernel.scheme->products == Products::kBfloat16 && IsTransposed(kernel) && !CanBePacked(kernel)) {
      kernel.scheme = &InFloat32();
      reason_[n.raw()] = "in float32: oneDNN has no kernel of bfloat16 for this transposed convolution";
    }
    if (kernel.scheme->takes_more && !IsWritten(*TensorArg(from_.node(n), "input"))) {
      const NodeId next = After(n);
      if (next.valid() && IsView(from_.node(next))) {
        kernel.view = next;
        TakeMore(After(next), &kernel);
        // The result was a tensor of its own, and is a view then.
        if (kernel.last() == n || IsSeen(ResultOf(kernel))) kernel.view = kernel.add = kernel.curve = NodeId();
      } else {
        TakeMore(next, &kernel);
      }
    }
    for (const NodeId part : {kernel.layer, kernel.view, kernel.add, kernel.curve}) {
      if (part.valid()) kernel_of_[part.raw()] = n;
    }
    kernels_.emplace(n, kernel);
  }

  void FindRecurrence(NodeId n) {
    const Node& node = from_.node(n);
    std::string& why = reason_[n.raw()];
    if (quant::IsUnderAutocast(from_, node)) why = "it ran under autocast";
    if (!why.empty()) return;
    const auto recurrence = quant::RecurrenceOf(normal_, node, &why);
    if (!recurrence) return;
    kernel_of_[n.raw()] = n;
    recurrences_.emplace(n, Sequence{&ChooseScheme(config_, node, &why), *recurrence});
  }

  at::Tensor PackedProduct(const Scheme& scheme, const Node& node, size_t i, ValueId weight, ValueId bias) const {
    onednn::Layer layer;
    layer.weight = normal_.known[weight.raw()];
    if (bias.valid()) layer.bias = normal_.known[bias.raw()];
    layer.reads_bfloat16 = ReadsHalf(scheme);
    const Sizes rows = quant::RowsOfProduct(from_, node, i, layer);
    return Packed(scheme, std::move(layer), rows);
  }

  void EmitRecurrence(NodeId n, const Sequence& sequence) {
    const Node& node = from_.node(n);
    std::vector<Arg> kernels;
    const auto add = [&](ValueId weight, ValueId bias) {
      const at::Tensor packed = PackedProduct(*sequence.scheme, node, kernels.size(), weight, bias);
      kernels.push_back(Arg::Of(out_.AddConstant(absl::StrCat(from_.value(weight).name, "_kernel"), packed)));
    };
    for (const quant::RecurrentPart& part : sequence.recurrence.parts) {
      add(part.input_weight, part.input_bias);
      add(part.state_weight, part.state_bias);
    }
    std::vector<Arg> args =
        quant::WithValues({node.args[0], node.args[1]}, [&](ValueId v) { return Read(v, node, true, false); });
    const Node ours = quant::AsOurs(node, sequence.recurrence, std::move(args), std::move(kernels), {},
                                    quant::BitsOfActivations(config_.by_request));
    out_.CopyWith(ours, ours.args);
  }

  // The only reader of the node's result, if a kernel may take it in.
  NodeId After(NodeId n) const {
    const ValueId result = from_.node(n).outputs[0];
    const NodeId next = uses_.sole(result);
    if (!next.valid() || kernel_of_[next.raw()].valid() || IsWritten(result)) return NodeId();
    const Node& node = from_.node(next);
    const bool is_plain =
        !node.is_scalar() && node.outputs.size() == 1 && quant::IsFloatTensor(TypeOf(node.outputs[0]));
    return is_plain && !quant::IsUnderAutocast(from_, node) ? next : NodeId();
  }

  void TakeMore(NodeId next, Kernel* kernel) const {
    if (next.valid() && TakeSum(next, kernel)) next = After(next);
    if (next.valid() && TakesCurve(next, *kernel)) kernel->curve = next;
  }

  // finite/N2
  bool TakesCurve(NodeId curve, const Kernel& kernel) const {
    const auto op = quant::CurveOf(from_.node(curve));
    if (!op || !LosesNaN(*op, IsTransposed(kernel))) return op.has_value();
    bool is_finite = !kernel.add.valid() || elements_[kernel.addend.raw()] == Elements::kFinite;
    ForEachUse(from_.node(kernel.layer).args,
               [&](ValueId v) { is_finite = is_finite && elements_[v.raw()] == Elements::kFinite; });
    return is_finite;
  }

  static bool IsTransposed(const Kernel& kernel) { return kernel.convolution && kernel.convolution->is_transposed; }

  // Returns whether it gives a matrix more dimensions, as some models do after a linear layer.
  bool IsView(const Node& node) const {
    return (Is(node, "aten::view") || Is(node, "aten::reshape")) && TypeOf(*TensorArg(node, "self")).sizes.size() == 2;
  }

  bool TakeSum(NodeId add, Kernel* kernel) const {
    const Node& node = from_.node(add);
    if (!Is(node, "aten::add", "Tensor") || quant::ConstNumber(quant::FindArg(node, "alpha")) != 1.0) return false;
    const auto a = TensorArg(node, "self"), b = TensorArg(node, "other");
    if (!a || !b) return false;
    const ValueId result = from_.node(kernel->view.valid() ? kernel->view : kernel->layer).outputs[0];
    const ValueId addend = *a == result ? *b : *a;
    const Type& type = TypeOf(addend);
    if (!quant::IsFloatTensor(type) || type.sizes != TypeOf(result).sizes || IsWritten(addend)) return false;
    kernel->add = add;
    kernel->addend = addend;
    return true;
  }

  // F8. From the first node to the last: values that could be bfloat16. From the last to the first: those that are,
  // because all their readers take it.
  void FindHalves() {
    std::vector<bool> can_be(from_.values.size(), false);
    for (size_t i = 0; i < from_.nodes.size(); ++i) {
      const Node& node = from_.nodes[i];
      if (node.outputs.size() == 1) can_be[node.outputs[0].raw()] = CanBeHalf(NodeId(i), can_be);
    }
    for (size_t i = from_.nodes.size(); i-- > 0;) {
      if (from_.nodes[i].outputs.size() != 1) continue;
      const ValueId v = from_.nodes[i].outputs[0];
      const auto& readers = uses_.nodes[v.raw()];
      is_half_[v.raw()] = can_be[v.raw()] && !readers.empty() &&
                          std::all_of(readers.begin(), readers.end(), [&](NodeId n) { return ReadsHalf(n, v); });
    }
  }

  bool CanBeHalf(NodeId n, const std::vector<bool>& can_be) const {
    const Node& node = from_.node(n);
    const ValueId v = node.outputs[0];
    if (!quant::IsFloatTensor(TypeOf(v)) || IsSeen(v) || quant::IsUnderAutocast(from_, node)) return false;
    if (const auto found = kernels_.find(kernel_of_[n.raw()]); found != kernels_.end()) {
      return found->second.last() == n && found->second.scheme->products == Products::kBfloat16;
    }
    if (quant::IsPlainNorm(from_, node) || (quant::IsAttention(node) && !quant::HasDropout(node))) return true;
    if (node.is_scalar() || !TakesBfloat16(node)) return false;
    bool all = true, any = false;
    ForEachUse(node.args, [&](ValueId read) {
      if (TypeOf(read).kind != Type::Kind::kTensor) return;
      all = all && can_be[read.raw()];
      any = true;
    });
    return all && any;
  }

  // Whether the node takes the value in bfloat16. Its result is decided already.
  bool ReadsHalf(NodeId n, ValueId v) const {
    const Node& node = from_.node(n);
    const auto found = kernels_.find(kernel_of_[n.raw()]);
    if (found == kernels_.end()) return RunsInHalf(node) && !IsMask(node, v) && !quant::IsPlainNorm(from_, node);
    const Kernel& kernel = found->second;
    if (!ReadsHalf(*kernel.scheme)) return false;
    if (n == kernel.layer) return TensorArg(node, "input") == v;
    return n == kernel.add && v == kernel.addend && is_half_[ResultOf(kernel).raw()];
  }
  static bool ReadsHalf(const Scheme& scheme) {
    return scheme.products == Products::kBfloat16 && onednn::HasBfloat16Products();
  }

  // `node`: of torch.
  bool RunsInHalf(const Node& node) const { return node.outputs.size() == 1 && is_half_[node.outputs[0].raw()]; }

  // The value as a kernel reads it. The images of a program have few channels, which lie one after the other.
  ValueId ReadByKernel(const Kernel& kernel, ValueId v) {
    const Node& node = from_.node(kernel.layer);
    const bool is_half = ReadsHalf(*kernel.scheme);
    const bool is_of_pixels = kernel.convolution && TypeOf(v).sizes.size() == 4 && !is_image_[v.raw()] &&
                              !is_half_[v.raw()] && InputsOf(kernel) <= quant::kMostChannelsOfPixels;
    if (!is_of_pixels) return Read(v, node, false, is_half);
    const at::ScalarType dtype = is_half ? at::kBFloat16 : at::kFloat;
    return out_.Emit(quant::FindOperator("frametap::pixels"),
                     {Arg::Of(out_.at(v)), Arg::Const(static_cast<int64_t>(dtype))}, from_.value(v).name + "_pixels",
                     quant::Retyped(TypeOf(v), dtype), v, node);
  }
  int64_t InputsOf(const Kernel& kernel) const {
    const at::Tensor weight = normal_.FrozenFloat(from_.node(kernel.layer), "weight");
    return IsTransposed(kernel) ? weight.size(0) : weight.size(1) * kernel.convolution->groups;
  }

  // The value in this type, as an op reads it.
  ValueId Read(ValueId v, const Node& like, bool is_dense, bool is_half) {
    const ValueId now = is_dense ? Dense(v, like) : out_.at(v);
    if (is_half_[v.raw()] == is_half || !quant::IsFloatTensor(TypeOf(v))) return now;
    ValueId& made = converted_[v.raw()][is_dense ? 1 : 0];
    if (made.valid() && !IsWritten(v)) return made;
    made = out_.EmitConversion(now, is_half ? at::kBFloat16 : at::kFloat, v, like);
    return made;
  }

  onednn::Layer LayerOf(const Kernel& kernel) const {
    const Node& node = from_.node(kernel.layer);
    onednn::Layer layer;
    layer.weight = normal_.FrozenFloat(node, "weight");
    layer.bias = normal_.FrozenFloat(node, "bias");
    layer.has_addend = kernel.add.valid();
    layer.reads_bfloat16 = ReadsHalf(*kernel.scheme);
    layer.gives_bfloat16 = is_half_[ResultOf(kernel).raw()];
    if (kernel.curve.valid()) quant::SetCurve(*quant::CurveOf(from_.node(kernel.curve)), &layer);
    if (kernel.convolution) quant::SetNumbers(*kernel.convolution, &layer);
    return layer;
  }

  // F1. Otherwise the kernel would share its tensors with the program.
  static onednn::Layer Copied(onednn::Layer layer) {
    layer.weight = layer.weight.detach().clone(at::MemoryFormat::Contiguous);
    if (layer.bias.defined()) layer.bias = layer.bias.detach().clone(at::MemoryFormat::Contiguous);
    return layer;
  }

  void EmitKernel(const Kernel& kernel) {
    const Node& node = from_.node(kernel.layer);
    const ValueId x = *TensorArg(node, "input");
    const ValueId result = ResultOf(kernel);
    const auto& convolution = kernel.convolution;
    ValueId images = ReadByKernel(kernel, x);
    if (convolution) {
      images = quant::PaddedAtEnd(*convolution, images, out_.graph.value(images).type, 0, node, &out_);
    }
    const std::string name = absl::StrCat(from_.value(*TensorArg(node, "weight")).name, "_kernel");
    std::vector<Arg> args{Arg::Of(images),
                          Arg::Of(out_.AddConstant(name, Packed(*kernel.scheme, LayerOf(kernel), SizesRead(kernel))))};
    if (kernel.scheme->takes_more) {
      args.push_back(kernel.add.valid() ? Arg::Of(Addend(kernel, is_half_[result.raw()])) : Arg::Const(c10::IValue()));
    }
    const char* const op = convolution ? "frametap::packed_conv" : kernel.scheme->linear;
    const Type type = quant::Retyped(TypeOf(result), is_half_[result.raw()] ? at::kBFloat16 : at::kFloat);
    const std::string& result_name = from_.value(result).name;
    ValueId now;
    if (kernel.view.valid()) {
      const ValueId product = node.outputs[0];
      now = out_.Emit(quant::FindOperator(op), std::move(args), result_name + "_rows",
                      quant::Retyped(TypeOf(product), type.dtype), product, node);
      now =
          out_.Emit(*from_.node(kernel.view).op, {Arg::Of(now), SizesOfView(kernel)}, result_name, type, result, node);
    } else {
      now = out_.Emit(quant::FindOperator(op), std::move(args), result_name, type, result, node);
    }
    out_.Map(result, now);
    SetImage(result, convolution.has_value(), node);
  }

  Arg SizesOfView(const Kernel& kernel) { return out_.Args({from_.node(kernel.view).args[1]})[0]; }

  // Returns the addend as the kernel adds it: before the view. It is expanded first, because with other sizes it may be
  // broadcast, or not fit.
  ValueId Addend(const Kernel& kernel, bool is_half) {
    const Node& node = from_.node(kernel.layer);
    const ValueId addend = Read(kernel.addend, node, false, is_half);
    if (!kernel.view.valid()) return addend;
    const at::ScalarType dtype = is_half ? at::kBFloat16 : at::kFloat;
    const std::string& name = from_.value(kernel.addend).name;
    const ValueId expanded =
        out_.Emit(quant::FindOperator("aten::expand"), {Arg::Of(addend), SizesOfView(kernel), Arg::Const(false)},
                  name + "_expanded", quant::Retyped(TypeOf(kernel.addend), dtype), kernel.addend, node);
    const Type& type = TypeOf(node.outputs[0]);  // whose sizes may be unknown
    const int64_t width = normal_.FrozenFloat(node, "weight").size(0);
    return out_.Emit(quant::FindOperator("aten::reshape"),
                     {Arg::Of(expanded), Arg::Const(c10::List<int64_t>({-1, width}))}, name + "_rows",
                     quant::Retyped(type, dtype), kernel.addend, node);
  }

  bool CanBePacked(const Kernel& kernel) const {
    try {
      Packed(*kernel.scheme, LayerOf(kernel), SizesRead(kernel));
      return true;
    } catch (const c10::Error&) {
      return false;
    }
  }

  // The sizes of the images that a layer's kernel reads.
  Sizes SizesRead(const Kernel& kernel) const {
    const Sizes& sizes = TypeOf(*TensorArg(from_.node(kernel.layer), "input")).sizes;
    return kernel.convolution ? quant::SizesAtEnd(*kernel.convolution, sizes) : sizes;
  }

  at::Tensor Packed(const Scheme& scheme, onednn::Layer layer, const Sizes& x) const {
    if (scheme.products == Products::kDynamicInt8) {
      return quant::FrozenDynamicKernel(frozen_, layer, {quant::BitsOfActivations(config_.by_request)}, x);
    }
    layer.multiplies_bfloat16 = scheme.products == Products::kBfloat16;
    return quant::FrozenKernel(frozen_, layer, x, [&] { return Copied(layer); });
  }

  // F5. A value that is written in place has one copy, which is dense.
  void SetImage(ValueId v, bool is_image, const Node& like) {
    is_image_[v.raw()] = is_image;
    if (is_image && IsWritten(v)) {
      out_.Map(v, Dense(v, like));
      is_image_[v.raw()] = false;
    }
  }

  // The one copy of an image that views and results share.
  ValueId Dense(ValueId v, const Node& like) {
    if (!is_image_[v.raw()]) return out_.at(v);
    ValueId& made = dense_[v.raw()];
    if (!made.valid()) made = quant::LaidOut(out_.at(v), layouts_[v.raw()], like, &out_);
    return made;
  }

  // Sizes of a run decide whether torch takes it.
  void EmitAttention(NodeId n, bool is_half) {
    const Node& node = from_.node(n);
    const ValueId result = node.outputs[0];
    const bool is_rounded = AttendsInBfloat16(from_, node, config_, is_half);
    reason_[n.raw()] = is_rounded && !is_half ? quant::kAttendsInBfloat16 : quant::kOurAttention;
    std::vector<Arg> args =
        quant::WithValues(node.args, [&](ValueId v) { return Read(v, node, true, is_half && !IsMask(node, v)); });
    out_.Map(result, out_.Emit(is_rounded ? quant::Bfloat16Form(node) : quant::Float32Form(node), std::move(args),
                               from_.value(result).name, StoredType(result), result, node));
  }

  // Returns whether the node is a layer norm, which is then emitted: in float32, bfloat16, or both.
  bool EmitNorm(NodeId n) {
    const Node& node = from_.node(n);
    if (!quant::IsPlainNorm(from_, node)) return false;
    const ValueId result = node.outputs[0];
    std::vector<Arg> args = quant::WithValues(node.args, [&](ValueId v) { return Read(v, node, true, false); });
    reason_[n.raw()] = kOurs;
    is_ours_[n.raw()] = true;
    const Value& value = from_.value(result);
    const auto emit = [&](const char* op, std::initializer_list<quant::Rewrite::Result> results) {
      return out_.EmitAll(quant::FindOperator(op), std::move(args), results, node);
    };
    const Type half = quant::Retyped(value.type, at::kBFloat16);
    const auto& readers = uses_.nodes[result.raw()];
    if (is_half_[result.raw()]) {
      out_.Map(result, emit("frametap::layer_norm_to_bfloat16", {{value.name, half, result}})[0]);
    } else if (!IsWritten(result) &&
               std::any_of(readers.begin(), readers.end(), [&](NodeId r) { return ReadsHalf(r, result); })) {
      const auto both = emit("frametap::layer_norm_with_bfloat16",
                             {{value.name, value.type, result}, {value.name + "_half", half, result}});
      out_.Map(result, both[0]);
      converted_[result.raw()].fill(both[1]);
    } else {
      out_.Map(result, emit("frametap::layer_norm", {{value.name, value.type, result}})[0]);
    }
    return true;
  }

  void EmitOp(NodeId n) {
    if (EmitNorm(n)) return;
    const Node& node = from_.node(n);
    const bool is_half = RunsInHalf(node);
    bool has_images = false, shares_memory = false, has_halves = is_half;
    ForEachUse(node.args, [&](ValueId v) {
      has_images = has_images || is_image_[v.raw()];
      has_halves = has_halves || is_half_[v.raw()];
      for (ValueId result : node.outputs) shares_memory = shares_memory || aliases_.same(v, result);
    });
    if (quant::IsAttention(node) && !quant::IsUnderAutocast(from_, node)) return EmitAttention(n, is_half);
    if (!has_images && !has_halves) {
      out_.Copy(node);
      return;
    }
    const bool keeps_layout = quant::KeepsLayout(node) && !shares_memory;
    Node now = node;
    if (const auto ours = keeps_layout && has_images ? quant::QuickerOperator(node) : std::nullopt) {
      now.op = *ours;
      reason_[n.raw()] = kOurs;
      is_ours_[n.raw()] = true;
    }
    out_.CopyWith(std::move(now),
                  quant::WithValues(node.args, [&](ValueId v) { return Read(v, node, !keeps_layout, is_half); }));
    if (is_half) out_.graph.values[out_.at(node.outputs[0]).raw()].type = StoredType(node.outputs[0]);
    if (!keeps_layout || !has_images) return;
    for (ValueId v : node.outputs) SetImage(v, TypeOf(v).sizes.size() > 2, node);
  }

  const quant::NormalizedGraph& normal_;
  const Graph& from_;
  const Config& config_;
  quant::FrozenWeights* const frozen_;
  const quant::Uses uses_;
  const quant::Aliases aliases_;
  const std::vector<bool> computed_with_;
  const std::vector<Elements> elements_;
  const std::vector<std::vector<ValueId>> layouts_;
  const Node* const order_reader_;
  quant::Rewrite out_;
  absl::flat_hash_map<NodeId, Kernel> kernels_;  // by layer
  absl::flat_hash_map<NodeId, Sequence> recurrences_;
  std::vector<NodeId> kernel_of_;                  // by node: the layer whose kernel it is in
  std::vector<std::string> reason_;                // by node: why a layer has no kernel
  std::vector<bool> is_ours_;                      // by node: an op of torch that has a kernel of ours
  std::vector<ValueId> dense_;                     // by value: its dense copy
  std::vector<bool> is_half_;                      // by value: its new value is of bfloat16
  std::vector<std::array<ValueId, 2>> converted_;  // by value: it and its dense copy in the other type
  std::vector<bool> is_image_;                     // by value: its new value may lie pixel by pixel
};

std::vector<OpReport> ReportOf(const Graph& graph, const quant::NormalizedGraph& normal, const Lowering& lowering) {
  std::vector<OpReport> report;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const quant::NodeDisposition& fate = normal.fates[i];
    OpReport row{quant::ReportedOpOf(graph.nodes[i])};
    row.form = fate.now.valid() ? lowering.FormOf(fate.now) : Form::kFolded;
    row.reason = fate.now.valid() ? lowering.ReasonOf(fate.now) : fate.folded;
    if (row.reason.empty()) row.reason = fate.note;
    row.is_int8 = fate.now.valid() && lowering.IsInt8(fate.now);
    if (fate.is_int8 && fate.now.valid()) {
      row.form = Form::kKernel;
      row.is_int8 = true;
      row.reason = "int8";
    }
    report.push_back(std::move(row));
  }
  return report;
}

}  // namespace

const char* ToString(Form form) {
  switch (form) {
    case Form::kKernel:
      return "kernel";
    case Form::kFused:
      return "fused";
    case Form::kFolded:
      return "folded";
    case Form::kTorch:
      return "torch";
  }
  return "?";
}

absl::StatusOr<FrozenGraph> Freeze(const Graph& graph, const std::vector<at::Tensor>& weights, const Config& config,
                                   quant::FrozenWeights* frozen) {
  quant::RegisterOperators();
  if (absl::Status loaded = onednn::Load(); !loaded.ok()) return loaded;
  auto normal = quant::Normalise(graph, weights, frozen);
  if (!normal.ok()) return normal.status();
  try {
    const c10::InferenceMode no_inference_mode(false);  // what is made here outlives the call
    const at::NoGradGuard no_grad;
    if (normal->has_bytes) quant::GoOn(quant::LowerNormal(*normal, frozen), weights, &*normal);
    Lowering lowering(*normal, config, frozen);
    FrozenGraph made;
    made.graph = lowering.Run();
    made.checked = lowering.CheckedInputs();
    made.report = ReportOf(graph, *normal, lowering);
    made.kernels = static_cast<int>(std::count_if(made.report.begin(), made.report.end(),
                                                  [](const OpReport& row) { return row.form == Form::kKernel; }));
    return made;
  } catch (const c10::Error& e) {
    return absl::UnimplementedError(absl::StrCat("freezing the graph: ", e.what_without_backtrace()));
  }
}

}  // namespace frametap::freeze
