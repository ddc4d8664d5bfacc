// The native backend: runs a plan. One stack and one row of registers a run, no lock, no Python. Where the difference
// cannot be observed, autograd is left out (ir/ops/below_autograd.h).
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/stack.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>

#include "backends/backend.h"
#include "backends/native/plan.h"
#include "ir/graph/builtin_op.h"
#include "ir/graph/eager_state.h"
#include "ir/ops/in_place.h"
#include "ir/text/text.h"

namespace frametap {
namespace {

class NativeExecutable : public Executable {
 public:
  explicit NativeExecutable(const Graph& graph) : graph_(graph) {}

  // The plan is made by the first run: a graph that is never run again needs none, and a first call no time for one.
  std::vector<c10::IValue> Run(const std::vector<c10::IValue>& inputs, bool* changed) override {
    MakeReady();
    TORCH_CHECK(inputs.size() == plan_.inputs, "the graph takes ", plan_.inputs, " inputs, not ", inputs.size());
    const bool may_leave_out = !plan_.judged.empty() && MayLeaveOut(inputs);
    return Run(may_leave_out && shared_ ? *shared_ : plan_, may_leave_out, inputs, changed);
  }

  bool Reads(size_t input) override {
    MakeReady();
    return std::binary_search(plan_.inputs_read.begin(), plan_.inputs_read.end(), input);
  }

  void MakeReady() {
    std::call_once(is_planned_, [this] { MakePlans(); });
  }

 private:
  void MakePlans() {
    const Repeats repeats = FindRepeats(graph_);
    if (repeats.tensors) shared_ = std::make_unique<const Plan>(MakePlan(graph_, repeats, true));
    plan_ = MakePlan(graph_, repeats, false);
    judged_ = plan_.kernels_noted;
  }

  // The registers that steps read and write.
  struct Values {
    const std::vector<c10::IValue>& inputs;
    std::vector<c10::IValue> registers;
  };

  static std::vector<c10::IValue> Run(const Plan& plan, bool may_leave_out, const std::vector<c10::IValue>& inputs,
                                      bool* changed) {
    Values values{inputs, std::vector<c10::IValue>(plan.registers)};
    torch::jit::Stack stack;
    stack.reserve(plan.widest);
    EagerStateScope scope;
    std::optional<at::AutoDispatchBelowADInplaceOrView> below;
    uint32_t state = UINT32_MAX;
    for (const PlannedStep& step : plan.steps) {
      if (step.state != state) {
        below.reset();
        state = step.state;
        scope.Enter(plan.states[state]);
      }
      if (step.changes) *changed = true;
      switch (step.kind) {
        case PlannedStep::Kind::kOp: {
          PushArgs(plan, step, &stack, values, may_leave_out);
          const bool leave_out = may_leave_out && IsSameBelow(step.below_autograd, stack);
          if (!leave_out)
            below.reset();
          else if (!below)
            below.emplace();
          const bool in_place = leave_out && step.in_place && MayOverwrite(stack);
          (in_place ? step.in_place : step.op)->callBoxed(stack);
          break;
        }
        case PlannedStep::Kind::kFactory: {
          // Makes tensors as torch's own bindings do: filling a new one is not a write that its version counts.
          const at::AutoDispatchBelowADInplaceOrView filling;
          PushArgs(plan, step, &stack, values, false);
          step.op->callBoxed(stack);
          break;
        }
        case PlannedStep::Kind::kScalar:
          RunScalar(plan, step, &stack, values);
          break;
        case PlannedStep::Kind::kCopyConstant:
          below.reset();
          stack.emplace_back(FreshCopy(plan.pool[step.args_begin].toTensor()));
          break;
      }
      for (uint32_t i = step.results_begin; i < step.results_end; ++i) {
        const uint32_t to = plan.results[i];
        if (to != Plan::kDropped) values.registers[to] = std::move(stack[i - step.results_begin]);
      }
      stack.clear();
    }
    std::vector<c10::IValue> outputs;
    outputs.reserve(plan.outputs.size());
    for (const PlannedArg& output : plan.outputs) Push(plan, &outputs, output, values);
    return outputs;
  }

  // below_autograd/A2, below_autograd/A3.
  bool MayLeaveOut(const std::vector<c10::IValue>& inputs) {
    for (const uint32_t i : plan_.inputs_read) {
      if (inputs[i].isTensor() && !IsPlain(inputs[i].toTensor())) return false;
    }
    return NobodyLooksOn() && AreAsJudged();
  }

