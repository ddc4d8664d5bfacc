// The native backend: runs a plan. One stack and one row of registers a run, no lock, no Python.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/stack.h>
#include <c10/util/Exception.h>

#include "backends/backend.h"
#include "backends/native/plan.h"
#include "ir/eager_state.h"
#include "ir/ops/scalar.h"
#include "ir/text.h"

namespace frametap {
namespace {

class NativeExecutable : public Executable {
 public:
  explicit NativeExecutable(Plan plan) : plan_(std::move(plan)) {}

  std::vector<c10::IValue> Run(std::vector<c10::IValue> inputs) override {
    TORCH_CHECK(inputs.size() == plan_.inputs, "the graph takes ", plan_.inputs, " inputs, not ", inputs.size());
    std::vector<c10::IValue> registers;
    registers.reserve(plan_.registers);
    for (c10::IValue& input : inputs) registers.push_back(std::move(input));
    registers.resize(plan_.registers);
    for (const uint32_t i : plan_.unused_inputs) registers[i] = c10::IValue();
    torch::jit::Stack stack;
    stack.reserve(plan_.widest);
    EagerStateScope scope;
    for (const PlannedStep& step : plan_.steps) {
      scope.Enter(plan_.states[step.state]);
      switch (step.kind) {
        case PlannedStep::Kind::kOp:
          for (uint32_t i = step.args_begin; i < step.args_end; ++i) Push(&stack, plan_.args[i], registers);
          step.op->callBoxed(stack);
          break;
        case PlannedStep::Kind::kFactory: {
          // As torch's own bindings make tensors: filling a new one is no write that its version counts.
          at::AutoDispatchBelowADInplaceOrView below;
          for (uint32_t i = step.args_begin; i < step.args_end; ++i) Push(&stack, plan_.args[i], registers);
          step.op->callBoxed(stack);
          break;
        }
        case PlannedStep::Kind::kScalar:
          RunScalar(step, &stack, registers);
          break;
        case PlannedStep::Kind::kCopyConstant:
          stack.emplace_back(FreshCopy(plan_.pool[step.args_begin].toTensor()));
          break;
      }
      for (uint32_t i = step.results_begin; i < step.results_end; ++i) {
        const uint32_t to = plan_.results[i];
        if (to != Plan::kDropped) registers[to] = std::move(stack[i - step.results_begin]);
      }
      stack.clear();
    }
    std::vector<c10::IValue> outputs;
    outputs.reserve(plan_.outputs.size());
    for (const PlannedArg& output : plan_.outputs) Push(&outputs, output, registers);
    return outputs;
  }

 private:
  void Push(std::vector<c10::IValue>* to, const PlannedArg& arg, std::vector<c10::IValue>& registers) const {
    switch (arg.from) {
      case PlannedArg::From::kPool:
        to->push_back(plan_.pool[arg.index]);
        return;
      case PlannedArg::From::kCopy:
        to->push_back(registers[arg.index]);
        break;
      case PlannedArg::From::kMove:
        to->push_back(std::move(registers[arg.index]));
        break;
      case PlannedArg::From::kList:
        to->push_back(MakeList(plan_.lists[arg.index], registers));
        return;
    }
    c10::IValue& value = to->back();
    // A tensor is what a Tensor parameter nearly always gets.
    if (arg.boxing != Boxing::kAsIs && !value.isTensor()) value = Box(std::move(value), arg.boxing);
  }

  c10::IValue MakeList(const PlannedList& list, std::vector<c10::IValue>& registers) const {
    std::vector<c10::IValue> items;
    items.reserve(list.items.size());
    for (const PlannedArg& item : list.items) Push(&items, item, registers);
    c10::impl::GenericList out(list.element);
    out.reserve(items.size());
    for (c10::IValue& item : items) out.push_back(std::move(item));
    return out;
  }

  void RunScalar(const PlannedStep& step, torch::jit::Stack* stack, std::vector<c10::IValue>& registers) const {
    for (uint32_t i = step.args_begin; i < step.args_end; ++i) Push(stack, plan_.args[i], registers);
    const c10::IValue none;
    c10::IValue result = Evaluate(step.scalar_op, stack->front(), stack->size() > 1 ? (*stack)[1] : none);
    stack->clear();
    stack->push_back(std::move(result));
  }

  const Plan plan_;
};

class NativeBackend : public Backend {
 public:
  std::string name() const override { return "native"; }

  absl::StatusOr<std::unique_ptr<Executable>> Compile(const Graph& graph) override {
    // What only has no text runs all the same.
    const absl::Status status = Verify(graph);
    if (!status.ok() && !absl::IsUnimplemented(status)) return status;
    return std::make_unique<NativeExecutable>(MakePlan(graph));
  }

  absl::StatusOr<std::unique_ptr<Executable>> CompileFor(const Graph& graph, const std::vector<c10::IValue>&) override {
    return std::make_unique<NativeExecutable>(MakePlan(graph));
  }
};

}  // namespace

std::unique_ptr<Backend> MakeNativeBackend() { return std::make_unique<NativeBackend>(); }

}  // namespace frametap
