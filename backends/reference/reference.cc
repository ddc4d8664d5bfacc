// The reference backend: node by node, every value kept to the end. Slow and obvious: the others are compared with it.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/stack.h>
#include <c10/util/Exception.h>

#include "backends/backend.h"
#include "backends/reference/boxing.h"
#include "ir/graph/builtin_op.h"
#include "ir/graph/eager_state.h"
#include "ir/ops/op_facts.h"
#include "ir/text/text.h"

namespace frametap {
namespace {

class ReferenceExecutable : public Executable {
 public:
  explicit ReferenceExecutable(const Graph& graph) : graph_(graph) {}

  std::vector<c10::IValue> Run(const std::vector<c10::IValue>& inputs, bool* changed) override {
    TORCH_CHECK(inputs.size() == graph_.inputs.size(), "the graph takes ", graph_.inputs.size(), " inputs, not ",
                inputs.size());
    std::vector<c10::IValue> values(graph_.values.size());
    for (size_t i = 0; i < inputs.size(); ++i) values[graph_.inputs[i].raw()] = inputs[i];
    EagerStateScope scope;
    for (const Node& node : graph_.nodes) {
      scope.Enter(graph_.states[node.state.raw()]);
      MakeConstants(node.args, values);
      *changed = *changed || (node.op && FactsOf(*node.op).changes_what_was());
      node.is_scalar() ? RunScalar(node, values) : RunOp(node, values);
    }
    scope.Enter(graph_.states[0]);
    std::vector<c10::IValue> outputs;
    for (const ValueId id : graph_.outputs) {
      MakeConstants({Arg::Of(id)}, values);
      outputs.push_back(values[id.raw()]);
    }
    return outputs;
  }

 private:
  // A constant comes to be where it is first used, as in the program.
  void MakeConstants(const std::vector<Arg>& args, std::vector<c10::IValue>& values) const {
    ForEachUse(args, [&](ValueId use) {
      if (!values[use.raw()].isNone()) return;
      for (const auto& [id, tensor] : graph_.constants) {
        if (id == use) values[use.raw()] = FreshCopy(tensor);
      }
    });
  }

  static c10::IValue ValueOf(const Arg& arg, const c10::Type& type, const std::vector<c10::IValue>& values) {
    switch (arg.kind) {
      case Arg::Kind::kConst:
        return Box(arg.constant, BoxingFor(type));
      case Arg::Kind::kValue:
        return Box(values[arg.value.raw()], BoxingFor(type));
      case Arg::Kind::kList:
        break;
    }
    const c10::TypePtr element = ElementType(type);
    TORCH_CHECK(element != nullptr, "a list for a parameter of type ", type.str());
    c10::impl::GenericList list(element);
    for (const Arg& item : arg.items) list.push_back(ValueOf(item, *element, values));
    return list;
  }

  static void RunOp(const Node& node, std::vector<c10::IValue>& values) {
    const std::vector<c10::Argument>& parameters = node.op->schema().arguments();
    torch::jit::Stack stack;
    for (size_t i = 0; i < node.args.size(); ++i) {
      stack.push_back(ValueOf(node.args[i], *parameters[i].type(), values));
    }
    // Makes tensors as torch's own bindings do: filling a new one is not a write that its version counts.
    std::optional<at::AutoDispatchBelowADInplaceOrView> below;
    if (FactsOf(*node.op).factory) below.emplace();
    node.op->callBoxed(stack);
    for (size_t i = 0; i < node.outputs.size(); ++i) values[node.outputs[i].raw()] = stack[i];
  }

  static void RunScalar(const Node& node, std::vector<c10::IValue>& values) {
    std::vector<c10::IValue> args(2);
    for (size_t i = 0; i < node.args.size(); ++i) {
      const Arg& arg = node.args[i];
      args[i] = arg.kind == Arg::Kind::kConst ? arg.constant : values[arg.value.raw()];
    }
    values[node.outputs[0].raw()] = Evaluate(node.scalar_op, args[0], args[1]);
  }

  const Graph graph_;
};

class ReferenceBackend : public Backend {
 public:
  std::string name() const override { return "reference"; }
  bool calls_numpy() const override { return true; }

  absl::StatusOr<std::unique_ptr<Executable>> Compile(const Graph& graph) override {
    if (absl::Status valid = VerifyRunnable(graph); !valid.ok()) return valid;
    return std::make_unique<ReferenceExecutable>(graph);
  }
};

}  // namespace

std::unique_ptr<Backend> MakeReferenceBackend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace frametap
