#include "backends/quant/converter.h"

#include <ATen/ops/add.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <string>

#include "absl/strings/str_cat.h"
#include "backends/quant/attention_ops.h"
#include "backends/quant/convolution.h"
#include "backends/quant/curves.h"
#include "backends/quant/layouts.h"
#include "backends/quant/op_table.h"
#include "backends/quant/recurrence.h"
#include "backends/quant/rounding_errors.h"

namespace frametap::quant {
namespace {

std::string Describe(const Graph& source, ValueId v) {
  const NodeId def = source.value(v).def;
  return def.valid() ? absl::StrCat("the result of ", NameWithPlace(source.node(def)))
                     : absl::StrCat("the input %", source.value(v).name);
}

// Returns the floats that the reference graph makes of the bytes of a weight.
at::Tensor Dequantized(const QuantizedWeight& q, int64_t axis) {
  using Call = at::Tensor(const at::Tensor& bytes, const at::Tensor& scales, const at::Tensor& zeros, int64_t axis);
  return FindOperator("frametap::dequantize_per_channel").typed<Call>().call(q.bytes, q.scales, q.zero_points, axis);
}

}  // namespace

Converter::Converter(const NormalizedGraph& normal, const Annotation& annotation, int bits, FrozenWeights* frozen)
    : normal_(normal),
      from_(normal.graph),
      a_(annotation),
      bits_(bits),
      frozen_(frozen),
      layouts_(LayoutsOf(normal)),
      out_(normal.graph, &normal.origin) {
  laid_out_.resize(from_.values.size());
  params_.resize(from_.values.size());
  dequantized_.resize(from_.values.size());
  stored_.resize(from_.values.size());
  channels_.resize(from_.nodes.size());
  for (EagerState& state : out_.graph.states) state.grad_mode = false;  // quantize/Q5
}

absl::Status Converter::ChooseParams(const Graph& source, const ObservationView& seen, const QuantConfig& config,
                                     std::vector<ValueId>* unseen) {
  const int64_t qmax = bits_ == 8 ? 255 : 127;
  std::vector<Statistics> by_class(from_.values.size());
  for (size_t v = 0; v < from_.values.size(); ++v) {
    if (!a_.quantized[v] || !a_.source[v]) continue;
    if (const at::Tensor& known = normal_.known[v]; known.defined()) {
      by_class[a_.params_class[v].raw()].Add(known.detach());
      continue;
    }
    const Statistics* const statistics = StatisticsOf(normal_.WithOrigin(ValueId(v)), seen);
    if (statistics == nullptr) {
      if (unseen != nullptr) continue;
      return Unseen(ValueId(v));
    }
    if (!statistics->finite()) {
      return absl::InvalidArgumentError(absl::StrCat("calibration met NaN or infinity in ",
                                                     Describe(source, normal_.origin[v]),
                                                     "; check the calibration data and the float model"));
    }
    by_class[a_.params_class[v].raw()].Add(*statistics);
  }
  for (size_t v = 0; v < from_.values.size(); ++v) {
    if (!a_.quantized[v]) continue;
    const Statistics& statistics = by_class[a_.params_class[v].raw()];
    if (statistics.empty() && unseen != nullptr) {
      unseen->push_back(ValueId(v));
      continue;
    }
    if (statistics.empty()) return Unseen(ValueId(v));
    const Range range = config.observer == Observer::kMinMax ? statistics.MinMax() : statistics.LeastSquares(qmax);
    params_[v] = ChooseAffine(range, 0, qmax);
  }
  return absl::OkStatus();
}

void Converter::MakeBiases() {
  for (size_t n = 0; n < from_.nodes.size(); ++n) {
    if (a_.role[n] != Role::kAnchor || channels_[n].any()) continue;
    const Node& node = from_.nodes[n];
    const int64_t rank = normal_.known[TensorArg(node, "weight")->raw()].dim();
    const Sizes& sizes = from_.value(node.outputs[0]).type.sizes;
    const int64_t outputs = sizes[static_cast<size_t>(static_cast<int64_t>(sizes.size()) + ChannelsOf(node, rank))];
    channels_[n].residual_errors = at::zeros({outputs}, at::kFloat);
  }
}

void Converter::Run() {
  const Node start;
  for (size_t v = 0; v < from_.values.size(); ++v) {
    if (normal_.known[v].defined()) StoreKnown(ValueId(v));
  }
  for (ValueId v : from_.inputs) {
    if (!normal_.known[v.raw()].defined()) Store(v, start);
  }
  for (size_t i = 0; i < from_.nodes.size(); ++i) {
    const Node& node = from_.nodes[i];
    if (a_.role[i] == Role::kAnchor) {
      EmitAnchor(NodeId(i));
    } else if (a_.role[i] == Role::kDynamic && IsLayer(node)) {
      EmitDynamic(NodeId(i));
    } else if (a_.role[i] == Role::kDynamic) {
      EmitRecurrence(NodeId(i));
    } else if (a_.role[i] == Role::kBfloat16) {
      Node now = node;  // both ops take the same arguments
      now.op = Bfloat16Form(node);
      out_.CopyWith(now, Reads(NodeId(i), node.args));
    } else {
      out_.CopyWith(node, Reads(NodeId(i), node.args));
    }
    for (ValueId v : node.outputs) Store(v, node);
  }
  for (ValueId v : from_.outputs) out_.graph.outputs.push_back(ReadAsMade(v));
}

void Converter::ChooseCorrections(const ObservationView& seen) {
  for (const ByteRead& read : ByteReads(normal_, a_)) {
    const Statistics* const statistics = StatisticsOf(read.value, seen);
    if (statistics == nullptr) continue;
    ChannelFacts& facts = channels_[read.layer.raw()];
    if (read.is_residual) {
      facts.residual_errors = statistics->ErrorMeans(read.dim);
    } else {
      facts.means = statistics->ChannelMeans(read.dim);
      facts.errors = statistics->ErrorMeans(read.dim);
    }
  }
  for (size_t n = 0; n < from_.nodes.size(); ++n) {
    if (a_.role[n] != Role::kDynamic || !IsLayer(from_.nodes[n])) continue;
    const Statistics* const statistics = StatisticsOf(*TensorArg(from_.nodes[n], "input"), seen);
    if (statistics != nullptr) channels_[n].means = statistics->ChannelMeans(-1);
  }
}

// Returns null for a value that calibration has not seen.
const Statistics* Converter::StatisticsOf(ValueId v, const ObservationView& seen) const {
  const ValueId origin = normal_.origin[v.raw()];
  const bool is_seen = origin.valid() && origin.raw() < seen.statistics.size();
  return is_seen ? &seen.statistics[origin.raw()] : nullptr;
}

absl::Status Converter::Unseen(ValueId v) const {
  return absl::FailedPreconditionError(absl::StrCat("calibration saw no data in %", from_.value(v).name,
                                                    "; run the function on calibration data that reaches it"));
}

// E2.
ValueId Converter::Read(ValueId v, bool int8_reader) {
  const bool bytes = dequantized_[v.raw()].valid() && (int8_reader || a_.int8(from_.value(v).def));
  return bytes ? dequantized_[v.raw()] : out_.at(v);
}

std::vector<Arg> Converter::Reads(NodeId n, const std::vector<Arg>& args) {
  const Node& node = from_.node(n);
  const bool is_int8 = a_.int8(n), follows = node.is_scalar() || KeepsLayout(node);
  return WithValues(args, [&](ValueId v) { return is_int8 || follows ? Read(v, is_int8) : ReadAsMade(v); });
}

// layouts/U1. Returns the floats as the program's op leaves them.
ValueId Converter::ReadAsMade(ValueId v) {
  const std::vector<ValueId>& like = layouts_[v.raw()];
  const auto is_in_bytes = [&](ValueId decider) { return a_.int8(from_.value(decider).def); };
  if (LiesAsMade(v, like) || normal_.written[v.raw()] || std::any_of(like.begin(), like.end(), is_in_bytes)) {
    return Read(v, false);
  }
  ValueId& laid_out = laid_out_[v.raw()];
  if (!laid_out.valid()) {
    laid_out = LaidOut(Read(v, false), like, from_.node(from_.value(v).def), &out_);
  }
  return laid_out;
}

void Converter::Store(ValueId v, const Node& like) {
  if (!a_.quantized[v.raw()]) return;
  const Params& p = params_[v.raw()];
  const Value& value = from_.value(v);
  const ValueId bytes = out_.Emit(quantize_,
                                  {Arg::Of(out_.at(v)), Arg::Const(p.scale), Arg::Const(p.zero_point),
                                   Arg::Const(p.qmin), Arg::Const(p.qmax), Arg::Const(static_cast<int64_t>(at::kByte))},
                                  value.name + "_q", Retyped(value.type, at::kByte), v, like);
  SetBytes(v, bytes, like);
}

// A frozen operand that is not a weight: its bytes are a constant.
void Converter::StoreKnown(ValueId v) {
  if (!a_.quantized[v.raw()]) return;
  const Params& p = params_[v.raw()];
  const at::Tensor& known = normal_.known[v.raw()];
  const std::string what = absl::StrCat("bytes ", std::bit_cast<uint64_t>(p.scale), " ", p.zero_point, " ", p.qmax);
  const auto bytes =
      FrozenWeights::Of(frozen_, what, {known}, [&] { return FrozenWeights::Tensors{QuantizeAll(known, p)}; });
  SetBytes(v, out_.AddConstant(from_.value(v).name + "_q", bytes[0]), Node());
}

void Converter::SetBytes(ValueId v, ValueId bytes, const Node& like) {
  const Params& p = params_[v.raw()];
  const Value& value = from_.value(v);
  stored_[v.raw()] = bytes;
  dequantized_[v.raw()] = out_.Emit(dequantize_, {Arg::Of(bytes), Arg::Const(p.scale), Arg::Const(p.zero_point)},
                                    value.name + "_dq", Retyped(value.type, at::kFloat), v, like);
}

QuantizedWeight Converter::Quantized(ValueId v, int64_t axis) {
  const at::Tensor& weight = normal_.known[v.raw()];
  const auto w = FrozenWeights::Of(frozen_, absl::StrCat("quantized ", axis), {weight}, [&] {
    const QuantizedWeight made = QuantizeWeight(weight, axis);
    return FrozenWeights::Tensors{made.bytes, made.scales, made.zero_points};
  });
  return {w[0], w[1], w[2]};
}

ValueId Converter::Weight(ValueId v, const Node& like) {
  const int64_t axis = OutputAxisOf(like);
  const auto found = weights_.find({v, axis});
  if (found != weights_.end()) return found->second;
  const std::string& name = from_.value(v).name;
  const QuantizedWeight w = Quantized(v, axis);
  const ValueId bytes = out_.AddConstant(name + "_q", w.bytes);
  const ValueId scales = out_.AddConstant(name + "_scales", w.scales);
  const ValueId zeros = out_.AddConstant(name + "_zeros", w.zero_points);
  const ValueId now =
      out_.Emit(dequantize_channel_, {Arg::Of(bytes), Arg::Of(scales), Arg::Of(zeros), Arg::Const(axis)}, name + "_dq",
                Retyped(from_.value(v).type, at::kFloat), ValueId(), like);
  weights_.emplace(std::pair(v, axis), now);
  return now;
}

ValueId Converter::Bias(ValueId v) {
  const auto found = biases_.find(v);
  if (found != biases_.end()) return found->second;
  const at::Tensor& bias = normal_.known[v.raw()];
  const auto copy =
      FrozenWeights::Of(frozen_, "copied", {bias}, [&] { return FrozenWeights::Tensors{bias.detach().clone()}; });
  const ValueId now = out_.AddConstant(from_.value(v).name + "_frozen", copy[0]);
  biases_.emplace(v, now);
  return now;
}

// The bias of a layer of whose channels something is known. One tensor for equal facts, whichever recording asks.
ValueId Converter::CorrectedBias(NodeId n, ValueId weight, const std::optional<ValueId>& bias) {
  const Node& node = from_.node(n);
  const ChannelFacts& facts = channels_[n.raw()];
  std::string what = absl::StrCat("corrected bias ", OutputAxisOf(node));
  for (const at::Tensor& known : {facts.means, facts.errors, facts.residual_errors}) {
    absl::StrAppend(
        &what, " ",
        known.defined() ? absl::string_view(static_cast<const char*>(known.const_data_ptr()), known.nbytes()) : "-");
  }
  const QuantizedWeight quantized = Quantized(weight, OutputAxisOf(node));
  FrozenWeights::Tensors from{normal_.known[weight.raw()]};
  if (bias) from.push_back(normal_.known[bias->raw()]);
  const auto made = FrozenWeights::Of(frozen_, what, from, [&] {
    const at::Tensor shift = BiasCorrection(node, from[0], Dequantized(quantized, OutputAxisOf(node)), facts);
    return FrozenWeights::Tensors{bias ? at::add(from[1].detach(), shift) : shift};
  });
  const std::string& name = from_.value(bias.value_or(weight)).name;
  return out_.AddConstant(name + (bias ? "_corrected" : "_bias"), made[0]);
}

void Converter::EmitAnchor(NodeId n) {
  EmitLayer(n, [&](ValueId v) { return Read(v, true); });
}

void Converter::EmitDynamic(NodeId n) {
  const Node& node = from_.node(n);
  EmitLayer(n, [&](ValueId v) {
    const Value& value = from_.value(v);
    return out_.Emit(FindOperator("frametap::round_rows"),
                     {Arg::Of(Read(v, false)), Arg::Const(int64_t{a_.in_two_bytes[n.raw()] ? 2 * bits_ : bits_})},
                     value.name + "_rounded", value.type, ValueId(), node);
  });
}

// `read`: the input in the new graph.
template <class F>
void Converter::EmitLayer(NodeId n, const F& read) {
  const Node& node = from_.node(n);
  const ValueId weight = *TensorArg(node, "weight");
  const auto bias = TensorArg(node, "bias");
  const ValueId weight_now = Weight(weight, node);
  std::vector<Arg> args = node.args;
  for (size_t i = 0; i < args.size(); ++i) {
    if (&node.args[i] == FindArg(node, "bias") && channels_[n.raw()].any()) {
      args[i] = Arg::Of(CorrectedBias(n, weight, bias));
    } else if (args[i].kind != Arg::Kind::kValue) {
      continue;
    } else if (&node.args[i] == FindArg(node, "weight")) {
      args[i].value = weight_now;
    } else if (&node.args[i] == FindArg(node, "bias")) {
      args[i].value = Bias(*bias);
    } else {
      args[i].value = read(args[i].value);
    }
  }
  const ValueId result = node.outputs[0];
  const Value& value = from_.value(result);
  out_.Map(result, out_.Emit(*node.op, std::move(args), value.name, Retyped(value.type, at::kFloat), result, node));
}

void Converter::EmitRecurrence(NodeId n) {
  const Node& node = from_.node(n);
  std::string why;
  const Recurrence recurrence = *RecurrenceOf(normal_, node, &why);
  std::vector<Arg> weights, biases;
  for (const RecurrentPart& part : recurrence.parts) {
    for (const ValueId v : {part.input_weight, part.state_weight}) weights.push_back(Arg::Of(Weight(v, node)));
    if (!part.input_bias.valid()) continue;
    for (const ValueId v : {part.input_bias, part.state_bias}) biases.push_back(Arg::Of(Bias(v)));
  }
  std::vector<Arg> args = Reads(n, {node.args[0], node.args[1]});
  const Node ours = AsOurs(node, recurrence, std::move(args), std::move(weights), std::move(biases), bits_);
  out_.CopyWith(ours, ours.args);
}

}  // namespace frametap::quant
