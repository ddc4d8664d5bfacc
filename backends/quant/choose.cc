#include "backends/quant/choose.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "backends/backend.h"
#include "backends/quant/annotate.h"
#include "backends/quant/converter.h"
#include "backends/quant/frozen.h"
#include "backends/quant/op_table.h"
#include "backends/quant/quantize.h"
#include "backends/quant/recurrence.h"
#include "backends/quant/rewrite.h"

namespace frametap::quant {
namespace {

using Form = Choice::Form;

constexpr double kGain = 0.9;  // H2
constexpr int kLeastRuns = 3, kRuns = 60;
constexpr double kBudget = 0.03;  // seconds for all forms of a layer

const char* WordOf(Form form) {
  switch (form) {
    case Form::kStatic:
      return "static int8";
    case Form::kDynamic:
      return "dynamic int8";
    case Form::kFloat:
      return "float";
  }
  return "?";
}

// One op of a normalised graph as a graph of its own, in one form or another. All that the op reads is an input.
class OneOp {
 public:
  OneOp(const NormalizedGraph& whole, NodeId op) {
    Graph& graph = normal_.graph;
    graph.states = whole.graph.states;
    Node node = whole.graph.node(op);
    node.args = WithValues(std::move(node.args), [&](ValueId v) {
      const auto [found, is_new] = now_.try_emplace(v);
      if (is_new) {
        found->second = graph.AddInput(absl::StrCat("x", reads_.size()), whole.graph.value(v).type);
        reads_.push_back(v);
        normal_.known.push_back(whole.known[v.raw()]);
      }
      return found->second;
    });
    for (ValueId& v : node.outputs) v = graph.NewValue(absl::StrCat("y", v.raw()), whole.graph.value(v).type);
    graph.outputs = node.outputs;
    graph.AddNode(std::move(node));
    normal_.origin.resize(graph.values.size());
    normal_.known.resize(graph.values.size());
    normal_.written.assign(graph.values.size(), false);
    normal_.rewritten.assign(graph.values.size(), false);
    normal_.writer.resize(graph.values.size());
  }

  const Node& node() const { return normal_.graph.nodes[0]; }
  // The values of the whole graph that the op reads, by input.
  const std::vector<ValueId>& reads() const { return reads_; }

  // `params`: of the layer's input, for the static form.
  Graph Make(Form form, const Params& params, int bits) const {
    const size_t values = normal_.graph.values.size();
    Annotation a;
    a.role = {form == Form::kStatic ? Role::kAnchor : form == Form::kDynamic ? Role::kDynamic : Role::kFloat};
    a.owner.resize(1);
    a.reason.resize(1);
    a.quantized.assign(values, false);
    a.params_class.resize(values);
    a.source.assign(values, true);
    a.in_two_bytes.assign(1, false);
    if (form == Form::kStatic) a.quantized[TensorArg(node(), "input")->raw()] = true;
    Converter converter(normal_, a, bits, nullptr);
    if (form == Form::kStatic) converter.SetParams(*TensorArg(node(), "input"), params);
    converter.Run();
    return std::move(converter.out().graph);
  }

 private:
  NormalizedGraph normal_;
  absl::flat_hash_map<ValueId, ValueId> now_;  // by value of the whole graph
  std::vector<ValueId> reads_;
};

struct Trial {
  Form form = Form::kFloat;
  std::unique_ptr<Graph> graph;  // which the executable refers to
  std::unique_ptr<Executable> executable;
  double sqnr = std::numeric_limits<double>::infinity();
  double seconds = std::numeric_limits<double>::infinity();
};

// Without times. `exact`: the results of the float form, which comes first.
std::optional<Trial> TrialOf(Form form, Graph graph, const std::vector<c10::IValue>& inputs,
                             std::vector<c10::IValue>* exact) {
  if (form != Form::kFloat) {
    auto lowered = Lower(graph);
    if (!lowered.ok()) return std::nullopt;
    graph = *std::move(lowered);
  }
  Trial trial;
  trial.form = form;
  trial.graph = std::make_unique<Graph>(std::move(graph));
  auto executable = MakeNativeBackend()->CompileFor(*trial.graph, {});
  if (!executable.ok()) return std::nullopt;
  trial.executable = *std::move(executable);
  const std::vector<c10::IValue> results = trial.executable->Run(inputs);  // also warms the kernel up
  if (form == Form::kFloat) *exact = results;
  for (size_t i = 0; i < results.size() && form != Form::kFloat; ++i) {
    trial.sqnr = std::min(trial.sqnr, Sqnr((*exact)[i].toTensor(), results[i].toTensor()));
  }
  return trial;
}

// The shortest of several runs of each. They take turns, so that a busy moment of the machine slows all of them.
void Time(const std::vector<c10::IValue>& inputs, std::vector<Trial>* trials) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < kRuns && (i < kLeastRuns || seconds(Clock::now() - begin) < kBudget); ++i) {
    for (Trial& trial : *trials) {
      const Clock::time_point start = Clock::now();
      trial.executable->Run(inputs);
      trial.seconds = std::min(trial.seconds, seconds(Clock::now() - start));
    }
  }
}

