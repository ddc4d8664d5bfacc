#include "backends/native/plan.h"

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>

#include "absl/container/flat_hash_map.h"
#include "ir/ops/in_place.h"
#include "ir/ops/only_reads.h"
#include "ir/ops/op_facts.h"

namespace frametap {
namespace {

class Planner {
 public:
  Planner(const Graph& graph, const Repeats& repeats, bool share_tensors)
      : graph_(graph),
        repeats_(repeats),
        share_tensors_(share_tensors),
        is_input_(graph.values.size()),
        place_of_(graph.values.size(), Plan::kDropped) {}

  Plan Make() {
    plan_.inputs = graph_.inputs.size();
    plan_.kernels_noted = KernelsNoted();
    plan_.states = graph_.states;
    for (uint32_t i = 0; i < graph_.inputs.size(); ++i) {
      is_input_[graph_.inputs[i].raw()] = true;
      place_of_[graph_.inputs[i].raw()] = i;
    }
    CountUses();
    for (uint32_t i = 0; i < graph_.inputs.size(); ++i) {
      if (uses_[graph_.inputs[i].raw()] > 0) plan_.inputs_read.push_back(i);
    }
    Constants();
    for (const Node& node : graph_.nodes) {
      if (!IsLeftOut(node)) AddNode(node);
    }
    for (const ValueId id : graph_.outputs) {
      CopyConstant(id, StateId(0));
      plan_.outputs.push_back(Use(id, Boxing::kAsIs));
    }
    plan_.registers = next_register_;
    return std::move(plan_);
  }

 private:
  // P7
  bool IsLeftOut(const Node& node) const {
    if (repeats_.stands_for.empty() || node.outputs.empty() || !(share_tensors_ || node.is_scalar())) return false;
    return repeats_.stands_for[node.outputs[0].raw()] != node.outputs[0];
  }

  ValueId StandInFor(ValueId id) const {
    if (repeats_.stands_for.empty()) return id;
    const NodeId def = graph_.value(id).def;
    return def.valid() && IsLeftOut(graph_.node(def)) ? repeats_.stands_for[id.raw()] : id;
  }

  uint32_t NewRegister(ValueId id) { return place_of_[id.raw()] = next_register_++; }

  void CountUses() {
    uses_.assign(graph_.values.size(), 0);
    const auto count = [&](ValueId id) { ++uses_[StandInFor(id).raw()]; };
    for (const Node& node : graph_.nodes) {
      if (!IsLeftOut(node)) ForEachUse(node.args, count);
    }
    for (const ValueId id : graph_.outputs) count(id);
  }

  // P5
  void Constants() {
    absl::flat_hash_map<uint32_t, bool> shared;
    for (const auto& [id, tensor] : graph_.constants) shared[id.raw()] = true;
    for (const Node& node : graph_.nodes) {
      if (shared.empty()) break;
      if (node.is_scalar()) continue;
      for (size_t i = 0; i < node.args.size(); ++i) {
        ForEachUse({node.args[i]}, [&](ValueId id) {
          const auto it = shared.find(id.raw());
          if (it != shared.end() && it->second) it->second = OnlyReads(*node.op, i);
        });
      }
    }
    for (const ValueId id : graph_.outputs) {
      if (const auto it = shared.find(id.raw()); it != shared.end()) it->second = false;
    }
    for (const auto& [id, tensor] : graph_.constants) {
      if (uses_[id.raw()] == 0) continue;
      const uint32_t at = Pool(tensor);
      (shared[id.raw()] && tensor.defined() ? shared_ : to_copy_)[id.raw()] = at;
    }
  }

  uint32_t Pool(c10::IValue value) {
    plan_.pool.push_back(std::move(value));
    return static_cast<uint32_t>(plan_.pool.size() - 1);
  }

  PlannedArg Pooled(c10::IValue value) {
    PlannedArg arg;
    arg.index = Pool(std::move(value));
    return arg;
  }

  PlannedArg Use(ValueId id, Boxing boxing) {
    id = StandInFor(id);
    PlannedArg arg;
    if (const auto it = shared_.find(id.raw()); it != shared_.end()) {
      arg.index = it->second;
      return arg;
    }
    // P1: uses are met in the order in which they happen.
    const bool is_last = --uses_[id.raw()] == 0;
    arg.from = is_input_[id.raw()] ? PlannedArg::From::kInput
               : is_last           ? PlannedArg::From::kMove
                                   : PlannedArg::From::kCopy;
    arg.boxing = boxing;
    arg.index = place_of_[id.raw()];
    return arg;
  }

  // A step of its own, where the constant is first needed: as in the program, under the state of that place.
  void CopyConstant(ValueId id, StateId state) {
    const auto it = to_copy_.find(id.raw());
    if (it == to_copy_.end()) return;
    PlannedStep step;
    step.kind = PlannedStep::Kind::kCopyConstant;
    step.state = state.raw();
    step.args_begin = it->second;  // into the pool
    step.results_begin = static_cast<uint32_t>(plan_.results.size());
    plan_.results.push_back(NewRegister(id));
    step.results_end = step.results_begin + 1;
    plan_.steps.push_back(std::move(step));
    to_copy_.erase(it);
  }

