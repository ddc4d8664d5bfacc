#include "backends/quant/accumulators.h"

#include <optional>
#include <utility>
#include <vector>

#include "backends/quant/op_table.h"
#include "backends/quant/operators.h"
#include "backends/quant/rewrite.h"

namespace frametap::quant {
namespace {

constexpr size_t kAccumulatorArg = 1;  // of frametap::qconv_add

// The first node that adds into memory that is read afterwards.
std::optional<size_t> FirstLive(const Graph& g) {
  const Aliases aliases(g);
  std::vector<bool> defined(g.values.size(), false);
  for (ValueId v : g.inputs) defined[v.raw()] = true;
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    const Node& node = g.nodes[i];
    if (Is(node, "frametap::qconv_add")) {
      const ValueId accumulator = node.args[kAccumulatorArg].value;
      // A value that is named only later was written by the kernel, or made from its result.
      bool live = aliases.same(node.args[0].value, accumulator);
      const auto look = [&](ValueId v) { live = live || (defined[v.raw()] && aliases.same(v, accumulator)); };
      for (size_t j = i + 1; j < g.nodes.size(); ++j) ForEachUse(g.nodes[j].args, look);
      for (ValueId v : g.outputs) look(v);
      for (ValueId v : g.inputs) live = live || aliases.same(v, accumulator);
      if (live) return i;
    }
    for (ValueId v : node.outputs) defined[v.raw()] = true;
  }
  return std::nullopt;
}

}  // namespace

void CopyLiveAccumulators(Step* step) {
  Graph& g = step->rewrite.graph;
  const c10::OperatorHandle clone = FindOperator("aten::clone");
  // A copy changes which values share memory, so each one starts the search again.
  for (std::optional<size_t> at = FirstLive(g); at; at = FirstLive(g)) {
    Arg& accumulator = g.nodes[*at].args[kAccumulatorArg];
    const Value value = g.value(accumulator.value);
    Node copy;
    copy.op = clone;
    copy.args = {Arg::Of(accumulator.value), Arg::Const(c10::IValue())};
    copy.outputs = {step->rewrite.NewValue(value.name + "_copy", value.type, ValueId())};
    copy.state = g.nodes[*at].state;
    copy.where = g.nodes[*at].where;
    accumulator.value = copy.outputs[0];
    g.nodes.insert(g.nodes.begin() + static_cast<std::ptrdiff_t>(*at), std::move(copy));
    for (NodeDisposition& fate : step->fates) {
      if (fate.now.valid() && fate.now.raw() >= *at) fate.now = NodeId(fate.now.raw() + 1);
    }
    auto nodes = std::move(g.nodes);
    g.nodes.clear();
    for (Node& node : nodes) g.AddNode(std::move(node));
  }
}

}  // namespace frametap::quant
