#include "frame_eval/record/tensor_branch_guards.h"

#include <algorithm>
#include <optional>

#include "guards/objects/torch_tensor.h"
#include "ir/graph/walk.h"
#include "ir/ops/op_facts.h"
#include "ir/ops/op_rows.h"
#include "ir/passes/writes.h"

namespace frametap {
namespace {

constexpr size_t kMostNodes = 64;
constexpr size_t kMostDecisions = 32;
constexpr size_t kMostWrites = 256;  // each is followed to its origin

// Returns whether the ops of a cone may be run between guards and replay. Ops of others may be Python code.
bool MayRunAgain(const Node& node) { return !node.op || (FactsOf(*node.op).pure() && IsOfTorch(*node.op)); }

// Returns whether the op only writes to tensors and gives one, so that it may be run again on memory of the trace.
bool OnlyWrites(const Node& node) {
  const OpFacts& facts = FactsOf(*node.op);
  return !facts.random && !facts.no_result && !facts.changes_metadata && !node.outputs.empty() && IsOfTorch(*node.op);
}

// A node that writes, and by value what memory it may write to.
struct Write {
  size_t node;
  std::vector<bool> values;
  bool reaches_inputs = false;  // or constants
};

bool Intersect(const std::vector<bool>& a, const std::vector<bool>& b) {
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i] && b[i]) return true;
  }
  return false;
}

// Returns the nodes up to the one that makes `value`.
size_t EndOf(const Graph& graph, ValueId value) {
  const NodeId def = graph.value(value).def;
  return def.valid() ? def.raw() + 1 : 0;
}

// By value: what the nodes from `begin` to `end` may write to.
std::vector<bool> WrittenBetween(const Graph& graph, size_t begin, size_t end) {
  std::vector<bool> written(graph.values.size());
  for (size_t i = begin; i < end; ++i) {
    ForEachWritten(graph.nodes[i], [&](ValueId use) { NoteWritten(graph, use, &written, [](ValueId) {}); });
  }
  return written;
}

// Returns whether anything that `value` is computed from has been written to before, or is the result of such an op.
bool DependsOnWrites(const Graph& graph, ValueId value) {
  const std::vector<bool> written = WrittenBetween(graph, 0, EndOf(graph, value));
  return !WalkOperands(graph, value, [&](ValueId id, const Node* node) {
    if (written[id.raw()]) return Walk::kEnd;
    return node != nullptr && node->op && FactsOf(*node->op).writes_inputs ? Walk::kEnd : Walk::kOn;
  });
}

// Returns the writes before `value` is made, if it depends on any at all. Linear for the values that do not, which are
// most. Returns nothing if there are too many.
std::optional<std::vector<Write>> WritesBefore(const Graph& graph, ValueId value) {
  std::vector<Write> writes;
  if (!DependsOnWrites(graph, value)) return writes;
  const size_t end = EndOf(graph, value);
  for (size_t i = 0; i < end; ++i) {
    const Node& node = graph.nodes[i];
    if (!node.op || !FactsOf(*node.op).writes_inputs) continue;
    if (writes.size() == kMostWrites) return std::nullopt;
    Write write{i, std::vector<bool>(graph.values.size())};
    ForEachWritten(node, [&](ValueId use) {
      NoteWritten(graph, use, &write.values, [&](ValueId) { write.reaches_inputs = true; });
    });
    writes.push_back(std::move(write));
  }
  return writes;
}

std::vector<bool> MemoryOf(const Graph& graph, ValueId value) {
  std::vector<bool> memory(graph.values.size());
  NoteWritten(graph, value, &memory, [](ValueId) {});
  return memory;
}

// D4, for the decisive tensor of an earlier decision and the writes of a later one's cone.
bool IsWrittenIn(const Graph& graph, ValueId value, const std::vector<Write>& writes, const std::vector<bool>& cone) {
  const std::vector<bool> memory = MemoryOf(graph, value);
  const size_t end = EndOf(graph, value);
  return std::any_of(writes.begin(), writes.end(), [&](const Write& write) {
    if (write.node < end || !Intersect(write.values, memory)) return false;
    const std::vector<ValueId>& outputs = graph.nodes[write.node].outputs;
    return std::any_of(outputs.begin(), outputs.end(), [&](ValueId out) { return cone[out.raw()]; });
  });
}

