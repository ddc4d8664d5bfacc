#include "backends/quant/observe.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backends/quant/bias_correction.h"
#include "backends/quant/linears.h"
#include "backends/quant/op_table.h"
#include "backends/quant/operators.h"
#include "backends/quant/rewrite.h"
#include "backends/reference/graph_interpreter.h"

namespace frametap::quant {
namespace {

// Values that may be asked for in 8 bits. A convolution's result that only a batch norm reads never is.
std::vector<bool> Interesting(const Graph& graph, const std::vector<at::Tensor>& weights) {
  std::vector<bool> out(graph.values.size(), false);
  for (size_t v = 0; v < graph.values.size(); ++v) out[v] = IsFloatTensor(graph.values[v].type);
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    if (weights[i].defined()) out[graph.inputs[i].raw()] = false;
  }
  for (const auto& [v, tensor] : graph.constants) out[v.raw()] = false;
  const Uses uses(graph);
  for (const Node& node : graph.nodes) {
    const OpRow* row = RowOf(node);
    if (row == nullptr || (row->family != Family::kConv && row->family != Family::kLinear)) continue;
    const NodeId next = uses.sole(node.outputs[0]);
    if (!next.valid()) continue;
    const OpRow* reader = RowOf(graph.node(next));
    if (reader != nullptr && reader->family == Family::kBatchNorm &&
        ConstBool(FindArg(graph.node(next), "training")) == false) {
      out[node.outputs[0].raw()] = false;
    }
  }
  return out;
}

// By value: the dimensions along which layers sum it (ChannelsOf).
std::vector<std::vector<int64_t>> SummedBy(const Graph& graph, const std::vector<bool>& interesting) {
  std::vector<std::vector<int64_t>> out(graph.values.size());
  const auto add = [&](ValueId v, int64_t dim) {
    std::vector<int64_t>& dims = out[v.raw()];
    if (interesting[v.raw()] && std::find(dims.begin(), dims.end(), dim) == dims.end()) dims.push_back(dim);
  };
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const Node& node = graph.nodes[i];
    if (FamilyOf(node) == Family::kDropout && node.args[0].kind == Arg::Kind::kValue) {
      // Layers will read what is dropped from (normalise/M2).
      for (const int64_t dim : out[node.outputs[0].raw()]) add(node.args[0].value, dim);
      continue;
    }
    const auto weight = TensorArg(node, "weight");
    const bool is_product = MayBeLinear(node);
    if (!is_product && !(IsLayer(node) && weight)) continue;
    const int64_t dim =
        is_product ? -1 : ChannelsOf(node, static_cast<int64_t>(graph.value(*weight).type.sizes.size()));
    ForEachUse(node.args, [&](ValueId v) { add(v, dim); });
  }
  return out;
}

}  // namespace

class ObservingExecutable : public Executable {
 public:
  ObservingExecutable(const Graph& graph, std::vector<at::Tensor> weights, std::shared_ptr<Observation> observation)
      : graph_(graph),
        weights_(std::move(weights)),
        interesting_(Interesting(graph_, weights_)),
        summed_by_(SummedBy(graph_, interesting_)),
        observation_(std::move(observation)) {}

  std::vector<c10::IValue> Run(const std::vector<c10::IValue>& inputs, bool* changed) override {
    *changed = true;
    Keep(inputs);
    GraphInterpreter walk(graph_, inputs, Held());
    for (ValueId v : graph_.inputs) Observe(&walk, v);
    while (!walk.done()) {
      const NodeId n = walk.Step();
      for (ValueId v : graph_.node(n).outputs) Observe(&walk, v);
    }
    std::vector<c10::IValue> outputs = walk.Outputs();
    const std::lock_guard<std::mutex> lock(observation_->mutex_);
    ++observation_->runs_;
    return outputs;
  }

 private:
  // Each interesting value lives until it was looked at, also if the graph does not read it.
  std::vector<int> Held() const { return {interesting_.begin(), interesting_.end()}; }

  void Observe(GraphInterpreter* walk, ValueId v) {
    if (!interesting_[v.raw()]) return;
    const c10::IValue& value = walk->value(v);
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().scalar_type() == at::kFloat) {
      Statistics seen;
      seen.Add(value.toTensor());
      for (const int64_t dim : summed_by_[v.raw()]) seen.AddChannels(value.toTensor(), dim);
      const std::lock_guard<std::mutex> lock(observation_->mutex_);
      if (observation_->statistics_.empty()) observation_->statistics_.resize(graph_.values.size());
      observation_->statistics_[v.raw()].Add(seen);
    }
    walk->Release(v);
  }

  void Keep(const std::vector<c10::IValue>& inputs) {
    int64_t bytes = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].isTensor() && !weights_[i].defined()) bytes += static_cast<int64_t>(inputs[i].toTensor().nbytes());
    }
    const std::lock_guard<std::mutex> lock(observation_->mutex_);
    if (observation_->kept_.size() >= Observation::kKeptRuns ||
        observation_->kept_bytes_ + bytes > Observation::kKeptBytes) {
      return;
    }
    observation_->kept_bytes_ += bytes;
    std::vector<c10::IValue> copy = inputs;
    for (size_t i = 0; i < copy.size(); ++i) {
      if (copy[i].isTensor() && !weights_[i].defined()) copy[i] = copy[i].toTensor().detach().clone();
    }
    observation_->kept_.push_back(std::move(copy));
  }

  const Graph graph_;
  const std::vector<at::Tensor> weights_;
  const std::vector<bool> interesting_;
  const std::vector<std::vector<int64_t>> summed_by_;
  const std::shared_ptr<Observation> observation_;
};

namespace {

// Runs as the native executable does, and keeps the inputs of the recording until they have been observed.
class CalibratingExecutable : public Executable {
 public:
  CalibratingExecutable(std::unique_ptr<Executable> native, Examples first)
      : first(std::move(first.values)), native_(std::move(native)) {}

  std::vector<c10::IValue> Run(const std::vector<c10::IValue>& inputs, bool* changed) override {
    return native_->Run(inputs, changed);
  }
  bool Reads(size_t input) override { return native_->Reads(input); }

  std::optional<std::vector<c10::IValue>> first;

 private:
  const std::unique_ptr<Executable> native_;
};

}  // namespace

std::unique_ptr<Executable> MakeCalibratingExecutable(std::unique_ptr<Executable> native, const Examples& examples) {
  return std::make_unique<CalibratingExecutable>(std::move(native), examples);
}

std::optional<std::vector<c10::IValue>> TakeFirstInputs(Executable& executable) {
  auto* const calibrating = dynamic_cast<CalibratingExecutable*>(&executable);
  if (calibrating == nullptr) return std::nullopt;
  return std::exchange(calibrating->first, std::nullopt);
}

int64_t Observation::runs() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return runs_;
}

ObservationView ObservationView::Of(const Observation& observation) {
  const std::lock_guard<std::mutex> lock(observation.mutex_);
  return {observation.runs_, observation.statistics_, observation.kept_, {}};
}

absl::StatusOr<std::unique_ptr<Executable>> MakeObservingExecutable(const Graph& graph, std::vector<at::Tensor> weights,
                                                                    std::shared_ptr<Observation> observation) {
  RegisterOperators();
  if (weights.size() != graph.inputs.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the graph has ", graph.inputs.size(), " inputs, but ",
                                                   weights.size(), " entries of weights were given"));
  }
  return std::unique_ptr<Executable>(new ObservingExecutable(graph, std::move(weights), std::move(observation)));
}

}  // namespace frametap::quant
