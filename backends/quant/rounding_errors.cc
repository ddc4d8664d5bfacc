#include "backends/quant/rounding_errors.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/sub.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "backends/quant/bias_correction.h"
#include "backends/quant/converter.h"
#include "backends/quant/op_table.h"
#include "backends/reference/graph_interpreter.h"

namespace frametap::quant {
namespace {

constexpr int64_t kMostBytes = int64_t{8} << 20;  // R2, of inputs

// The operand of a sum that is not the result of the layer which computes the sum.
ValueId OtherThan(ValueId result, const Node& sum) {
  const std::vector<ValueId> operands = ActivationsOf(sum);
  const auto other = std::find_if(operands.begin(), operands.end(), [&](ValueId v) { return v != result; });
  return other == operands.end() ? ValueId() : *other;
}

int64_t BytesOf(const NormalizedGraph& normal, const std::vector<c10::IValue>& inputs) {
  int64_t bytes = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool is_weight = normal.known[normal.graph.inputs[i].raw()].defined();
    if (inputs[i].isTensor() && !is_weight) bytes += static_cast<int64_t>(inputs[i].toTensor().nbytes());
  }
  return bytes;
}

class Errors {
 public:
  Errors(const NormalizedGraph& normal, const std::vector<ByteRead>& reads, Converter* converter,
         std::vector<Statistics>* statistics)
      : normal_(normal), converter_(*converter), reference_(converter->out().graph), statistics_(*statistics) {
    exact_hold_.assign(normal.graph.values.size(), 0);
    rounded_hold_.assign(reference_.values.size(), 0);
    absl::flat_hash_set<std::pair<ValueId, int64_t>> seen;
    for (const ByteRead& read : reads) {
      const NodeId at = NodeOf(read.layer);
      reads_[at].push_back(read);
      if (!IsMadeBefore(at, read.value) || !seen.insert({read.value, read.dim}).second) continue;
      added_.insert({read.layer, read.is_residual});
      ++exact_hold_[read.value.raw()];
      ++rounded_hold_[RoundedOf(read.value).raw()];
    }
  }

  void AddRun(const std::vector<c10::IValue>& inputs) {
    const auto own = [&] {
      std::vector<c10::IValue> copy = inputs;
      for (size_t i = 0; i < copy.size(); ++i) {
        const bool is_written = normal_.written[normal_.graph.inputs[i].raw()];
        if (copy[i].isTensor() && is_written) copy[i] = copy[i].toTensor().clone();
      }
      return copy;
    };
    runs_.push_back(std::make_unique<Run>(normal_.graph, own(), exact_hold_, reference_, own(), rounded_hold_));
  }

  void Walk() {
    for (size_t i = 0; i < reference_.nodes.size(); ++i) {
      const auto found = reads_.find(NodeId(i));
      if (found != reads_.end()) Correct(NodeId(i), found->second);
      for (const auto& run : runs_) run->rounded.Step();
    }
  }

 private:
  struct Run {
    Run(const Graph& graph, std::vector<c10::IValue> inputs, const std::vector<int>& exact_hold, const Graph& reference,
        std::vector<c10::IValue> same, const std::vector<int>& rounded_hold)
        : exact(graph, std::move(inputs), exact_hold), rounded(reference, std::move(same), rounded_hold) {}
    GraphInterpreter exact, rounded;
  };

  NodeId NodeOf(NodeId layer) { return reference_.value(converter_.out().at(Result(layer))).def; }
  ValueId Result(NodeId layer) const { return normal_.graph.node(layer).outputs[0]; }
  ValueId RoundedOf(ValueId v) const { return converter_.DequantizedOf(v); }

  bool IsMadeBefore(NodeId layer, ValueId v) const {
    const ValueId rounded = RoundedOf(v);
    const NodeId def = rounded.valid() ? reference_.value(rounded).def : NodeId();
    return def.valid() && def < layer && normal_.origin[v.raw()].valid() && !normal_.known[v.raw()].defined() &&
           !statistics_[normal_.origin[v.raw()].raw()].empty();
  }