// Collects the values that `value` is computed from, itself included. Returns false for more than `most` ops, and if
// this would break D2 or D3.
// `writes`: those before it.
bool ConeOf(const Graph& graph, ValueId value, const std::vector<Write>& writes, size_t most, std::vector<bool>* cone) {
  const auto may_write_again = [&](const Write& write) {
    return !write.reaches_inputs && OnlyWrites(graph.nodes[write.node]);
  };
  std::vector<ValueId> work{value};
  size_t nodes = 0;
  cone->assign(graph.values.size(), false);
  while (!work.empty()) {
    const ValueId id = work.back();
    work.pop_back();
    if ((*cone)[id.raw()]) continue;
    (*cone)[id.raw()] = true;
    for (const Write& write : writes) {
      if (!write.values[id.raw()]) continue;
      if (!may_write_again(write)) return false;
      work.push_back(graph.nodes[write.node].outputs[0]);
    }
    const NodeId def = graph.value(id).def;
    if (!def.valid()) {
      const auto is_this = [&](const auto& constant) { return constant.first == id; };
      if (std::any_of(graph.constants.begin(), graph.constants.end(), is_this)) continue;
      const Type& type = graph.value(id).type;
      if (type.kind != Type::Kind::kTensor || c10::isIntegralType(type.dtype, /*includeBool=*/true)) continue;
      return false;
    }
    const Node& node = graph.node(def);
    if (++nodes > most) return false;
    const auto is_this = [&](const Write& write) { return write.node == def.raw(); };
    const auto write = std::find_if(writes.begin(), writes.end(), is_this);
    if (write == writes.end() ? !MayRunAgain(node) : !may_write_again(*write)) return false;
    ForEachUse(node.args, [&](ValueId use) { work.push_back(use); });
  }
  return true;
}

}  // namespace

// Collects the values that `value` is computed from, itself included. Returns false if this would break the laws.
bool DecisionCone(const Trace& trace, ValueId value, std::vector<bool>* cone) {
  if (trace.decisions.size() == kMostDecisions || trace.aten.memory.writes_inputs()) return false;
  const Graph& graph = trace.aten.graph();
  const std::optional<std::vector<Write>> writes = WritesBefore(graph, value);
  if (!writes || !ConeOf(graph, value, *writes, kMostNodes, cone)) return false;
  const std::vector<bool> later = WrittenBetween(graph, EndOf(graph, value), graph.nodes.size());
  if (Intersect(later, MemoryOf(graph, value))) return false;
  return std::none_of(trace.decisions.begin(), trace.decisions.end(),
                      [&](const Decided& decided) { return IsWrittenIn(graph, decided.value, *writes, *cone); });
}

bool GuardBranchOnTensor(Trace& trace, PyObject* object) {
  const at::Tensor& tensor = TensorOf(object);
  if (!IsExactTensor(object) || tensor.numel() != 1 || tensor.layout() != c10::kStrided || !tensor.device().is_cpu()) {
    return false;
  }
  std::optional<ValueId> value = trace.aten.tensors.ValueOf(tensor);
  std::vector<bool> cone;
  if (!value || !DecisionCone(trace, *value, &cone)) return false;
  AtenPause pause;
  trace.decisions.push_back({*value, tensor.is_nonzero()});
  trace.aten.decided = tensor.unsafeGetTensorImpl();
  return true;
}

void DescribeDecisions(Trace& trace, Segment* segment) {
  if (trace.decisions.empty()) return;
  SegmentIr* const ir = &segment->ir;
  const Graph& old = trace.aten.graph();
  std::vector<bool> needed(old.values.size());
  for (const Decided& decided : trace.decisions) {
    std::vector<bool> cone;
    ConeOf(old, decided.value, WritesBefore(old, decided.value).value_or(std::vector<Write>()), old.nodes.size(),
           &cone);
    for (size_t i = 0; i < cone.size(); ++i) needed[i] = needed[i] || cone[i];
  }
  for (const auto& [source, id] : trace.aten.tensors.inputs()) {
    if (needed[id.raw()]) ir->decisions.sources.push_back(source);
  }
  std::vector<bool> in_cone;
  for (size_t i = 0; i < old.nodes.size(); ++i) {
    const std::vector<ValueId>& outputs = old.nodes[i].outputs;
    in_cone.push_back(std::any_of(outputs.begin(), outputs.end(), [&](ValueId out) { return needed[out.raw()]; }));
    if (in_cone.back()) segment->decision_places.push_back(trace.aten.places()[i]);
  }
  std::vector<ValueId> now;
  Graph& graph = ir->decisions.graph;
  graph = PartOf(old, needed, in_cone, &now);
  for (const Decided& decided : trace.decisions) {
    graph.outputs.push_back(now[decided.value.raw()]);
    ir->decisions.outcomes.push_back(decided.outcome);
  }
}

}  // namespace frametap
