#include "ir/graph/element_numbers.h"

#include <algorithm>

#include "ir/graph/builtin_op.h"

namespace frametap {

bool ElementNumbers::HasOperand(const Node& node) const {
  return std::any_of(node.args.begin(), node.args.end(),
                     [&](const Arg& arg) { return arg.kind == Arg::Kind::kValue && Contains(arg.value); });
}

void ElementNumbers::Add(const Graph& graph, const Node& node) {
  for (const ValueId output : node.outputs) {
    const Type::Kind kind = graph.value(output).type.kind;
    if (kind != Type::Kind::kInt && kind != Type::Kind::kFloat) continue;
    if (!node.op && !HasOperand(node)) continue;
    if (values_.size() <= output.raw()) values_.resize(output.raw() + 1);
    values_[output.raw()] = true;
  }
}

bool ElementNumbers::MayFail(const Node& node) const {
  return node.is_scalar() && !IsTotal(node.builtin_op) && HasOperand(node);
}

}  // namespace frametap
