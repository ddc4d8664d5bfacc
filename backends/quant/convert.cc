#include <ATen/core/grad_mode.h>

#include <bit>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "backends/quant/annotate.h"
#include "backends/quant/bias_correction.h"
#include "backends/quant/choose.h"
#include "backends/quant/convolution.h"
#include "backends/quant/curves.h"
#include "backends/quant/observe.h"
#include "backends/quant/op_table.h"
#include "backends/quant/operators.h"
#include "backends/quant/quantize.h"
#include "backends/quant/recurrence.h"
#include "backends/quant/run.h"

namespace frametap::quant {
namespace {

class Converter {
 public:
  Converter(const Normal& normal, const Annotation& annotation, int bits, FrozenWeights* frozen)
      : normal_(normal),
        from_(normal.graph),
        a_(annotation),
        bits_(bits),
        frozen_(frozen),
        out_(normal.graph, &normal.origin) {
    params_.resize(from_.values.size());
    dequantized_.resize(from_.values.size());
    stored_.resize(from_.values.size());
    means_.resize(from_.nodes.size());
    for (EagerState& state : out_.graph.states) state.grad_mode = false;  // Q5
  }

  // By class, from all members whose range counts. `unseen`: values of whose class nothing is known; may be null, and
  // that is an error then.
  absl::Status ChooseParams(const Graph& source, const ObservationView& seen, const QuantConfig& config,
                            std::vector<ValueId>* unseen) {
    const int64_t qmax = bits_ == 8 ? 255 : 127;
    std::vector<Statistics> by_class(from_.values.size());
    for (size_t v = 0; v < from_.values.size(); ++v) {
      if (!a_.quantized[v] || !a_.source[v]) continue;
      if (const at::Tensor& known = normal_.known[v]; known.defined()) {
        by_class[a_.klass[v].raw()].Add(known.detach());
        continue;
      }
      const Statistics* const statistics = StatisticsOf(ValueId(v), seen);
      if (statistics == nullptr) {
        if (unseen != nullptr) continue;
        return Unseen(ValueId(v));
      }
      if (!statistics->finite()) {
        return absl::InvalidArgumentError(absl::StrCat("calibration met NaN or infinity in ",
                                                       Describe(source, normal_.origin[v]),
                                                       "; check the calibration data and the float model"));
      }
      by_class[a_.klass[v].raw()].Add(*statistics);
    }
    for (size_t v = 0; v < from_.values.size(); ++v) {
      if (!a_.quantized[v]) continue;
      const Statistics& statistics = by_class[a_.klass[v].raw()];
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

  void Run() {
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
      } else {
        out_.CopyWith(node, Reads(NodeId(i), node.args));
      }
      for (ValueId v : node.outputs) Store(v, node);
    }
    for (ValueId v : from_.outputs) out_.graph.outputs.push_back(Read(v, false));
  }

  // Lets the biases of layers be corrected by the means of their inputs.
  void ChooseMeans(const ObservationView& seen) {
    for (size_t n = 0; n < from_.nodes.size(); ++n) {
      const Node& node = from_.nodes[n];
      const auto input = TensorArg(node, "input");
      const Statistics* const statistics = a_.role[n] == Role::kAnchor && input ? StatisticsOf(*input, seen) : nullptr;
      if (statistics == nullptr) continue;
      const int64_t rank = normal_.known[TensorArg(node, "weight")->raw()].dim();
      means_[n] = statistics->ChannelMeans(ChannelsOf(node, rank));
    }
  }

  const Params& ParamsFor(ValueId v) const { return params_[v.raw()]; }

  // The value to compare with the float value v: its bytes, or itself.
  ValueId Measured(ValueId v) { return stored_[v.raw()].valid() ? stored_[v.raw()] : out_.at(v); }
  Rewrite& out() { return out_; }

 private:
  // Returns null for a value that calibration has not seen.
  const Statistics* StatisticsOf(ValueId v, const ObservationView& seen) const {
    const ValueId origin = normal_.origin[v.raw()];
    const bool is_seen = origin.valid() && origin.raw() < seen.statistics.size();
    return is_seen ? &seen.statistics[origin.raw()] : nullptr;
  }

