#include "frame_eval/record/trace/kernel_nodes.h"

#include <algorithm>
#include <array>

#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/numbers/sizes.h"
#include "frame_eval/record/objects/cached_properties.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/trace/checkpoint_nodes.h"
#include "frame_eval/record/trace/function_nodes.h"
#include "frame_eval/record/trace/python_ops.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"
#include "ir/passes/writes.h"

namespace frametap {
namespace {

constexpr int64_t kAllDimensions = -1;  // a mark among traced sizes, which says that all of them follow

Break RefuseKernel(const c10::OperatorHandle& op, const char* why) {
  return {Reason::python_kernel, c10::toString(op.operator_name()) + why};
}

// A module that is imported later: until then none of its code runs.
const void* GlobalsOf(const char* module) {
  PyObject* const modules = PyImport_GetModuleDict();
  PyObject* const found = modules != nullptr ? ItemNamed(modules, module) : nullptr;
  if (found == nullptr || !PyModule_Check(found)) return nullptr;
  return Py_NewRef(PyModule_GetDict(found));  // kept for ever, so that the address stays its own
}

bool IsDefaultOf(const PyFunctionObject* function, PyObject* object) {
  PyObject* const defaults = function->func_defaults;
  for (Py_ssize_t i = 0; defaults != nullptr && i < PyTuple_GET_SIZE(defaults); ++i) {
    if (PyTuple_GET_ITEM(defaults, i) == object) return true;
  }
  PyObject *key, *value;
  for (Py_ssize_t at = 0;
       function->func_kwdefaults != nullptr && PyDict_Next(function->func_kwdefaults, &at, &key, &value);) {
    if (value == object) return true;
  }
  return false;
}

bool IsMadeByDispatcher(PyObject* object) {
  return IsScalar(object) || IsTensor(object) || PyTuple_CheckExact(object) || PyList_CheckExact(object) ||
         PyDict_CheckExact(object);
}

// Who owns the memory of a value of the dropped nodes.
enum class Memory : uint8_t {
  kInner,     // the dropped nodes
  kWritable,  // an argument that the schema lets the op write to
  kOuter,
};

// The ops below `op`, which are about to be dropped. P5
class KernelOps {
 public:
  KernelOps(const Graph& graph, const AtenRecorder::FollowedOp& op)
      : graph_(graph), op_(op), memory_(graph.values.size(), Memory::kInner), is_given_(graph.values.size()) {
    std::fill(memory_.begin(), memory_.begin() + static_cast<ptrdiff_t>(op.since.values), Memory::kOuter);
    for (size_t i = 0; i < op.node.args.size(); ++i) {
      ForEachUseIn(op.node.args[i], [&](ValueId use) {
        is_given_[use.raw()] = true;
        if (WritesTo(op.node, i)) memory_[use.raw()] = Memory::kWritable;
      });
    }
  }

  template <class IsInput>
  void Check(IsInput&& is_input) {
    for (const auto& [value, tensor] : graph_.constants) {
      if (value.raw() >= op_.since.values) memory_[value.raw()] = Memory::kInner;
    }
    for (size_t n = op_.since.nodes; n < op_.end; ++n) {
      const Node& node = graph_.nodes[n];
      for (size_t i = 0; i < node.args.size(); ++i) {
        ForEachUseIn(node.args[i], [&](ValueId use) {
          const bool was_there = use.raw() < op_.since.values;
          if (is_input(use) && !was_there) memory_[use.raw()] = Memory::kOuter;
          const bool is_tensor = graph_.value(use).type.kind == Type::Kind::kTensor;
          if (was_there && is_tensor && !is_given_[use.raw()] && !is_input(use)) {
            Refuse(": the kernel uses a tensor of the graph that it was not given");
          }
          Use(node, i, use);
        });
      }
    }
  }

  // A result. `is_alias`: the schema says that it may be an argument.
  void CheckResult(std::optional<ValueId> value, bool is_alias) {
    if (is_alias) return;
    if (!value || memory_[value->raw()] != Memory::kInner) Refuse(": the kernel gives an argument back");
  }

 private:
  void Use(const Node& node, size_t arg, ValueId use) {
    const Memory memory = memory_[use.raw()];
    if (memory == Memory::kInner) return;
    if (WritesTo(node, arg)) {
      if (memory == Memory::kOuter) Refuse(": the kernel writes to a tensor that its schema does not name as written");
      if (node.op && FactsOf(*node.op).changes_metadata) Refuse(": the kernel changes sizes of an argument");
    }
    for (const ValueId out : node.outputs) {
      if (MayShareMemory(graph_, node, arg, use)) memory_[out.raw()] = std::max(memory_[out.raw()], memory);
    }
  }
  [[noreturn]] void Refuse(const char* why) const { throw RefuseKernel(*op_.node.op, why); }

