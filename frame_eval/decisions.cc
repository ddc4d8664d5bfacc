// Decisions: a branch on a tensor that a few ops compute from the whole numbers and flags of the call (a mask, token
// ids) is a guard. It does not end a segment.
//   D1  The decisive tensor is computed again before the segment's graph runs, by pure ops, from sources alone; no
//       other outcome fits the segment.
//   D2  Nothing that the trace has written so far may be seen by these ops: they read the state at the entry.
//   D3  Only few ops and no floating-point inputs: such data differ from call to call in every bit, and a branch on
//       them is better taken where it stands.
// Not here: running them (reify.h).
#include <algorithm>

#include "frame_eval/known_objects.h"
#include "frame_eval/recorder.h"
#include "guards/tensor_door.h"
#include "ir/ops/op_facts.h"
#include "ir/writes.h"

namespace frametap {
namespace {

constexpr size_t kMostNodes = 16;
constexpr size_t kMostDecisions = 32;

}  // namespace

// Collects the values that `value` is computed from, itself included. Returns false if this would break the laws.
bool Recorder::DecisionCone(ValueId value, std::vector<bool>* cone) const {
  const Graph& graph = aten_.graph();
  std::vector<ValueId> work{value};
  size_t nodes = 0;
  cone->assign(graph.values.size(), false);
  while (!work.empty()) {
    const ValueId id = work.back();
    work.pop_back();
    if ((*cone)[id.raw()]) continue;
    (*cone)[id.raw()] = true;
    const Type& type = graph.value(id).type;
    const NodeId def = graph.value(id).def;
    if (!def.valid()) {
      if (type.kind != Type::Kind::kTensor || c10::isIntegralType(type.dtype, /*includeBool=*/true)) continue;
      return false;
    }
    const Node& node = graph.node(def);
    // Ops of others may be Python code, which must not run between guards and replay.
    bool known = !node.op || (FactsOf(*node.op).pure() && node.op->operator_name().name.rfind("aten::", 0) == 0);
    if (++nodes > kMostNodes || !known) return false;
    ForEachUse(node.args, [&](ValueId use) { work.push_back(use); });
  }
  if (decisions_.size() == kMostDecisions || aten_.writes_inputs()) return false;
  const std::vector<bool> written = WrittenValues(graph);
  for (size_t i = 0; i < cone->size(); ++i) {
    if ((*cone)[i] && written[i]) return false;  // D2
  }
  return true;
}

bool Recorder::Decide(PyObject* object) {
  const at::Tensor& tensor = TensorOf(object);
  if (!IsExactTensor(object) || tensor.numel() != 1 || tensor.layout() != c10::kStrided || !tensor.device().is_cpu()) {
    return false;
  }
  std::optional<ValueId> value = aten_.ValueOf(tensor);
  std::vector<bool> cone;
  if (!value || !DecisionCone(*value, &cone)) return false;
  AtenPause pause;
  decisions_.push_back({*value, tensor.is_nonzero()});
  aten_.decided = tensor.unsafeGetTensorImpl();
  return true;
}

void Recorder::DescribeDecisions(Segment* segment) {
  if (decisions_.empty()) return;
  SegmentIr* const ir = &segment->ir;
  const Graph& old = aten_.graph();
  std::vector<bool> needed(old.values.size());
  for (const Decided& decided : decisions_) {
    std::vector<bool> cone;
    DecisionCone(decided.value, &cone);
    for (size_t i = 0; i < cone.size(); ++i) needed[i] = needed[i] || cone[i];
  }
  for (const auto& [source, id] : aten_.inputs()) {
    if (needed[id.raw()]) ir->decisions.sources.push_back(source);
  }
  std::vector<bool> in_cone;
  for (size_t i = 0; i < old.nodes.size(); ++i) {
    const std::vector<ValueId>& outputs = old.nodes[i].outputs;
    in_cone.push_back(std::any_of(outputs.begin(), outputs.end(), [&](ValueId out) { return needed[out.raw()]; }));
    if (in_cone.back()) segment->decision_places.push_back(aten_.places()[i]);
  }
  std::vector<ValueId> now;
  Graph& graph = ir->decisions.graph;
  graph = PartOf(old, needed, in_cone, &now);
  for (const Decided& decided : decisions_) {
    graph.outputs.push_back(now[decided.value.raw()]);
    ir->decisions.outcomes.push_back(decided.outcome);
  }
}

}  // namespace frametap
