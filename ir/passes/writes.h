// Writes: whose memory the nodes of a graph write to.
//   W1  Judged by the graph, not by the memory of the recording: what was a copy there (reshape, contiguous of other
//       strides) may be a view in a run.
//   W2  A doubt errs towards "it writes" and "it shares memory".
#pragma once

#include <vector>

#include "ir/graph/graph.h"
#include "ir/ops/op_facts.h"

namespace frametap {

// Whether the node may write to what argument `arg` holds.
bool WritesTo(const Node& node, size_t arg);
// Calls `f(ValueId)` for every value that the node may write to.
template <class F>
void ForEachWritten(const Node& node, F&& f) {
  if (!node.op || !FactsOf(*node.op).writes_inputs) return;
  for (size_t i = 0; i < node.args.size(); ++i) {
    if (WritesTo(node, i)) ForEachUseIn(node.args[i], f);
  }
}
// Whether a result of the node may share memory with `in`, which is (in) its argument `arg`.
bool MayShareMemory(const Graph& graph, const Node& node, size_t arg, ValueId in);

// Notes that `value` is written to: it, and what it may share memory with among what it was made of, down to inputs.
// `written` is by value, and may be shorter. Calls `found` for each input that was not noted before.
template <class F>
void NoteWritten(const Graph& graph, ValueId value, std::vector<bool>* written, F&& found) {
  if (written->size() < graph.values.size()) written->resize(graph.values.size());
  std::vector<ValueId> work{value};
  while (!work.empty()) {
    const ValueId id = work.back();
    work.pop_back();
    if ((*written)[id.raw()]) continue;
    (*written)[id.raw()] = true;
    const NodeId def = graph.value(id).def;
    if (!def.valid()) {
      found(id);
      continue;
    }
    const Node& node = graph.node(def);
    for (size_t i = 0; i < node.args.size(); ++i) {
      ForEachUse({node.args[i]}, [&](ValueId use) {
        if (MayShareMemory(graph, node, i, use)) work.push_back(use);
      });
    }
  }
}

// By value: what the graph's nodes may write to.
std::vector<bool> WrittenValues(const Graph& graph);

}  // namespace frametap
