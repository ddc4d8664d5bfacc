#include "backends/quant/run.h"

#include "backends/reference/boxing.h"
#include "ir/graph/builtin_op.h"

namespace frametap::quant {
namespace {

c10::IValue Gather(const Arg& arg, const c10::TypePtr& type, const std::vector<c10::IValue>& values) {
  if (arg.kind == Arg::Kind::kConst) return Box(arg.constant, BoxingFor(*type));
  if (arg.kind == Arg::Kind::kValue) return Box(values[arg.value.raw()], BoxingFor(*type));
  c10::TypePtr list = type;
  if (auto optional = list->cast<c10::OptionalType>()) list = optional->getElementType();
  c10::TypePtr element = c10::AnyType::get();
  if (auto l = list->cast<c10::ListType>()) element = l->getElementType();
  if (element->kind() == c10::TypeKind::SymIntType) element = c10::IntType::get();
  c10::impl::GenericList out(element);
  out.reserve(arg.items.size());
  for (const Arg& item : arg.items) out.push_back(Gather(item, element, values));
  return c10::IValue(std::move(out));
}

}  // namespace

GraphInterpreter::GraphInterpreter(const Graph& graph, std::vector<c10::IValue> inputs, const std::vector<int>& hold)
    : graph_(graph), values_(graph.values.size()), uses_(hold) {
  TORCH_CHECK(inputs.size() == graph_.inputs.size(), "the graph has ", graph_.inputs.size(), " inputs, got ",
              inputs.size());
  uses_.resize(graph.values.size(), 0);
  for (const Node& node : graph.nodes) {
    ForEachUse(node.args, [&](ValueId v) { ++uses_[v.raw()]; });
  }
  for (ValueId v : graph.outputs) ++uses_[v.raw()];
  for (size_t i = 0; i < inputs.size(); ++i) Replace(graph_.inputs[i], std::move(inputs[i]));
  for (const auto& [v, tensor] : graph_.constants) Replace(v, tensor);
}

NodeId GraphInterpreter::Step() {
  const Node& node = graph_.nodes[next_];
  torch::jit::Stack stack;
  if (node.is_scalar()) {
    for (const Arg& a : node.args) stack.push_back(Gather(a, c10::AnyType::get(), values_));
    Replace(node.outputs[0], Evaluate(node.scalar_op, stack[0], stack.size() > 1 ? stack[1] : c10::IValue()));
  } else {
    const auto& arguments = node.op->schema().arguments();
    for (size_t a = 0; a < node.args.size(); ++a) stack.push_back(Gather(node.args[a], arguments[a].type(), values_));
    state_.Enter(graph_.states[node.state.valid() ? node.state.raw() : 0]);
    node.op->callBoxed(stack);
    for (size_t o = 0; o < node.outputs.size(); ++o) Replace(node.outputs[o], std::move(stack[o]));
  }
  ForEachUse(node.args, [&](ValueId v) { Release(v); });
  return NodeId(next_++);
}

void GraphInterpreter::Replace(ValueId v, c10::IValue value) {
  if (uses_[v.raw()] > 0) values_[v.raw()] = std::move(value);
}

void GraphInterpreter::Release(ValueId v) {
  if (--uses_[v.raw()] == 0) values_[v.raw()] = c10::IValue();
}

std::vector<c10::IValue> GraphInterpreter::Outputs() const {
  std::vector<c10::IValue> outputs;
  for (ValueId v : graph_.outputs) outputs.push_back(values_[v.raw()]);
  return outputs;
}

}  // namespace frametap::quant