  absl::Status Unseen(ValueId v) const {
    return absl::FailedPreconditionError(absl::StrCat("calibration saw no data in %", from_.value(v).name,
                                                      "; run the function on calibration data that reaches it"));
  }

  static std::string Describe(const Graph& source, ValueId v) {
    const NodeId def = source.value(v).def;
    return def.valid() ? absl::StrCat("the result of ", NameWithPlace(source.node(def)))
                       : absl::StrCat("the input %", source.value(v).name);
  }

  // A value with an int8 producer exists in bytes only: all its readers read those.
  ValueId Read(ValueId v, bool int8_reader) {
    const bool bytes = dequantized_[v.raw()].valid() && (int8_reader || a_.int8(from_.value(v).def));
    return bytes ? dequantized_[v.raw()] : out_.at(v);
  }

  std::vector<Arg> Reads(NodeId n, const std::vector<Arg>& args) {
    return WithValues(args, [&](ValueId v) { return Read(v, a_.int8(n)); });
  }

  void Store(ValueId v, const Node& like) {
    if (!a_.quantized[v.raw()]) return;
    const Params& p = params_[v.raw()];
    const Value& value = from_.value(v);
    const ValueId bytes =
        out_.Emit(quantize_,
                  {Arg::Of(out_.at(v)), Arg::Const(p.scale), Arg::Const(p.zero_point), Arg::Const(p.qmin),
                   Arg::Const(p.qmax), Arg::Const(static_cast<int64_t>(at::kByte))},
                  value.name + "_q", Retyped(value.type, at::kByte), v, like);
    SetBytes(v, bytes, like);
  }

  // A frozen operand that is not a weight: its bytes are a constant.
  void StoreKnown(ValueId v) {
    if (!a_.quantized[v.raw()]) return;
    const Params& p = params_[v.raw()];
    const at::Tensor& known = normal_.known[v.raw()];
    const std::string what = absl::StrCat("bytes ", std::bit_cast<uint64_t>(p.scale), " ", p.zero_point, " ", p.qmax);
    const auto bytes =
        FrozenWeights::Of(frozen_, what, {known}, [&] { return FrozenWeights::Tensors{QuantizeAll(known, p)}; });
    SetBytes(v, out_.AddConstant(from_.value(v).name + "_q", bytes[0]), Node());
  }

  void SetBytes(ValueId v, ValueId bytes, const Node& like) {
    const Params& p = params_[v.raw()];
    const Value& value = from_.value(v);
    stored_[v.raw()] = bytes;
    dequantized_[v.raw()] = out_.Emit(dequantize_, {Arg::Of(bytes), Arg::Const(p.scale), Arg::Const(p.zero_point)},
                                      value.name + "_dq", Retyped(value.type, at::kFloat), v, like);
  }

  QuantizedWeight Quantized(ValueId v, int64_t axis) {
    const at::Tensor& weight = normal_.known[v.raw()];
    const auto w = FrozenWeights::Of(frozen_, absl::StrCat("quantized ", axis), {weight}, [&] {
      const QuantizedWeight made = QuantizeWeight(weight, axis);
      return FrozenWeights::Tensors{made.bytes, made.scales, made.zero_points};
    });
    return {w[0], w[1], w[2]};
  }

  ValueId Weight(ValueId v, const Node& like) {
    const int64_t axis = OutputAxisOf(like);
    const auto found = weights_.find({v, axis});
    if (found != weights_.end()) return found->second;
    const std::string& name = from_.value(v).name;
    const QuantizedWeight w = Quantized(v, axis);
    const ValueId bytes = out_.AddConstant(name + "_q", w.bytes);
    const ValueId scales = out_.AddConstant(name + "_scales", w.scales);
    const ValueId zeros = out_.AddConstant(name + "_zeros", w.zero_points);
    const ValueId now =
        out_.Emit(dequantize_channel_, {Arg::Of(bytes), Arg::Of(scales), Arg::Of(zeros), Arg::Const(axis)},
                  name + "_dq", Retyped(from_.value(v).type, at::kFloat), ValueId(), like);
    weights_.emplace(std::pair(v, axis), now);
    return now;
  }