  PlannedArg Planned(const Arg& arg, const c10::Type* type) {
    const Boxing boxing = type == nullptr ? Boxing::kAsIs : BoxingFor(*type);
    if (arg.kind == Arg::Kind::kValue) return Use(arg.value, boxing);
    if (arg.kind == Arg::Kind::kConst) {
      // The number that a run wraps is the same for all: ops do not write to the operands they take as wrapped numbers.
      const c10::InferenceMode normal(false);
      const c10::AutoGradMode no_grad(false);
      return Pooled(Box(arg.constant, boxing));
    }
    PlannedList list;
    list.element = ElementType(*type);
    for (const Arg& item : arg.items) list.items.push_back(Planned(item, list.element.get()));
    PlannedArg planned;
    planned.from = PlannedArg::From::kList;
    planned.index = static_cast<uint32_t>(plan_.lists.size());
    plan_.lists.push_back(std::move(list));
    return planned;
  }

  const OpVerdict& VerdictOn(const Node& node) {
    static const OpVerdict leaves_nothing_out;
    if (node.is_scalar() || !MayLeaveOutAutograd(graph_.states[node.state.raw()])) return leaves_nothing_out;
    const auto [it, added] = verdicts_.try_emplace(&node.op->schema());
    if (added) {
      it->second = Judge(*node.op);
      if (!(it->second == leaves_nothing_out)) plan_.judged.emplace_back(*node.op, it->second);
    }
    return it->second;
  }

  // P4. Where the thread flushes denormal numbers, converting gives zero.
  void AddFloatTwin(const c10::IValue& number, PlannedArg* planned) {
    if (!number.isInt() && !number.isDouble()) return;
    const double exact = number.isInt() ? static_cast<double>(number.toInt()) : number.toDouble();
    const float converted = number.isInt() ? static_cast<float>(number.toInt()) : static_cast<float>(number.toDouble());
    if (!std::isnormal(converted) && exact != 0) return;
    planned->from = PlannedArg::From::kNumber;
    const c10::InferenceMode normal(false);
    Pool(WrappedFloat(converted));
  }

  void AddNode(const Node& node) {
    ForEachUse(node.args, [&](ValueId id) { CopyConstant(id, node.state); });
    PlannedStep step;
    step.kind = node.is_scalar()            ? PlannedStep::Kind::kScalar
                : FactsOf(*node.op).factory ? PlannedStep::Kind::kFactory
                                            : PlannedStep::Kind::kOp;
    step.changes = node.op && FactsOf(*node.op).changes_what_was();
    step.builtin_op = node.builtin_op;
    step.op = node.op;
    step.state = node.state.raw();
    const OpVerdict& verdict = VerdictOn(node);
    if (step.kind == PlannedStep::Kind::kOp) step.below_autograd = verdict.below;
    const bool first_is_made =
        !node.args.empty() && node.args[0].kind == Arg::Kind::kValue && graph_.value(node.args[0].value).def.valid();
    // Lists are planned into their own rows, so the arguments of a step lie side by side.
    std::vector<PlannedArg> args;
    for (size_t i = 0; i < node.args.size(); ++i) {
      const c10::Type* type = node.is_scalar() ? nullptr : node.op->schema().arguments()[i].type().get();
      args.push_back(Planned(node.args[i], type));
      if (i == 1 && verdict.converts_number && node.args[i].kind == Arg::Kind::kConst) {
        AddFloatTwin(node.args[i].constant, &args.back());
      }
    }
    if (verdict.below == BelowAutograd::kSame && verdict.works_in_place && first_is_made &&
        args[0].from == PlannedArg::From::kMove) {
      step.in_place = InPlaceForm(*node.op);
    }
    step.args_begin = static_cast<uint32_t>(plan_.args.size());
    plan_.args.insert(plan_.args.end(), args.begin(), args.end());
    step.args_end = static_cast<uint32_t>(plan_.args.size());
    step.results_begin = static_cast<uint32_t>(plan_.results.size());
    for (const ValueId id : node.outputs)
      plan_.results.push_back(uses_[id.raw()] == 0 ? Plan::kDropped : NewRegister(id));
    step.results_end = static_cast<uint32_t>(plan_.results.size());
    plan_.widest = std::max({plan_.widest, node.args.size(), node.outputs.size()});
    plan_.steps.push_back(std::move(step));
  }

  const Graph& graph_;
  const Repeats& repeats_;
  const bool share_tensors_;
  Plan plan_;
  uint32_t next_register_ = 0;
  std::vector<bool> is_input_;                       // by value
  std::vector<uint32_t> place_of_;                   // by value: among the inputs, or a register
  std::vector<uint32_t> uses_;                       // those not met yet
  absl::flat_hash_map<uint32_t, uint32_t> shared_;   // constant -> pool
  absl::flat_hash_map<uint32_t, uint32_t> to_copy_;  // constant not copied yet -> pool
  absl::flat_hash_map<const c10::FunctionSchema*, OpVerdict> verdicts_;
};

}  // namespace

Plan MakePlan(const Graph& graph, const Repeats& repeats, bool share_tensors) {
  return Planner(graph, repeats, share_tensors).Make();
}

}  // namespace frametap
