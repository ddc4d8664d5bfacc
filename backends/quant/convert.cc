#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "backends/quant/annotate.h"
#include "backends/quant/choose.h"
#include "backends/quant/converter.h"
#include "backends/quant/observe.h"
#include "backends/quant/op_table.h"
#include "backends/quant/operators.h"
#include "backends/quant/quantize.h"
#include "backends/quant/rounding_errors.h"
#include "backends/quant/states.h"
#include "backends/reference/graph_interpreter.h"

namespace frametap::quant {
namespace {

Decision DecisionOf(Role role) {
  switch (role) {
    case Role::kFloat:
    case Role::kBfloat16:
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
std::vector<std::string> NotMet(const NormalizedGraph& normal, const ObservationView& seen) {
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

bool ReadsExtrapolated(const Node& node, const ObservationView& seen) {
  if (seen.extrapolated.empty()) return false;
  bool any = false;
  ForEachUse(node.args, [&](ValueId v) { any = any || seen.extrapolated[v.raw()]; });
  for (const ValueId v : node.outputs) any = any || seen.extrapolated[v.raw()];
  return any;
}

// Whether the node is a layer that is to be static, or a recurrence that is to be dynamic.
bool HasChoice(const Annotation& a, NodeId n) {
  return a.role[n.raw()] == Role::kAnchor || a.role[n.raw()] == Role::kDynamic;
}

// Makes the choices for all layers, on the first run that calibration has kept.
void MakeChoices(const NormalizedGraph& normal, const Annotation& a, const Converter& converter,
                 const ObservationView& seen, int bits, Choices* choices) {
  if (seen.kept.empty()) return;
  std::vector<c10::IValue> inputs = seen.kept[0];
  for (c10::IValue& input : inputs) {
    if (input.isTensor()) input = input.toTensor().clone();  // the graph may write to it
  }
  GraphInterpreter walk(normal.graph, std::move(inputs));
  while (!walk.done()) {
    const NodeId n = walk.next();
    const Node& node = normal.graph.node(n);
    if (HasChoice(a, n) && choices->Find(normal, n) == nullptr) {
      const bool is_static = a.role[n.raw()] == Role::kAnchor;
      choices->Make(
          normal, n, [&](ValueId v) { return walk.value(v); },
          is_static ? converter.ParamsFor(*TensorArg(node, "input")) : Params(), bits);
    }
    walk.Step();
  }
}

// The layers that are chosen to be float are excluded, and so are those that are to be dynamic instead of static.
void ExcludeByChoice(const NormalizedGraph& normal, const Annotation& a, const Choices& choices,
                     std::vector<std::string>* excluded) {
  for (size_t i = 0; i < excluded->size(); ++i) {
    if (!HasChoice(a, NodeId(i)) || !(*excluded)[i].empty()) continue;
    const Choice* const choice = choices.Find(normal, NodeId(i));
    const bool is_as_before =
        choice == nullptr ||
        choice->form == (a.role[i] == Role::kAnchor ? Choice::Form::kStatic : Choice::Form::kDynamic);
    if (!is_as_before) (*excluded)[i] = choice->words;
  }
}

// Words and roles of the layers, which `before` has as if nothing were chosen.
void ApplyChoices(const NormalizedGraph& normal, const Annotation& before, const Choices& choices, Annotation* a) {
  for (size_t i = 0; i < a->role.size(); ++i) {
    if (!HasChoice(before, NodeId(i))) continue;
    const Choice* const choice = choices.Find(normal, NodeId(i));
    if (choice == nullptr) {
      a->reason[i] = absl::StrCat(before.role[i] == Role::kAnchor ? "static" : "dynamic",
                                  " int8, not timed: calibration kept no input of it");
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
      const NodeId def = graph.value(v).def;
      const bool is_state = def.valid() && IsState(graph.node(def));
      const ValueId named = is_state ? graph.node(def).args[0].value : v;
      (*excluded)[i] = absl::StrCat("calibration did not meet %", graph.value(named).name,
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

// A graph with a decision for each node and parameters for each value in 8 bits.
struct Draft {
  NormalizedGraph normal;
  std::vector<std::string> excluded;
  Annotation annotation;
  std::optional<Converter> converter;  // refers to the others
};

// Decides again until no int8 op reads a value that calibration has not seen.
absl::Status Settle(const Graph& graph, const ObservationView& seen, const QuantConfig& config, FrozenWeights* frozen,
                    bool may_be_unseen, Draft* draft) {
  // Without the readers of unseen values, other nodes need less.
  for (bool is_settled = false; !is_settled;) {
    draft->converter.reset();
    draft->annotation = Annotate(draft->normal, config, draft->excluded);
    draft->converter.emplace(draft->normal, draft->annotation, BitsOfActivations(config), frozen);
    std::vector<ValueId> unseen;
    const auto status = draft->converter->ChooseParams(graph, seen, config, may_be_unseen ? &unseen : nullptr);
    if (!status.ok()) return status;
    is_settled = !Exclude(draft->normal.graph, draft->annotation, unseen, &draft->excluded);
    if (is_settled && !unseen.empty()) {
      return absl::InternalError("a value was chosen for 8 bits, and no op reads it");
    }
  }
  return absl::OkStatus();
}

absl::Status Begin(const Graph& graph, const std::vector<at::Tensor>& weights, const ObservationView& seen,
                   const QuantConfig& config, FrozenWeights* frozen, bool may_be_unseen, Draft* draft) {
  RegisterOperators();
  if (config.activation_bits != 0 && config.activation_bits != 7 && config.activation_bits != 8) {
    return absl::InvalidArgumentError("activation_bits must be 0 (by the CPU), 7 or 8");
  }
  auto normal = Normalise(graph, weights, frozen);
  if (!normal.ok()) return normal.status();
  draft->normal = *std::move(normal);
  draft->excluded = NotMet(draft->normal, seen);
  return Settle(graph, seen, config, frozen, may_be_unseen, draft);
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
  ObservationView seen = ObservationView::Of(observation);
  if (seen.runs == 0) {
    return absl::FailedPreconditionError("calibration saw no data: call the observed function on some inputs first");
  }
  const Graph stated = WithStates(graph);
  if (auto status = AddRoundingErrors(stated, weights, seen, config, nullptr, &seen.statistics); !status.ok())
    return status;
  auto converted = ConvertSeen(stated, weights, seen, config, nullptr, false);
  if (converted.ok()) DropRowsOfStates(stated, &converted->report);
  return converted;
}

absl::Status AddRoundingErrors(const Graph& graph, const std::vector<at::Tensor>& weights, const ObservationView& seen,
                               const QuantConfig& config, FrozenWeights* frozen, std::vector<Statistics>* statistics) {
  if (!config.bias_correction) return absl::OkStatus();
  const at::NoGradGuard no_grad;
  try {
    Draft draft;
    if (auto status = Begin(graph, weights, seen, config, frozen, false, &draft); !status.ok()) return status;
    draft.converter->ChooseCorrections(seen);
    draft.converter->MakeBiases();
    draft.converter->Run();
    AddErrors(draft.normal, ByteReads(draft.normal, draft.annotation), &*draft.converter, seen.kept, statistics);
  } catch (const c10::Error& e) {
    return absl::InternalError(absl::StrCat("running the graph on calibration data: ", e.what_without_backtrace()));
  }
  return absl::OkStatus();
}

absl::StatusOr<QuantizedGraph> ConvertSeen(const Graph& graph, const std::vector<at::Tensor>& weights,
                                           const ObservationView& seen, const QuantConfig& config,
                                           FrozenWeights* frozen, bool may_be_unseen) {
  const at::NoGradGuard no_grad;
  try {
    Draft draft;
    if (auto status = Begin(graph, weights, seen, config, frozen, may_be_unseen, &draft); !status.ok()) return status;
    const NormalizedGraph* const normal = &draft.normal;
    Annotation& annotation = draft.annotation;
    if (config.choices != nullptr) {
      const Annotation before = annotation;
      MakeChoices(*normal, before, *draft.converter, seen, BitsOfActivations(config), config.choices.get());
      ExcludeByChoice(*normal, before, *config.choices, &draft.excluded);
      if (auto status = Settle(graph, seen, config, frozen, may_be_unseen, &draft); !status.ok()) return status;
      ApplyChoices(*normal, before, *config.choices, &annotation);
    }
    Converter& converter = *draft.converter;
    if (config.bias_correction) converter.ChooseCorrections(seen);
    converter.Run();

    QuantizedGraph result;
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      OpReport row{ReportedOpOf(graph.nodes[i])};
      const NodeDisposition& fate = normal->fates[i];
      ValueId measured;
      if (!fate.now.valid()) {
        row.decision = Decision::kFolded;
        row.reason = fate.folded;
      } else {
        const size_t n = fate.now.raw();
        row.decision = DecisionOf(annotation.role[n]);
        row.reason = annotation.reason[n];
        if (row.decision == Decision::kFloat && !fate.note.empty()) row.reason = fate.note;
        row.is_extrapolated = row.decision == Decision::kInt8 && ReadsExtrapolated(graph.nodes[i], seen);
        if (row.is_extrapolated) absl::StrAppend(&row.reason, row.reason.empty() ? "" : "; ", kExtrapolated);
        if (annotation.role[n] != Role::kPart) {
          const auto& outputs = normal->graph.node(LastOf(fate.now, annotation)).outputs;
          if (!outputs.empty() && IsFloatTensor(normal->graph.value(outputs[0]).type)) {
            measured = converter.Measured(normal->WithOrigin(outputs[0]));
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
