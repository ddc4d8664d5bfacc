#include "backends/quant/choose.h"

#include <ATen/ops/zeros.h>

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
#include "backends/quant/convolution.h"
#include "backends/quant/frozen.h"
#include "backends/quant/op_table.h"
#include "backends/quant/operators.h"
#include "backends/quant/quantize.h"

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

// The graph of one layer in one form.
class OneLayer {
 public:
  OneLayer(const Normal& normal, NodeId layer, const at::Tensor& x) : normal_(normal), node_(normal.graph.node(layer)) {
    graph_.states = normal.graph.states;
    x_ = graph_.AddInput("x", Type::Of(x));
  }

  Graph Make(Form form, const Params& p, int bits) {
    ValueId input = x_, weight;
    if (form == Form::kFloat) {
      weight = Constant("weight", normal_.FrozenFloat(node_, "weight"));
    } else {
      const int64_t axis = OutputAxisOf(node_);
      const QuantizedWeight w = QuantizeWeight(normal_.FrozenFloat(node_, "weight"), axis);
      weight = Emit("frametap::dequantize_per_channel",
                    {Arg::Of(Constant("bytes", w.bytes)), Arg::Of(Constant("scales", w.scales)),
                     Arg::Of(Constant("zeros", w.zero_points)), Arg::Const(axis)},
                    Type::Of(normal_.FrozenFloat(node_, "weight")));
    }
    const Type floats = graph_.value(x_).type;
    if (form == Form::kStatic) {
      const ValueId bytes = Emit("frametap::quantize_per_tensor",
                                 {Arg::Of(x_), Arg::Const(p.scale), Arg::Const(p.zero_point), Arg::Const(p.qmin),
                                  Arg::Const(p.qmax), Arg::Const(static_cast<int64_t>(at::kByte))},
                                 Retyped(floats, at::kByte));
      input = Emit("frametap::dequantize_per_tensor", {Arg::Of(bytes), Arg::Const(p.scale), Arg::Const(p.zero_point)},
                   floats);
    } else if (form == Form::kDynamic) {
      input = Emit("frametap::round_rows", {Arg::Of(x_), Arg::Const(static_cast<int64_t>(bits))}, floats);
    }
    Node node = node_;
    for (Arg& arg : node.args) {
      if (arg.kind != Arg::Kind::kValue) continue;
      const bool is_bias = TensorArg(node_, "bias") == arg.value;
      arg.value = TensorArg(node_, "weight") == arg.value ? weight
                  : is_bias                               ? Constant("bias", normal_.FrozenFloat(node_, "bias"))
                                                          : input;
    }
    node.outputs = {graph_.NewValue("y", normal_.graph.value(node_.outputs[0]).type)};
    graph_.outputs = node.outputs;
    graph_.AddNode(std::move(node));
    return std::move(graph_);
  }

 private:
  ValueId Constant(const char* name, const at::Tensor& tensor) {
    const ValueId v = graph_.NewValue(name, Type::Of(tensor));
    graph_.constants.emplace_back(v, tensor.detach());
    return v;
  }
  ValueId Emit(const char* op, std::vector<Arg> args, const Type& type) {
    Node node;
    node.op = FindOperator(op);
    node.args = std::move(args);
    node.state = node_.state;
    node.outputs = {graph_.NewValue(absl::StrCat("v", graph_.values.size()), type)};
    const ValueId v = node.outputs[0];
    graph_.AddNode(std::move(node));
    return v;
  }

  const Normal& normal_;
  const Node& node_;
  Graph graph_;
  ValueId x_;
};

struct Trial {
  Form form = Form::kFloat;
  std::unique_ptr<Graph> graph;  // which the executable refers to
  std::unique_ptr<Executable> executable;
  double sqnr = std::numeric_limits<double>::infinity();
  double seconds = std::numeric_limits<double>::infinity();
};

// Without times. `exact`: the result of the float form, which comes first.
std::optional<Trial> TrialOf(Form form, Graph graph, const at::Tensor& x, at::Tensor* exact) {
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
  const at::Tensor result = trial.executable->Run({x})[0].toTensor();  // also warms the kernel up
  if (form == Form::kFloat) *exact = result;
  if (form != Form::kFloat) trial.sqnr = Sqnr(*exact, result);
  return trial;
}

// The shortest of several runs of each. They take turns, so that a busy moment of the machine slows all of them.
void Time(const at::Tensor& x, std::vector<Trial>* trials) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  const std::vector<c10::IValue> inputs{x};
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

static std::string NameOf(const Normal& normal, NodeId layer) {
  return IdentityOf(normal.FrozenFloat(normal.graph.node(layer), "weight"));
}

const Choice* Choices::Find(const Normal& normal, NodeId layer) const {
  const auto found = by_weight_.find(NameOf(normal, layer));
  return found == by_weight_.end() ? nullptr : &found->second;
}

void Choices::Make(const Normal& normal, NodeId layer, const at::Tensor& x, const Params& params, int bits) {
  std::vector<Form> forms{Form::kFloat, Form::kStatic};
  if (Is(normal.graph.node(layer), "aten::linear")) forms.push_back(Form::kDynamic);
  std::vector<Trial> trials;
  at::Tensor exact;
  for (const Form form : forms) {
    auto trial = TrialOf(form, OneLayer(normal, layer, x).Make(form, params, bits), x, &exact);
    if (trial) trials.push_back(*std::move(trial));
  }
  Time(x, &trials);
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