  ValueId Bias(ValueId v) {
    const auto found = biases_.find(v);
    if (found != biases_.end()) return found->second;
    const at::Tensor& bias = normal_.known[v.raw()];
    const auto copy =
        FrozenWeights::Of(frozen_, "copied", {bias}, [&] { return FrozenWeights::Tensors{bias.detach().clone()}; });
    const ValueId now = out_.AddConstant(from_.value(v).name + "_frozen", copy[0]);
    biases_.emplace(v, now);
    return now;
  }

  // The bias of a layer of which the means are known. One tensor for equal means, whichever recording asks.
  ValueId CorrectedBias(NodeId n, ValueId weight, const std::optional<ValueId>& bias) {
    const Node& node = from_.node(n);
    const at::Tensor& means = means_[n.raw()];
    const absl::string_view bytes(static_cast<const char*>(means.const_data_ptr()), means.nbytes());
    const QuantizedWeight quantized = Quantized(weight, OutputAxisOf(node));
    FrozenWeights::Tensors from{normal_.known[weight.raw()]};
    if (bias) from.push_back(normal_.known[bias->raw()]);
    const auto made =
        FrozenWeights::Of(frozen_, absl::StrCat("corrected bias ", OutputAxisOf(node), " ", bytes), from, [&] {
          at::Tensor now = BiasCorrection(node, from[0], quantized, means);
          if (bias) now.add_(from[1].detach());
          return FrozenWeights::Tensors{now};
        });
    const std::string& name = from_.value(bias.value_or(weight)).name;
    return out_.AddConstant(name + (bias ? "_corrected" : "_bias"), made[0]);
  }

  void EmitAnchor(NodeId n) {
    EmitLayer(n, [&](ValueId v) { return Read(v, true); });
  }

  void EmitDynamic(NodeId n) {
    const Node& node = from_.node(n);
    EmitLayer(n, [&](ValueId v) {
      const Value& value = from_.value(v);
      return out_.Emit(FindOperator("frametap::round_rows"),
                       {Arg::Of(Read(v, false)), Arg::Const(static_cast<int64_t>(bits_))}, value.name + "_rounded",
                       value.type, ValueId(), node);
    });
  }