  at::Tensor Exact(Run* run, ValueId v) const {
    const NodeId def = normal_.graph.value(v).def;
    while (def.valid() && !run->exact.done() && !(def < run->exact.next())) run->exact.Step();
    return run->exact.value(v).toTensor();
  }

  // The layer is about to run.
  void Correct(NodeId at, const std::vector<ByteRead>& reads) {
    ChannelFacts facts = converter_.FactsOf(reads[0].layer);
    for (const ByteRead& read : reads) {
      if (!IsMadeBefore(at, read.value)) continue;
      Statistics& statistics = statistics_[normal_.origin[read.value.raw()].raw()];
      if (added_.contains({read.layer, read.is_residual})) {
        for (const auto& run : runs_) Add(run.get(), read, &statistics);
      }
      (read.is_residual ? facts.residual_errors : facts.errors) = statistics.ErrorMeans(read.dim);
    }
    if (!facts.any()) return;
    const Node& layer = normal_.graph.node(reads[0].layer);
    const Node& rounded = reference_.node(at);
    const ValueId weight = *TensorArg(rounded, "weight"), bias = *TensorArg(rounded, "bias");
    at::Tensor now = BiasCorrection(layer, normal_.known[TensorArg(layer, "weight")->raw()],
                                    runs_[0]->rounded.value(weight).toTensor(), facts);
    if (const auto given = TensorArg(layer, "bias")) now = now.add(normal_.known[given->raw()].detach());
    for (const auto& run : runs_) run->rounded.Replace(bias, now);
  }

  void Add(Run* run, const ByteRead& read, Statistics* statistics) const {
    const ValueId rounded = RoundedOf(read.value);
    const at::Tensor want = Exact(run, read.value), got = run->rounded.value(rounded).toTensor();
    if (want.sizes() == got.sizes())
      statistics->AddErrors(at::sub(want, got), read.dim);  // a mask may choose other rows
    run->exact.Release(read.value);
    run->rounded.Release(rounded);
  }

  const NormalizedGraph& normal_;
  Converter& converter_;
  const Graph& reference_;
  std::vector<Statistics>& statistics_;
  absl::flat_hash_map<NodeId, std::vector<ByteRead>> reads_;  // by layer of the reference graph
  absl::flat_hash_set<std::pair<NodeId, bool>> added_;        // layer, is_residual: the first reads of their values
  std::vector<int> exact_hold_, rounded_hold_;
  std::vector<std::unique_ptr<Run>> runs_;
};

}  // namespace

std::vector<ByteRead> ByteReads(const NormalizedGraph& normal, const Annotation& annotation) {
  std::vector<ByteRead> reads;
  const Graph& graph = normal.graph;
  const auto dim_of = [&](const Node& layer) {
    return ChannelsOf(layer, normal.known[TensorArg(layer, "weight")->raw()].dim());
  };
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const NodeId owner = annotation.owner[i];
    if (annotation.role[i] == Role::kAnchor) {
      reads.push_back({NodeId(i), *TensorArg(node, "input"), dim_of(node)});
    } else if (annotation.role[i] == Role::kPart && FamilyOf(node) == Family::kAdd && IsLayer(graph.node(owner))) {
      const ValueId other = OtherThan(graph.node(owner).outputs[0], node);
      const NodeId def = other.valid() ? graph.value(other).def : owner;
      // The error of an addend that is made later is not known when the layer runs.
      if (!def.valid() || def < owner) reads.push_back({owner, other, dim_of(graph.node(owner)), true});
    }
  }
  return reads;
}

void AddErrors(const NormalizedGraph& normal, const std::vector<ByteRead>& reads, Converter* converter,
               const std::vector<std::vector<c10::IValue>>& runs, std::vector<Statistics>* statistics) {
  if (reads.empty() || runs.empty()) return;
  Errors errors(normal, reads, converter, statistics);
  int64_t bytes = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    bytes += BytesOf(normal, runs[i]);
    if (i == 0 || bytes <= kMostBytes) errors.AddRun(runs[i]);
  }
  errors.Walk();
}

}  // namespace frametap::quant