std::string WordsFor(const std::vector<Trial>& trials, const Trial& best, double least_sqnr) {
  std::vector<std::string> parts;
  for (const Trial& t : trials) {
    const bool is_exact = !(t.sqnr < std::numeric_limits<double>::infinity());
    parts.push_back(absl::StrFormat("%s %.1f µs", WordOf(t.form), t.seconds * 1e6) +
                    (is_exact              ? ""
                     : t.sqnr < least_sqnr ? absl::StrFormat(" (%.1f dB is too little)", t.sqnr)
                                           : absl::StrFormat(" (%.1f dB)", t.sqnr)));
  }
  return absl::StrCat(WordOf(best.form), " was chosen: ", absl::StrJoin(parts, ", "));
}

}  // namespace

// H3.
static std::string NameOf(const NormalizedGraph& normal, NodeId layer) {
  const Node& node = normal.graph.node(layer);
  if (FamilyOf(node) != Family::kRecurrent) return IdentityOf(normal.FrozenFloat(node, "weight"));
  std::string why;
  return IdentityOf(normal.known[RecurrenceOf(normal, node, &why)->parts[0].input_weight.raw()]);
}

const Choice* Choices::Find(const NormalizedGraph& normal, NodeId layer) const {
  const auto found = by_weight_.find(NameOf(normal, layer));
  return found == by_weight_.end() ? nullptr : &found->second;
}

void Choices::Make(const NormalizedGraph& normal, NodeId layer, absl::FunctionRef<c10::IValue(ValueId)> value,
                   const Params& params, int bits) {
  const Node& node = normal.graph.node(layer);
  const bool is_recurrent = FamilyOf(node) == Family::kRecurrent;
  std::vector<Form> forms{Form::kFloat};
  if (!is_recurrent) forms.push_back(Form::kStatic);
  if (is_recurrent || Is(node, "aten::linear")) forms.push_back(Form::kDynamic);
  const OneOp op(normal, layer);
  std::vector<c10::IValue> inputs;
  for (const ValueId v : op.reads()) {
    const at::Tensor& known = normal.known[v.raw()];
    inputs.push_back(known.defined() ? c10::IValue(known) : value(v));
  }
  std::vector<Trial> trials;
  std::vector<c10::IValue> exact;
  for (const Form form : forms) {
    auto trial = TrialOf(form, op.Make(form, params, bits), inputs, &exact);
    if (trial) trials.push_back(*std::move(trial));
  }
  Time(inputs, &trials);
  // In the order of H2, each has to beat the best one before it.
  std::sort(trials.begin(), trials.end(), [](const Trial& a, const Trial& b) { return a.form < b.form; });
  const Trial* best = nullptr;
  for (const Trial& t : trials) {
    if (t.form != Form::kFloat && !(t.sqnr >= least_sqnr_)) continue;
    if (best == nullptr || t.seconds < kGain * best->seconds) best = &t;
  }
  if (best == nullptr) return;
  by_weight_.emplace(NameOf(normal, layer), Choice{best->form, WordsFor(trials, *best, least_sqnr_)});
}

}  // namespace frametap::quant
