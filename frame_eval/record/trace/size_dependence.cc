#include "frame_eval/record/trace/size_dependence.h"

#include "ir/graph/walk.h"
#include "ir/ops/op_rows.h"
#include "ir/ops/plain_function.h"
#include "ir/ops/size_rules.h"

namespace frametap {

// x[i, j] with tensors of numbers: the result's size follows from sizes. (With masks it follows from their elements.)
static bool IsIndexByNumbers(const Graph& graph, const Node& node) {
  if (node.args.size() < 2 || node.args[1].kind != Arg::Kind::kList) return false;
  if (!OpRowOf(*node.op).Has(ops::kSizesFromMasks)) return false;
  for (const Arg& index : node.args[1].items) {
    if (index.kind == Arg::Kind::kValue && IsMask(graph.value(index.value).type.dtype)) return false;
  }
  return true;
}

// Returns whether the elements follow from numbers alone, by ops that give the same each time.
static bool IsOfNumbers(const AtenRecorder& aten, ValueId value) {
  const Graph& graph = aten.graph();
  return WalkOperands(graph, value, [&](ValueId id, const Node* node) {
    const Type& type = graph.value(id).type;
    const bool is_number = type.kind == Type::Kind::kInt || type.kind == Type::Kind::kFloat;
    if (node == nullptr) return is_number ? Walk::kOn : Walk::kEnd;
    if (node->builtin_op == BuiltinOp::kSize) return Walk::kNotBelow;
    if (!is_number && (type.kind != Type::Kind::kTensor || aten.memory.MayBeWritten(id))) return Walk::kEnd;
    if (!node->op) return is_number ? Walk::kOn : Walk::kEnd;
    const bool is_element = OpRowOf(*node->op).Has(ops::kGivesElement | ops::kMakesElement);
    return is_element || IsPlainFunction(*node->op) ? Walk::kOn : Walk::kEnd;
  });
}

const Node* SizeCone(AtenRecorder& aten, ValueId value, std::vector<ValueId>* inputs,
                     absl::flat_hash_set<ValueId>* seen) {
  const Graph& graph = aten.graph();
  std::vector<ValueId> work{value};
  while (!work.empty()) {
    ValueId id = work.back();
    work.pop_back();
    if (!seen->insert(id).second) continue;
    if (const Node* const resizer = ResizerOf(aten, id)) return resizer;
    NodeId def = graph.value(id).def;
    if (!def.valid()) {
      inputs->push_back(id);
      continue;
    }
    const Node& node = graph.node(def);
    const OpFacts* facts = node.op ? aten.op_facts.Of(*node.op).facts : nullptr;
    const bool is_number = facts != nullptr && facts->scalar_from_data;
    const bool has_tensor = node.args.size() == 1 && node.args[0].kind == Arg::Kind::kValue;
    if (is_number && !(has_tensor && IsOfNumbers(aten, node.args[0].value))) return &node;
    if (facts != nullptr && facts->data_dependent_size && !is_number && !IsIndexByNumbers(graph, node)) return &node;
    ForEachUse(node.args, [&](ValueId use) { work.push_back(use); });
  }
  return nullptr;
}

const Node* ResizerOf(const AtenRecorder& aten, ValueId value) {
  const NodeId node = aten.resized.ResizerOf(value);
  return node.valid() ? &aten.graph().node(node) : nullptr;
}

bool CanPredictSizes(const Graph& graph, const Node& node, const OpFacts& facts) {
  if (facts.asks_for_elements) return false;
  if (!facts.data_dependent_size || IsIndexByNumbers(graph, node)) return true;
  return !IsOfTorch(*node.op) && (node.op->hasKernelForDispatchKey(c10::DispatchKey::Meta) ||
                                  node.op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd));
}

}  // namespace frametap