  bool AreAsJudged() {
    const uint64_t noted = KernelsNoted();
    if (judged_.load(std::memory_order_relaxed) == noted) return true;
    for (const auto& [op, verdict] : plan_.judged) {
      if (!(Judge(op) == verdict)) return false;
    }
    judged_.store(noted, std::memory_order_relaxed);
    return true;
  }

  static bool IsSameBelow(BelowAutograd verdict, const torch::jit::Stack& stack) {
    const auto is_matrix = [](const c10::IValue& value) { return value.isTensor() && value.toTensor().dim() == 2; };
    return verdict == BelowAutograd::kSame ||
           (verdict == BelowAutograd::kSameForMatrices && is_matrix(stack[0]) && is_matrix(stack[1]));
  }

  // plan/P4.
  static bool IsPlainFloat(const c10::IValue& value) {
    return value.isTensor() && value.toTensor().scalar_type() == at::kFloat && IsPlain(value.toTensor()) &&
           !value.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
  }

  static void PushArgs(const Plan& plan, const PlannedStep& step, torch::jit::Stack* stack, Values& values,
                       bool may_leave_out) {
    for (uint32_t i = step.args_begin; i < step.args_end; ++i) {
      const PlannedArg& arg = plan.args[i];
      if (arg.from == PlannedArg::From::kNumber)
        stack->push_back(plan.pool[arg.index + (may_leave_out && IsPlainFloat(stack->front()) ? 1 : 0)]);
      else
        Push(plan, stack, arg, values);
    }
  }

  static void Push(const Plan& plan, std::vector<c10::IValue>* to, const PlannedArg& arg, Values& values) {
    switch (arg.from) {
      case PlannedArg::From::kPool:
      case PlannedArg::From::kNumber:
        to->push_back(plan.pool[arg.index]);
        return;
      case PlannedArg::From::kInput:
        to->push_back(values.inputs[arg.index]);
        break;
      case PlannedArg::From::kCopy:
        to->push_back(values.registers[arg.index]);
        break;
      case PlannedArg::From::kMove:
        to->push_back(std::move(values.registers[arg.index]));
        break;
      case PlannedArg::From::kList:
        to->push_back(MakeList(plan, plan.lists[arg.index], values));
        return;
    }
    c10::IValue& value = to->back();
    // A tensor is what a Tensor parameter nearly always gets.
    if (arg.boxing != Boxing::kAsIs && !value.isTensor()) value = Box(std::move(value), arg.boxing);
  }

  static c10::IValue MakeList(const Plan& plan, const PlannedList& list, Values& values) {
    std::vector<c10::IValue> items;
    items.reserve(list.items.size());
    for (const PlannedArg& item : list.items) Push(plan, &items, item, values);
    c10::impl::GenericList out(list.element);
    out.reserve(items.size());
    for (c10::IValue& item : items) out.push_back(std::move(item));
    return out;
  }

  static void RunScalar(const Plan& plan, const PlannedStep& step, torch::jit::Stack* stack, Values& values) {
    PushArgs(plan, step, stack, values, false);
    const c10::IValue none;
    c10::IValue result = Evaluate(step.builtin_op, stack->front(), stack->size() > 1 ? (*stack)[1] : none);
    stack->clear();
    stack->push_back(std::move(result));
  }

  const Graph& graph_;  // backend/B4
  std::once_flag is_planned_;
  Plan plan_;
  std::unique_ptr<const Plan> shared_;  // for runs that are not observed, if there is another one for them
  std::atomic<uint64_t> judged_;        // the KernelsNoted for which the plan's verdicts are right
};

// For a graph that the caller may release.
class OwnedExecutable : public NativeExecutable {
 public:
  explicit OwnedExecutable(std::unique_ptr<const Graph> graph) : NativeExecutable(*graph), graph_(std::move(graph)) {}

 private:
  const std::unique_ptr<const Graph> graph_;
};

class NativeBackend : public Backend {
 public:
  std::string name() const override { return "native"; }
  bool calls_python() const override { return true; }
  bool calls_numpy() const override { return true; }
  bool reads_words() const override { return false; }
  bool reads_examples() const override { return false; }

  absl::StatusOr<std::unique_ptr<Executable>> Compile(const Graph& graph) override {
    if (absl::Status valid = VerifyRunnable(graph); !valid.ok()) return valid;
    auto executable = std::make_unique<OwnedExecutable>(std::make_unique<const Graph>(graph));
    executable->MakeReady();
    return executable;
  }

  absl::StatusOr<std::unique_ptr<Executable>> CompileFor(const Graph& graph, const Examples&) override {
    return std::make_unique<NativeExecutable>(graph);
  }
};

}  // namespace

std::unique_ptr<Backend> MakeNativeBackend() { return std::make_unique<NativeBackend>(); }

}  // namespace frametap
