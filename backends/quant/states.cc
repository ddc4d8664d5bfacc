#include "backends/quant/states.h"

#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "backends/quant/linears.h"
#include "backends/quant/normalise.h"
#include "backends/quant/op_table.h"
#include "backends/quant/operators.h"
#include "backends/quant/pieces.h"
#include "backends/quant/rewrite.h"

namespace frametap::quant {
namespace {

// By node: whether it still writes to a tensor after M1.
std::vector<bool> LastingWrites(const Graph& graph) {
  std::vector<bool> writes(graph.nodes.size(), false);
  const Step pieces = TakePieces(graph);
  const Step step = RemoveWrites(pieces.rewrite.graph, pieces.rewrite.origin);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const NodeId piece = pieces.fates[i].now;
    const NodeId now = piece.valid() ? step.fates[piece.raw()].now : NodeId();
    writes[i] = now.valid() && !WrittenBy(step.rewrite.graph.node(now)).empty();
  }
  return writes;
}

bool MayAskForBytes(const Node& node) {
  const Family family = FamilyOf(node);
  return IsLayer(node) || MayBeLinear(node) || family == Family::kRecurrent || IsByteFamily(family);
}

class Naming {
 public:
  explicit Naming(const Graph& graph)
      : from_(graph), aliases_(graph), last_write_(graph.values.size()), state_(graph.values.size()) {}

  Graph Run() {
    const std::vector<bool> lasts = LastingWrites(from_);
    bool any = false;
    for (size_t i = 0; i < from_.nodes.size(); ++i) {
      if (!lasts[i]) continue;
      for (const ValueId v : WrittenBy(from_.nodes[i])) last_write_[aliases_.root(v)] = NodeId(i);
      any = true;
    }
    out_ = from_;
    if (!any) return std::move(out_);
    for (const Value& value : from_.values) names_.insert(value.name);
    out_.nodes.clear();
    for (const Node& node : from_.nodes) Add(node);
    return std::move(out_);
  }

 private:
  void Add(Node node) {
    const std::vector<ValueId> written = WrittenBy(node);
    if (written.empty() && MayAskForBytes(node)) {
      node.args = WithValues(std::move(node.args), [&](ValueId v) { return StateOf(v, node); });
    }
    out_.AddNode(std::move(node));
    for (const ValueId w : written) {
      for (size_t v = 0; v < state_.size(); ++v) {
        if (aliases_.same(ValueId(v), w)) state_[v] = ValueId();
      }
    }
  }

  ValueId StateOf(ValueId v, const Node& reader) {
    const Value& value = from_.value(v);
    const NodeId last = last_write_[aliases_.root(v)];
    if (!IsFloatTensor(value.type) || !last.valid() || (value.def.valid() && !(value.def < last))) return v;
    ValueId& state = state_[v.raw()];
    if (state.valid()) return state;
    std::string name = value.name + "_state";
    for (int i = 1; !names_.insert(name).second; ++i) name = value.name + "_state_" + std::to_string(i);
    state = out_.NewValue(name, value.type);
    Node node;
    node.op = FindOperator("frametap::state");
    node.args = {Arg::Of(v)};
    node.outputs = {state};
    node.state = reader.state;
    node.where = reader.where;
    out_.AddNode(std::move(node));
    return state;
  }

  const Graph& from_;
  const Aliases aliases_;
  std::vector<NodeId> last_write_;  // by alias root
  std::vector<ValueId> state_;      // by value of `from_`; invalid: none since the last write
  absl::flat_hash_set<std::string> names_;
  Graph out_;
};

}  // namespace

bool IsState(const Node& node) { return Is(node, "frametap::state"); }

Graph WithStates(const Graph& graph) {
  RegisterOperators();
  return Naming(graph).Run();
}

void DropRowsOfStates(const Graph& graph, std::vector<OpReport>* report) {
  std::vector<OpReport> rows;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (!IsState(graph.nodes[i])) rows.push_back(std::move((*report)[i]));
  }
  *report = std::move(rows);
}

}  // namespace frametap::quant
