#include "backends/quant/halves.h"

#include <algorithm>

#include "backends/onednn/library.h"
#include "backends/quant/attention_ops.h"

namespace frametap::quant {
namespace {

// The op that makes a value, or that makes the value that it is a reshape of.
enum class Source : uint8_t { kOther, kLinear, kAttention };

class Finder {
 public:
  Finder(const Graph& graph, const Patterns& patterns)
      : graph_(graph),
        patterns_(patterns),
        source_(graph.values.size(), Source::kOther),
        is_half_(graph.values.size(), false) {}

  std::vector<bool> Run() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (node.outputs.size() == 1) source_[node.outputs[0].raw()] = SourceAt(NodeId(i));
    }
    for (size_t i = graph_.nodes.size(); i-- > 0;) {
      for (const ValueId v : graph_.nodes[i].outputs) is_half_[v.raw()] = AllTake(v);
    }
    DropResultsOfFloats();
    return std::move(is_half_);
  }

 private:
  bool IsReshape(NodeId n) const {
    const Node& node = graph_.node(n);
    return FamilyOf(node) == Family::kShape && !patterns_.IsTaken(n) && node.args[0].kind == Arg::Kind::kValue;
  }

  Source SourceAt(NodeId n) const {
    const Node& node = graph_.node(n);
    if (!IsFloatTensor(graph_.value(node.outputs[0]).type)) return Source::kOther;
    if (IsBfloat16Attention(node)) return Source::kAttention;
    if (IsReshape(n)) return source_[node.args[0].value.raw()];
    const Kernel* const kernel = patterns_.KernelAt(n);
    const bool gives_floats = kernel != nullptr && patterns_.IsFamily(kernel->anchor, Family::kLinear) &&
                              !kernel->rows.valid() && !kernel->float_sum.valid() && !kernel->quantize.valid();
    return gives_floats ? Source::kLinear : Source::kOther;
  }

  bool AllTake(ValueId v) const {
    const Uses& uses = patterns_.uses();
    const auto& readers = uses.nodes[v.raw()];
    return source_[v.raw()] != Source::kOther && uses.outputs[v.raw()] == 0 && !readers.empty() &&
           std::all_of(readers.begin(), readers.end(), [&](NodeId n) { return Takes(n, v); });
  }

  // The results of `n` are decided already.
  bool Takes(NodeId n, ValueId v) const {
    const Node& node = graph_.node(n);
    if (IsReshape(n)) return node.outputs.size() == 1 && is_half_[node.outputs[0].raw()];
    if (source_[v.raw()] == Source::kLinear) return IsBfloat16Attention(node) && TensorArg(node, "attn_mask") != v;
    return Is(node, "frametap::quantize_per_tensor") && !patterns_.IsTaken(n);
  }

  // H2
  void DropResultsOfFloats() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (node.outputs.size() != 1 || !is_half_[node.outputs[0].raw()]) continue;
      if (IsBfloat16Attention(node)) is_half_[node.outputs[0].raw()] = is_half_[TensorArg(node, "query")->raw()];
      if (IsReshape(NodeId(i))) is_half_[node.outputs[0].raw()] = is_half_[node.args[0].value.raw()];
    }
  }

  const Graph& graph_;
  const Patterns& patterns_;
  std::vector<Source> source_;  // by value
  std::vector<bool> is_half_;   // by value
};

}  // namespace

std::vector<bool> FindHalves(const Graph& reference, const Patterns& patterns) {
  if (!onednn::HasBfloat16Products()) return std::vector<bool>(reference.values.size(), false);
  return Finder(reference, patterns).Run();
}

}  // namespace frametap::quant
