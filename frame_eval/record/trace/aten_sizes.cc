// Sizes of recorded values: the values and elements that they depend on.
#include <string>
#include <string_view>
#include <vector>

#include "frame_eval/record/trace/aten_recorder.h"
#include "ir/ops/plain_function.h"

namespace frametap {

const Node* AtenRecorder::SizeCone(ValueId value, std::vector<ValueId>* inputs, absl::flat_hash_set<ValueId>* seen) {
  std::vector<ValueId> work{value};
  while (!work.empty()) {
    ValueId id = work.back();
    work.pop_back();
    if (!seen->insert(id).second) continue;
    if (const Node* const resizer = ResizerOf(id)) return resizer;
    NodeId def = graph_.value(id).def;
    if (!def.valid()) {
      inputs->push_back(id);
      continue;
    }
    const Node& node = graph_.node(def);
    const OpFacts* facts = node.op ? NotesOf(*node.op).facts : nullptr;
    const bool is_number = facts != nullptr && facts->scalar_from_data;
    const bool has_tensor = node.args.size() == 1 && node.args[0].kind == Arg::Kind::kValue;
    if (is_number && !(has_tensor && IsOfNumbers(node.args[0].value))) return &node;
    if (facts != nullptr && facts->data_dependent_size && !is_number && !IsIndexByNumbers(node)) return &node;
    ForEachUse(node.args, [&](ValueId use) { work.push_back(use); });
  }
  return nullptr;
}

bool AtenRecorder::IsOfNumbers(ValueId value) {
  std::vector<ValueId> work{value};
  absl::flat_hash_set<ValueId> seen;
  while (!work.empty()) {
    const ValueId id = work.back();
    work.pop_back();
    if (!seen.insert(id).second) continue;
    const Type& type = graph_.value(id).type;
    const bool is_number = type.kind == Type::Kind::kInt || type.kind == Type::Kind::kFloat;
    const NodeId def = graph_.value(id).def;
    if (!def.valid()) {
      if (!is_number) return false;
      continue;
    }
    const Node& node = graph_.node(def);
    if (node.scalar_op == ScalarOp::kSize) continue;
    if (!is_number && (type.kind != Type::Kind::kTensor || writes_to_input(id))) return false;
    const std::string_view name = node.op ? std::string_view(node.op->operator_name().name) : "";
    if (node.op && name != "aten::item" && name != "aten::scalar_tensor" && !IsPlainFunction(*node.op)) return false;
    if (!node.op && !is_number) return false;
    ForEachUse(node.args, [&](ValueId use) { work.push_back(use); });
  }
  return true;
}

const Node* AtenRecorder::ResizerOf(ValueId value) const {
  if (resizers_.empty()) return nullptr;
  const auto it = resizers_.find(value.raw());
  return it == resizers_.end() ? nullptr : &graph_.node(it->second);
}

// x[i, j] with tensors of numbers: the result's size follows from sizes. (With masks it follows from their elements.)
bool AtenRecorder::IsIndexByNumbers(const Node& node) const {
  const std::string& name = node.op->operator_name().name;
  if (name != "aten::index" || node.args.size() < 2 || node.args[1].kind != Arg::Kind::kList) return false;
  for (const Arg& index : node.args[1].items) {
    if (index.kind != Arg::Kind::kValue) continue;
    c10::ScalarType dtype = graph_.value(index.value).type.dtype;
    if (dtype == c10::ScalarType::Bool || dtype == c10::ScalarType::Byte) return false;
  }
  return true;
}

at::Tensor AtenRecorder::AsAtEntry(const at::Tensor& tensor) const {
  const auto found = metadata_before_.find(tensor.unsafeGetTensorImpl());
  return found == metadata_before_.end() ? tensor : found->second;
}

// Whether whoever compiles the graph, without elements, can say how large the results are: for ops of others that they say
// it themselves is taken from them.
bool AtenRecorder::CanForetellSizes(const Node& node, const OpFacts& facts) const {
  if (facts.asks_for_elements) return false;
  if (!facts.data_dependent_size || IsIndexByNumbers(node)) return true;
  return node.op->operator_name().getNamespace() != "aten" &&
         (node.op->hasKernelForDispatchKey(c10::DispatchKey::Meta) ||
          node.op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd));
}

}  // namespace frametap
