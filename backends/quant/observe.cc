#include "backends/quant/observe.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "backends/quant/bias_correction.h"
#include "backends/quant/curves.h"
#include "backends/quant/first_rows.h"
#include "backends/quant/linears.h"
#include "backends/quant/normalise.h"
#include "backends/quant/op_table.h"
#include "backends/quant/operators.h"
#include "backends/quant/rewrite.h"
#include "backends/quant/states.h"
#include "backends/reference/graph_interpreter.h"

namespace frametap::quant {
namespace {

// Conversion walks the kept runs about ten times. It keeps rows whose graphs have about so many elements, but some at least.
constexpr int64_t kKeptElements = int64_t{32} << 20;
constexpr int64_t kLeastKeptRows = 4;

// Whether the result of `node` never exists in 8 bits, because only `reader` reads it, and is part of the same kernel where
// that has bytes (annotate/A1). Views may follow the layer that an einsum becomes (linears/L4).
bool StaysInKernel(const Node& node, const Node& reader) {
  const Family made_by = FamilyOf(node);
  const bool is_product = MayBeLinear(node) && !Is(node, "aten::einsum");
  const bool is_layer = IsLayer(node) || is_product || made_by == Family::kBatchNorm;
  if (FamilyOf(reader) == Family::kRelu) return is_layer || made_by == Family::kAdd;
  return FamilyOf(reader) == Family::kCurve && is_layer && CurveOf(reader).has_value();
}

// Returns, by value of the source graph, whether it may be asked for in 8 bits (annotate/A2). Layers ask for their inputs,
// and so do ops on bytes whose results are asked for.
std::vector<bool> Interesting(const NormalizedGraph& normal, size_t values) {
  const Graph& graph = normal.graph;
  const Uses uses(graph);
  std::vector<bool> may_be_bytes(graph.values.size(), false);
  std::vector<bool> out(values, false);
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const Node& node = graph.nodes[i];
    const bool asks =
        std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return bool(may_be_bytes[v.raw()]); });
    if (!IsLayer(node) && !MayBeLinear(node) && !(asks && IsByteFamily(FamilyOf(node)))) continue;
    ForEachUse(node.args, [&](ValueId v) {
      may_be_bytes[v.raw()] = true;
      const NodeId def = graph.value(v).def;
      const ValueId origin = normal.origin[v.raw()];
      if (!origin.valid() || normal.known[v.raw()].defined() || !IsFloatTensor(graph.value(v).type)) return;
      const bool is_inside = def.valid() && uses.sole(v) == NodeId(i) && StaysInKernel(graph.node(def), node);
      if (!is_inside) out[origin.raw()] = true;
    });
  }
  return out;
}

// By value: the dimensions along which layers sum it (ChannelsOf).
std::vector<std::vector<int64_t>> SummedBy(const Graph& graph) {
  std::vector<std::vector<int64_t>> out(graph.values.size());
  const auto add = [&](ValueId v, int64_t dim) {
    std::vector<int64_t>& dims = out[v.raw()];
    if (std::find(dims.begin(), dims.end(), dim) == dims.end()) dims.push_back(dim);
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
  ObservingExecutable(const Graph& graph, const NormalizedGraph& normal, std::vector<at::Tensor> weights,
                      std::shared_ptr<Observation> observation)
      : graph_(graph),
        weights_(std::move(weights)),
        interesting_(Interesting(normal, graph_.values.size())),
        summed_by_(SummedBy(graph_)),
        observation_(std::move(observation)) {}

  std::vector<c10::IValue> Run(const std::vector<c10::IValue>& inputs, bool* changed) override {
    *changed = true;
    std::optional<std::vector<c10::IValue>> kept = CopyToKeep(inputs);
    GraphInterpreter walk(graph_, inputs, Held());
    for (ValueId v : graph_.inputs) Observe(&walk, v);
    int64_t elements = 0;
    while (!walk.done()) {
      const NodeId n = walk.Step();
      for (ValueId v : graph_.node(n).outputs) {
        const c10::IValue& value = walk.value(v);
        if (value.isTensor() && value.toTensor().defined()) elements += value.toTensor().numel();
        Observe(&walk, v);
      }
    }
    std::vector<c10::IValue> outputs = walk.Outputs();
    if (kept) Keep(*std::move(kept), outputs, elements);
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
      const std::lock_guard<std::mutex> lock(observation_->mutex_);
      if (observation_->statistics_.empty()) observation_->statistics_.resize(graph_.values.size());
      Statistics& statistics = observation_->statistics_[v.raw()];
      statistics.Add(value.toTensor());
      for (const int64_t dim : summed_by_[v.raw()]) statistics.AddChannels(value.toTensor(), dim);
    }
    walk->Release(v);
  }

  // Returns null if enough runs were kept.
  std::optional<std::vector<c10::IValue>> CopyToKeep(const std::vector<c10::IValue>& inputs) const {
    {
      const std::lock_guard<std::mutex> lock(observation_->mutex_);
      if (observation_->kept_.size() >= Observation::kKeptRuns) return std::nullopt;
    }
    std::vector<c10::IValue> copy = inputs;
    for (size_t i = 0; i < copy.size(); ++i) {
      if (copy[i].isTensor() && !weights_[i].defined()) copy[i] = copy[i].toTensor().detach().clone();
    }
    return copy;
  }

  void Keep(std::vector<c10::IValue> inputs, const std::vector<c10::IValue>& outputs, int64_t elements) {
    const int64_t batch = BatchOf(inputs, weights_);
    int64_t left = batch;
    if (batch > 0 && elements > 0) {
      const std::lock_guard<std::mutex> lock(observation_->mutex_);
      left = std::max(kLeastKeptRows, kKeptElements / std::max<int64_t>(1, elements / batch)) - RowsKept();
      if (left <= 0) return;
    }
    if (left < batch) {
      if (auto part = FirstRows(graph_, weights_, inputs, outputs, left)) inputs = *std::move(part);
    }
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
    observation_->kept_.push_back(std::move(inputs));
  }

  int64_t RowsKept() const {
    int64_t rows = 0;
    for (const std::vector<c10::IValue>& run : observation_->kept_) rows += BatchOf(run, weights_);
    return rows;
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
  return {observation.runs_, observation.statistics_, observation.kept_, {}, {}};
}

absl::StatusOr<std::unique_ptr<Executable>> MakeObservingExecutable(const Graph& graph, std::vector<at::Tensor> weights,
                                                                    std::shared_ptr<Observation> observation) {
  RegisterOperators();
  const Graph stated = WithStates(graph);
  const auto normal = NormaliseOps(stated, weights);
  if (!normal.ok()) return normal.status();
  return std::unique_ptr<Executable>(
      new ObservingExecutable(stated, *normal, std::move(weights), std::move(observation)));
}

}  // namespace frametap::quant
