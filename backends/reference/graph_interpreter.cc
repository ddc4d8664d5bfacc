#include "backends/reference/graph_interpreter.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/stack.h>
#include <c10/util/Exception.h>

#include <optional>
#include <utility>

#include "backends/reference/boxing.h"
#include "ir/graph/builtin_op.h"
#include "ir/ops/op_facts.h"

namespace frametap {

GraphInterpreter::GraphInterpreter(const Graph& graph, std::vector<c10::IValue> inputs, const std::vector<int>& hold,
                                   Constants constants)
    : graph_(graph), constants_(constants), values_(graph.values.size()), uses_(hold) {
  TORCH_CHECK(inputs.size() == graph_.inputs.size(), "the graph takes ", graph_.inputs.size(), " inputs, not ",
              inputs.size());
  uses_.resize(graph.values.size(), 0);
  for (const Node& node : graph.nodes) {
    ForEachUse(node.args, [&](ValueId v) { ++uses_[v.raw()]; });
  }
  for (const ValueId v : graph.outputs) ++uses_[v.raw()];
  for (size_t i = 0; i < inputs.size(); ++i) Replace(graph_.inputs[i], std::move(inputs[i]));
  if (constants_ == Constants::kFresh) return;
  for (const auto& [v, tensor] : graph_.constants) Replace(v, tensor);
}

// A fresh constant comes to be where it is first used, as in the program.
void GraphInterpreter::MakeConstants(const std::vector<Arg>& args) {
  if (constants_ == Constants::kShared) return;
  ForEachUse(args, [&](ValueId use) {
    if (!values_[use.raw()].isNone()) return;
    for (const auto& [v, tensor] : graph_.constants) {
      if (v == use) Replace(v, FreshCopy(tensor));
    }
  });
}

c10::IValue GraphInterpreter::Boxed(const Arg& arg, const c10::Type& type) const {
  if (arg.kind == Arg::Kind::kConst) return Box(arg.constant, BoxingFor(type));
  if (arg.kind == Arg::Kind::kValue) return Box(values_[arg.value.raw()], BoxingFor(type));
  const c10::TypePtr element = ElementType(type);
  TORCH_CHECK(element != nullptr, "a list for a parameter of type ", type.str());
  c10::impl::GenericList list(element);
  list.reserve(arg.items.size());
  for (const Arg& item : arg.items) list.push_back(Boxed(item, *element));
  return list;
}

NodeId GraphInterpreter::Step() {
  const Node& node = graph_.nodes[next_];
  state_.Enter(graph_.states[node.state.valid() ? node.state.raw() : 0]);
  MakeConstants(node.args);
  if (node.is_scalar()) {
    std::vector<c10::IValue> args(2);
    for (size_t i = 0; i < node.args.size(); ++i) args[i] = Boxed(node.args[i], *c10::AnyType::get());
    Replace(node.outputs[0], Evaluate(node.builtin_op, args[0], args[1]));
  } else {
    const std::vector<c10::Argument>& parameters = node.op->schema().arguments();
    torch::jit::Stack stack;
    for (size_t i = 0; i < node.args.size(); ++i) stack.push_back(Boxed(node.args[i], *parameters[i].type()));
    // Makes tensors as torch's own bindings do: filling a new one is not a write that its version counts.
    std::optional<at::AutoDispatchBelowADInplaceOrView> below;
    if (FactsOf(*node.op).factory) below.emplace();
    node.op->callBoxed(stack);
    for (size_t i = 0; i < node.outputs.size(); ++i) Replace(node.outputs[i], std::move(stack[i]));
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

std::vector<c10::IValue> GraphInterpreter::Outputs() {
  state_.Enter(graph_.states[0]);
  std::vector<c10::IValue> outputs;
  for (const ValueId v : graph_.outputs) {
    MakeConstants({Arg::Of(v)});
    outputs.push_back(values_[v.raw()]);
  }
  return outputs;
}

}  // namespace frametap