  const Graph& graph_;
  const AtenRecorder::FollowedOp& op_;
  std::vector<Memory> memory_;
  std::vector<bool> is_given_;
};

}  // namespace

bool SizesFollow(const Node& node, const TracedSizes& sizes) {
  return std::all_of(node.outputs.begin(), node.outputs.end(), [&](ValueId out) {
    return sizes.contains({out.raw(), kAllDimensions});
  });
}

bool RunsForDispatcher(const FrameFacts& frame) {
  static constexpr std::array kModules = {
      "torch._ops",
      "torch._library.custom_ops",
      "torch._library.autograd",
      "torch._library.utils",
      "torch._library.triton",
      "torch._library.autocast",
      "torch.library",
      "torch._compile",
      "torch.compiler",
      "torch._dynamo.eval_frame",
      "torch._dynamo.decorators",
      "torch.autograd.function",
      "torch.utils.checkpoint",  // its hooks on saved tensors
      "torch.autograd.graph",
      "torch._functorch.utils",
      "torch.utils._pytree",
  };
  static std::array<const void*, kModules.size()> globals{};
  for (size_t i = 0; i < kModules.size(); ++i) {
    if (globals[i] == nullptr) globals[i] = GlobalsOf(kModules[i]);
    if (globals[i] == frame.globals) return true;
  }
  return frame.code == CodeOfCachedProperty();  // OpOverload has some
}

bool MayFollowKernel(const Trace& trace) {
  const FrameNote& note = NoteOf(trace.frames.innermost());
  return trace.store.backend().calls_python() && note.op.in_event && note.op.expect.kind == ResultSpec::Kind::kTorch &&
         trace.aten.OpToFollow() != nullptr;
}

static int64_t TakenFromOutside(const Trace& trace) {
  int64_t taken = static_cast<int64_t>(trace.iteration.outside_generators.size());
  for (const auto& [iterator, met] : trace.iteration.met) taken += met.taken;
  for (PyObject* const generator : trace.iteration.outside_generators) {
    const auto known = trace.objects.table.Find(generator);
    if (known != nullptr) taken += known->mutated_epoch;
  }
  return taken;
}

// P1, P4. `caller` has called the op. The first frame below it is the first to come.
void EnterKernel(Trace& trace, FrameState& f, FrameNote& caller) {
  const c10::OperatorHandle* const op_at_work = trace.aten.OpToFollow();
  if (op_at_work == nullptr) throw Break{Reason::python_kernel, ""};
  const c10::OperatorHandle& op = *op_at_work;
  trace.thread.Read();  // the dispatcher switches gradients and autocast off
  if (!caller.op.marks.follows_kernel) {
    if (MayBeSeen(trace.effects.pending)) throw RefuseKernel(op, ", after changes of objects that the kernel may read");
    if (trace.thread.IsContextSet()) throw RefuseKernel(op, ", after a context variable was set");
    for (const SymbolicNumber& number : caller.op.open) {
      if (number.is_taken) throw Break{Reason::value_of_tensor, "an element is passed to a kernel in Python"};
      if (!number.tensor.valid()) Specialize(trace, number.object, number.shadow);
    }
    caller.op.open.clear();
    if (trace.repeated_calls) trace.repeated_calls->Invalidate();
    caller.op.marks.follows_kernel = true;
    caller.op.effects_before = trace.effects.pending.size();
    caller.op.decisions_before = trace.decisions.size();
    caller.op.mutated_before = trace.objects.mutated_sources.size();
    caller.op.taken_before = TakenFromOutside(trace);
  }
  trace.aten.Follow();
  for (int i = 0; i < f.nlocalsplus; ++i) {
    PyObject* const object = f.objects[i];
    if (object == nullptr || KindOfSlot(f.code, i) == SlotKind::kFree || PyCell_Check(object)) continue;
    if (trace.objects.Find(object) != nullptr) continue;
    if (PyObject_TypeCheck(object, Objects().function_base)) {
      AddFresh(trace, object, ObjectRecord::State::kOpaque);  // the context of `setup_context`
    } else if (IsMadeByDispatcher(object) && !IsDefaultOf(f.function, object)) {
      TrackCreated(trace, object, true);
    } else {
      AdoptPinned(trace, object);  // what is registered leads to it: `self` of a method
    }
  }
}

static void CheckKernel(Trace& trace, const AtenRecorder::FollowedOp& op) {
  KernelOps ops(trace.aten.graph(), op);
  ops.Check([&trace](ValueId value) {
    return trace.aten.tensors.IsInput(value) || trace.numbers.inputs.contains(value.raw());
  });
  const std::vector<c10::Argument>& returns = op.node.op->schema().returns();
  for (size_t i = 0; i < op.results.size(); ++i) {
    const bool is_alias = returns[i].alias_info() != nullptr;
    const c10::IValue& result = op.results[i];
    if (!result.isTensor() && !result.isTensorList())
      throw RefuseKernel(*op.node.op, ": it gives something else than tensors");
    const std::vector<at::Tensor> tensors =
        result.isTensor() ? std::vector{result.toTensor()} : result.toTensorVector();
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.defined()) continue;
      const KnownTensor* const known = trace.aten.tensors.Find(tensor);
      const bool has_value = known != nullptr && known->value.valid();
      ops.CheckResult(has_value ? std::optional(known->value) : std::nullopt, is_alias);
      if (has_value && !is_alias) FixRank(trace, known->value);  // the node does not show its origin
    }
  }
}

