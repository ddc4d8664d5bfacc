#include "ir/graph/graph.h"

#include <ATen/ops/clone.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "ir/graph/builtin_op.h"
#include "ir/graph/literal.h"

namespace frametap {
namespace {

bool NameChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
         static_cast<unsigned char>(c) >= 0x80;
}

// The program continues with the original and may write to it; the graph keeps the content from the time when it was
// made.
at::Tensor OwnCopy(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const c10::InferenceMode normal(false);
  const c10::AutoGradMode no_grad(false);
  const c10::impl::ExcludeDispatchKeyGuard unrecorded(c10::DispatchKey::DeferredInit);
  return at::clone(tensor);
}

}  // namespace

std::string Node::op_name() const {
  if (is_scalar()) return RowOf(builtin_op).name;
  return DottedName(op->operator_name());
}

ValueId Graph::NewValue(std::string name, Type type, NodeId def) {
  const ValueId id(values.size());
  for (char& c : name) {
    if (!NameChar(c)) c = '_';
  }
  values.emplace_back(std::move(name), std::move(type), def);
  return id;
}

ValueId Graph::AddInput(std::string name, Type type) {
  const ValueId id = NewValue(std::move(name), std::move(type));
  inputs.push_back(id);
  return id;
}

ValueId Graph::AddConstant(std::string name, at::Tensor tensor) {
  const ValueId id = NewValue(std::move(name), Type::Of(tensor));
  constants.emplace_back(id, OwnCopy(tensor));
  return id;
}

StateId Graph::AddState(const EagerState& state) {
  const auto it = std::find(states.begin(), states.end(), state);
  if (it != states.end()) return StateId(static_cast<size_t>(it - states.begin()));
  states.push_back(state);
  return StateId(states.size() - 1);
}

void Graph::NameResults() {
  int count = 0;
  for (const Node& node : nodes) {
    for (const ValueId output : node.outputs) value(output).name = absl::StrCat(count++);
  }
}

NodeId Graph::AddNode(Node node) {
  const NodeId id(nodes.size());
  for (const ValueId output : node.outputs) value(output).def = id;
  if (!node.state.valid()) node.state = StateId(0);
  nodes.push_back(std::move(node));
  return id;
}

Graph PartOf(Graph whole, const std::vector<bool>& used, const std::vector<bool>& kept, std::vector<ValueId>* now) {
  now->resize(whole.values.size());
  const auto is_used = [&](ValueId id) { return used[id.raw()]; };
  size_t made = whole.inputs.size() + whole.constants.size();
  for (const Node& node : whole.nodes) made += node.outputs.size();
  const bool all_stays =
      made == whole.values.size() && std::find(kept.begin(), kept.end(), false) == kept.end() &&
      std::all_of(whole.inputs.begin(), whole.inputs.end(), is_used) &&
      std::all_of(whole.constants.begin(), whole.constants.end(), [&](const auto& one) { return is_used(one.first); });
  if (all_stays) {
    for (size_t i = 0; i < now->size(); ++i) (*now)[i] = ValueId(i);
    // Reserved memory is kept if it is little and most of it is in use.
    const auto fit = [](auto* all) {
      constexpr size_t kLittle = 256;
      if (all->capacity() > std::min(kLittle, 2 * all->size())) all->shrink_to_fit();
    };
    fit(&whole.values);
    fit(&whole.nodes);
    return whole;
  }
  Graph part;
  part.states = std::move(whole.states);
  part.values.reserve(whole.values.size());
  part.nodes.reserve(whole.nodes.size());
  for (const ValueId id : whole.inputs) {
    if (is_used(id)) (*now)[id.raw()] = part.AddInput("", std::move(whole.value(id).type));
  }
  for (const auto& [id, tensor] : whole.constants) {
    if (is_used(id)) (*now)[id.raw()] = part.AddConstant(whole.value(id).name, tensor);
  }
  const std::function<void(std::vector<Arg>&)> renumber = [&](std::vector<Arg>& args) {
    for (Arg& arg : args) {
      if (arg.kind == Arg::Kind::kValue) arg.value = (*now)[arg.value.raw()];
      if (arg.kind == Arg::Kind::kList) renumber(arg.items);
    }
  };
  for (size_t i = 0; i < whole.nodes.size(); ++i) {
    if (!kept[i]) continue;
    Node node = std::move(whole.nodes[i]);
    renumber(node.args);
    const NodeId id(part.nodes.size());
    for (ValueId& output : node.outputs) {
      output = (*now)[output.raw()] = part.NewValue("", std::move(whole.value(output).type), id);
    }
    part.AddNode(std::move(node));
  }
  return part;
}

}  // namespace frametap
