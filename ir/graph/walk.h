// A walk over the values that a value is computed from.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "ir/graph/graph.h"

namespace frametap {

enum class Walk : uint8_t { kOn, kNotBelow, kEnd };

// Calls `visit(value, node)` for the value and for each value that it is computed from, once each. `node` makes the value; it
// is null for inputs and constants. The answer says whether the walk continues, leaves out the operands of this node, or ends.
// Returns false if the walk was ended.
template <class F>
bool WalkOperands(const Graph& graph, ValueId value, F&& visit) {
  std::vector<ValueId> work{value};
  absl::flat_hash_set<ValueId> seen;
  while (!work.empty()) {
    const ValueId id = work.back();
    work.pop_back();
    if (!seen.insert(id).second) continue;
    const NodeId def = graph.value(id).def;
    const Node* const node = def.valid() ? &graph.node(def) : nullptr;
    const Walk walk = visit(id, node);
    if (walk == Walk::kEnd) return false;
    if (walk == Walk::kOn && node != nullptr) ForEachUse(node->args, [&](ValueId use) { work.push_back(use); });
  }
  return true;
}

// Returns the value and those that it is computed from, each after its operands, as far as `is_wanted(value, node)`. Nothing
// below another value is visited. A loop over them takes the place of a recursion, for which chains may be too long.
template <class F>
std::vector<ValueId> OperandsFirst(const Graph& graph, ValueId value, F&& is_wanted) {
  std::vector<ValueId> wanted;
  WalkOperands(graph, value, [&](ValueId id, const Node* node) {
    if (!is_wanted(id, node)) return Walk::kNotBelow;
    wanted.push_back(id);
    return Walk::kOn;
  });
  std::sort(wanted.begin(), wanted.end());  // values are made in this order
  return wanted;
}

}  // namespace frametap