// P7.
static void RefuseNumbersAsTensors(const Node& node) {
  const std::vector<c10::Argument>& parameters = node.op->schema().arguments();
  for (size_t i = 0; i < node.args.size(); ++i) {
    const bool is_number = node.args[i].kind == Arg::Kind::kConst && node.args[i].constant.isScalar();
    if (is_number && parameters[i].type()->kind() == c10::TypeKind::TensorType)
      throw RefuseKernel(*node.op, ": a number is passed as a tensor");
  }
}

// P3, P5, P6. The op has run, and its frames are gone.
void KernelResult(Trace& trace, FrameNote& note) {
  trace.thread.Read();
  if (trace.aten.pending) return;
  std::optional<AtenRecorder::FollowedOp> followed = trace.aten.TakeFollowed();
  if (!followed) throw Break{Reason::python_kernel, ""};  // frames of another op, which raised
  const c10::OperatorHandle op = *followed->node.op;
  if (trace.effects.pending.size() != note.op.effects_before ||
      trace.objects.mutated_sources.size() != note.op.mutated_before ||
      TakenFromOutside(trace) != note.op.taken_before) {
    throw RefuseKernel(op, ": the kernel changes Python objects");
  }
  if (trace.decisions.size() != note.op.decisions_before) throw RefuseKernel(op, ": the kernel decides on elements");
  if (trace.aten.graph().nodes.size() != followed->end) throw RefuseKernel(op, ": other ops follow in the same call");
  if (KnowsNumbersSince(trace, followed->since)) throw RefuseKernel(op, ": the kernel hands out numbers");
  RefuseNumbersAsTensors(followed->node);
  CheckKernel(trace, *followed);
  const AtenRecorder::Mark since = followed->since;
  if (trace.repeated_calls) trace.repeated_calls->DropFrom(since.nodes);
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& result : followed->results) {
    if (result.isTensor() && result.toTensor().defined()) tensors.push_back(result.toTensor());
    if (result.isTensorList()) {
      for (const at::Tensor& tensor : result.toTensorVector()) tensors.push_back(tensor);
    }
  }
  std::vector<std::vector<std::optional<Shadow>>> sizes;
  for (const at::Tensor& tensor : tensors) sizes.push_back(OuterSizes(trace, tensor, since));
  const NodeId id = trace.aten.AddFollowed(std::move(*followed));
  trace.numbers.Forget(trace.guards.mark().sources, since.values);
  bool all_follow = true;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::optional<ValueId> value = trace.aten.tensors.ValueOf(tensors[i]);
    if (!value) continue;
    NoteSizes(trace, *value, sizes[i]);
    if (trace.aten.ranks.FollowsFromSizes(*value)) trace.aten.ranks.Settle(*value);  // CheckKernel has fixed it
    for (const std::optional<Shadow>& size : sizes[i]) all_follow = all_follow && size.has_value();
  }
  for (const ValueId out : trace.aten.graph().node(id).outputs) {
    if (all_follow) trace.numbers.traced_sizes[{out.raw(), kAllDimensions}] = Shadow();
  }
  trace.kernels.emplace_back(op);
}

}  // namespace frametap