  // `read`: the input in the new graph.
  template <class F>
  void EmitLayer(NodeId n, const F& read) {
    const Node& node = from_.node(n);
    const ValueId weight = *TensorArg(node, "weight");
    const auto bias = TensorArg(node, "bias");
    const ValueId weight_now = Weight(weight, node);
    std::vector<Arg> args = node.args;
    for (size_t i = 0; i < args.size(); ++i) {
      if (&node.args[i] == FindArg(node, "bias") && means_[n.raw()].defined()) {
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

  void EmitRecurrence(NodeId n) {
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

  const Normal& normal_;
  const Graph& from_;
  const Annotation& a_;
  const int bits_;
  FrozenWeights* const frozen_;
  Rewrite out_;
  std::vector<Params> params_;
  std::vector<at::Tensor> means_;  // by node; undefined: the bias is not corrected
  std::vector<ValueId> dequantized_;
  std::vector<ValueId> stored_;
  absl::flat_hash_map<std::pair<ValueId, int64_t>, ValueId> weights_;  // by the axis of the outputs, too
  absl::flat_hash_map<ValueId, ValueId> biases_;
  const c10::OperatorHandle quantize_ = FindOperator("frametap::quantize_per_tensor");
  const c10::OperatorHandle dequantize_ = FindOperator("frametap::dequantize_per_tensor");
  const c10::OperatorHandle dequantize_channel_ = FindOperator("frametap::dequantize_per_channel");
};

Decision DecisionOf(Role role) {
  switch (role) {
    case Role::kFloat:
      return Decision::kFloat;
    case Role::kAnchor:
    case Role::kPart:
    case Role::kPointwise:
    case Role::kDynamic:
      return Decision::kInt8;
    case Role::kFollows:
      return Decision::kFollows;
  }
  return Decision::kFloat;
}

// By node: why it stays float, where calibration has not met its result.
std::vector<std::string> NotMet(const Normal& normal, const ObservationView& seen) {
  std::vector<std::string> excluded(normal.graph.nodes.size());
  for (size_t i = 0; i < excluded.size() && !seen.met.empty(); ++i) {
    if (FamilyOf(normal.graph.nodes[i]) == Family::kRecurrent) continue;  // needs no calibration
    for (ValueId v : normal.graph.nodes[i].outputs) {
      const ValueId origin = normal.origin[v.raw()];
      if (!origin.valid() || seen.met[origin.raw()]) continue;
      excluded[i] = kNotMet;
    }
  }
  return excluded;
}

// Makes the choices for all layers that are to be static, on the first run that calibration has kept.
void MakeChoices(const Normal& normal, const Annotation& a, const Converter& converter, const ObservationView& seen,
                 int bits, Choices* choices) {
  if (seen.kept.empty()) return;
  std::vector<c10::IValue> inputs = seen.kept[0];
  for (c10::IValue& input : inputs) {
    if (input.isTensor()) input = input.toTensor().clone();  // the graph may write to it
  }
  Walk walk(normal.graph, std::move(inputs));
  while (!walk.done()) {
    const NodeId n = walk.next();
    const Node& node = normal.graph.node(n);
    if (a.role[n.raw()] == Role::kAnchor && choices->Find(normal, n) == nullptr) {
      const ValueId x = *TensorArg(node, "input");
      choices->Make(normal, n, walk.value(x).toTensor(), converter.ParamsFor(x), bits);
    }
    walk.Step();
  }
}

// The layers that are chosen to be float are excluded, and so are dynamic ones, which read floats.
void ExcludeByChoice(const Normal& normal, const Annotation& a, const Choices& choices,
                     std::vector<std::string>* excluded) {
  for (size_t i = 0; i < excluded->size(); ++i) {
    if (a.role[i] != Role::kAnchor || !(*excluded)[i].empty()) continue;
    const Choice* const choice = choices.Find(normal, NodeId(i));
    if (choice != nullptr && choice->form != Choice::Form::kStatic) (*excluded)[i] = choice->words;
  }
}

// Words and roles of the layers, of which `before` has all as if they were static.
void ApplyChoices(const Normal& normal, const Annotation& before, const Choices& choices, Annotation* a) {
  for (size_t i = 0; i < a->role.size(); ++i) {
    if (before.role[i] != Role::kAnchor) continue;
    const Choice* const choice = choices.Find(normal, NodeId(i));
    if (choice == nullptr) {
      a->reason[i] = "static int8, not timed: calibration kept no input of it";
      continue;
    }
    if (a->role[i] == Role::kFloat && choice->form == Choice::Form::kDynamic) a->role[i] = Role::kDynamic;
    a->reason[i] = choice->words;
  }
}

// Notes the int8 nodes that read an unseen value. Returns false if all of them were noted before.
bool Exclude(const Graph& graph, const Annotation& a, const std::vector<ValueId>& unseen,
             std::vector<std::string>* excluded) {
  bool any = false;
  const absl::flat_hash_set<ValueId> set(unseen.begin(), unseen.end());
  for (size_t i = 0; i < graph.nodes.size() && !unseen.empty(); ++i) {
    if (!a.int8(NodeId(i)) || !(*excluded)[i].empty()) continue;
    ForEachUse(graph.nodes[i].args, [&](ValueId v) {
      if (!set.contains(v) || !(*excluded)[i].empty()) return;
      (*excluded)[i] = absl::StrCat("calibration did not meet %", graph.value(v).name,
                                    " as it is computed here; add such a batch to the calibration data");
      any = true;
    });
  }
  return any;
}

// The last node of the kernel that `n` begins.
NodeId LastOf(NodeId n, const Annotation& a) {
  NodeId last = n;
  for (size_t i = 0; i < a.role.size(); ++i) {
    if (a.role[i] == Role::kPart && a.owner[i] == n && last < NodeId(i)) last = NodeId(i);
  }
  return last;
}

}  // namespace

const char* ToString(Decision decision) {
  switch (decision) {
    case Decision::kInt8:
      return "int8";
    case Decision::kFloat:
      return "float";
    case Decision::kFolded:
      return "folded";
    case Decision::kFollows:
      return "follows";
  }
  return "?";
}

absl::StatusOr<QuantizedGraph> Convert(const Graph& graph, const std::vector<at::Tensor>& weights,
                                       const Observation& observation, const QuantConfig& config) {
  const ObservationView seen = ObservationView::Of(observation);
  if (seen.runs == 0) {
    return absl::FailedPreconditionError("calibration saw no data: call the observed function on some inputs first");
  }
  return ConvertSeen(graph, weights, seen, config, nullptr, false);
}

absl::StatusOr<QuantizedGraph> ConvertSeen(const Graph& graph, const std::vector<at::Tensor>& weights,
                                           const ObservationView& seen, const QuantConfig& config,
                                           FrozenWeights* frozen, bool may_be_unseen) {
  RegisterOperators();
  if (config.activation_bits != 0 && config.activation_bits != 7 && config.activation_bits != 8) {
    return absl::InvalidArgumentError("activation_bits must be 0 (by the CPU), 7 or 8");
  }
  const at::NoGradGuard no_grad;
  auto normal = Normalise(graph, weights, frozen);
  if (!normal.ok()) return normal.status();
  try {
    std::vector<std::string> excluded = NotMet(*normal, seen);
    Annotation annotation;
    std::optional<Converter> chosen;
    const int bits = BitsOfActivations(config);
    const auto settle = [&]() -> absl::Status {
      // Without the readers of unseen values, other nodes need less.
      for (bool is_settled = false; !is_settled;) {
        chosen.reset();
        annotation = Annotate(*normal, config, excluded);
        chosen.emplace(*normal, annotation, bits, frozen);
        std::vector<ValueId> unseen;
        const auto status = chosen->ChooseParams(graph, seen, config, may_be_unseen ? &unseen : nullptr);
        if (!status.ok()) return status;
        is_settled = !Exclude(normal->graph, annotation, unseen, &excluded);
        if (is_settled && !unseen.empty())
          return absl::InternalError("a value was chosen for 8 bits, and no op reads it");
      }
      return absl::OkStatus();
    };
    if (auto status = settle(); !status.ok()) return status;
    if (config.choices != nullptr) {
      const Annotation before = annotation;
      MakeChoices(*normal, before, *chosen, seen, bits, config.choices.get());
      ExcludeByChoice(*normal, before, *config.choices, &excluded);
      if (auto status = settle(); !status.ok()) return status;
      ApplyChoices(*normal, before, *config.choices, &annotation);
    }
    Converter& converter = *chosen;
    if (config.bias_correction) converter.ChooseMeans(seen);
    converter.Run();

    QuantizedGraph result;
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      OpReport row{ReportedOpOf(graph.nodes[i])};
      const Fate& fate = normal->fates[i];
      ValueId measured;
      if (!fate.now.valid()) {
        row.decision = Decision::kFolded;
        row.reason = fate.folded;
      } else {
        const size_t n = fate.now.raw();
        row.decision = DecisionOf(annotation.role[n]);
        row.reason = annotation.reason[n];
        if (row.decision == Decision::kFloat && !fate.note.empty()) row.reason = fate.note;
        if (annotation.role[n] != Role::kPart) {
          const auto& outputs = normal->graph.node(LastOf(fate.now, annotation)).outputs;
          if (!outputs.empty() && IsFloatTensor(normal->graph.value(outputs[0]).type)) {
            measured = converter.Measured(outputs[0]);
          }
        }
      }
      result.report.push_back(std::move(row));
      result.measured.push_back(measured);
    }
    result.reference = std::move(converter.out().graph);
    result.reference_origin = std::move(converter.out().origin);
    auto lowered = Lower(result.reference, frozen);
    if (lowered.ok()) {
      result.lowered = *std::move(lowered);
    } else {
      result.lowered = result.reference;
      result.lowering_note = std::string(lowered.status().message());
    }
    if (config.measure) {
      if (auto status = Measure(graph, seen.kept, &result); !status.ok()) return status;
    }
    return result;
  } catch (const c10::Error& e) {
    return absl::InternalError(absl::StrCat("quantizing the graph: ", e.what_without_backtrace()));
  }
}

}  // namespace frametap::quant
