#include "frame_eval/record/trace/function_nodes.h"

#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/finish/describe.h"
#include "frame_eval/record/numbers/sizes.h"
#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/trace/array_nodes.h"
#include "frame_eval/record/trace/attention_nodes.h"
#include "frame_eval/record/trace/checkpoint_nodes.h"
#include "frame_eval/record/trace/python_ops.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"
#include "ir/passes/writes.h"

namespace frametap {
namespace {

// An argument of `forward` that a run gives again.
struct GivenArgument {
  enum class Kind : uint8_t { kTensor, kItself, kWeak };
  Kind kind = Kind::kTensor;
  Ref<> object;  // kWeak: a weak reference to it, as the program may end it

  Ref<> Get() const { return Ref<>::New(kind == Kind::kWeak ? PyWeakref_GET_OBJECT(object.get()) : object.get()); }
};

struct FunctionCall {
  Ref<> function_class;  // a weak reference
  std::vector<GivenArgument> arguments;
};

// THPFunction_apply of the class, with the tensors in the places of the arguments that are null.
Ref<> MakeCall(int64_t id, const std::vector<at::Tensor>& tensors) {
  const FunctionCall* const found = KeptCalls<FunctionCall>::Find(id);
  if (found == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, "frametap: the autograd.Function of this graph is gone");
    return {};
  }
  const FunctionCall& call = *found;
  const Ref<> function_class = Ref<>::New(PyWeakref_GET_OBJECT(call.function_class.get()));
  const Ref<> arguments = Ref<>::Steal(PyTuple_New(static_cast<Py_ssize_t>(call.arguments.size())));
  if (!arguments) return {};
  size_t next = 0;
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    const GivenArgument& given = call.arguments[i];
    const bool is_tensor = given.kind == GivenArgument::Kind::kTensor;
    PyObject* const item = is_tensor ? WrapTensor(tensors[next++]) : given.Get().Release();
    if (item == nullptr) return {};
    PyTuple_SET_ITEM(arguments.get(), static_cast<Py_ssize_t>(i), item);
  }
  // The function that `super().apply` of torch.autograd.Function.apply leads to.
  const Ref<> apply = Ref<>::Steal(
      Py_TYPE(Objects().function_apply)->tp_descr_get(Objects().function_apply, nullptr, function_class.get()));
  return apply ? Ref<>::Steal(PyObject_CallObject(apply.get(), arguments.get())) : Ref<>();
}

bool TensorsOf(PyObject* result, std::vector<at::Tensor>* tensors) {
  if (IsTensor(result)) {
    tensors->push_back(TensorOf(result));
    return true;
  }
  if (!PyTuple_CheckExact(result)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(result); ++i) {
    PyObject* const item = PyTuple_GET_ITEM(result, i);
    if (!IsTensor(item)) return false;
    tensors->push_back(TensorOf(item));
  }
  return true;
}

void RunFunction(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  const std::vector<at::Tensor> tensors = torch::jit::pop(*stack).toTensorVector();
  const int64_t id = torch::jit::pop(*stack).toInt();
  std::vector<at::Tensor> results;
  RunInPython([&] {
    const Ref<> result = MakeCall(id, tensors);
    if (result && !TensorsOf(result.get(), &results)) {
      PyErr_SetString(PyExc_RuntimeError,
                      "frametap: an autograd.Function gives other objects than when it was recorded");
    }
  });
  stack->emplace_back(std::move(results));
}

Break RefuseFunction(const char* why) { return {Reason::unknown_callable, std::string("an autograd.Function ") + why}; }

// A value that is one object in all calls, and that cannot be changed.
bool IsConstantArgument(PyObject* object, int depth = 0) {
  constexpr int kDeepest = 8;
  if (IsScalar(object)) return true;
  if (!PyTuple_CheckExact(object) || depth == kDeepest) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) {
    if (!IsConstantArgument(PyTuple_GET_ITEM(object, i), depth + 1)) return false;
  }
  return true;
}

// A list or dict of such values.
bool IsPlainContainer(PyObject* object) {
  Py_ssize_t at = 0;
  PyObject *key, *value;
  while (PyDict_CheckExact(object) && PyDict_Next(object, &at, &key, &value)) {
    if (!IsConstantArgument(key) || !IsConstantArgument(value)) return false;
  }
  for (at = 0; PyList_CheckExact(object) && at < PyList_GET_SIZE(object); ++at) {
    if (!IsConstantArgument(PyList_GET_ITEM(object, at))) return false;
  }
  return PyDict_CheckExact(object) || PyList_CheckExact(object);
}

// Whether a run can give `forward` an object again: it existed before, and so is fixed. (What the trace makes may be held by
// others, so that another list in its place would be noticed.)
bool CanBeGivenAgain(Trace& trace, PyObject* object) {
  ObjectRecord* const known = trace.objects.Find(object);
  if (known == nullptr || known->state != ObjectRecord::State::kSource || known->mutated) return false;
  if (!IsPlainContainer(object) && !PyType_SUPPORTS_WEAKREFS(Py_TYPE(object))) return false;
  if (!known->pinned) Fix(trace, *known);
  return true;
}

GivenArgument GivenAgain(Trace& trace, PyObject* object) {
  if (IsTensor(object)) return {};
  if (IsConstantArgument(object)) return {GivenArgument::Kind::kItself, Ref<>::New(object)};
  const ObjectRecord* const known = trace.objects.Find(object);
  if (known == nullptr || known->mutated) throw RefuseFunction("that changes an argument");
  if (IsPlainContainer(object)) return {GivenArgument::Kind::kItself, Ref<>::New(object)};
  return {GivenArgument::Kind::kWeak, Must(PyWeakref_NewRef(object, nullptr))};
}

}  // namespace

void RegisterFunctionOp() {
  RegisterPythonOps(kFunctionOp, kWritingOp, "", c10::KernelFunction::makeFromBoxedFunction<&RunFunction>());
}

// F1. `call` is the call of THPFunction_apply, bound to the class.
void CallFunction(Trace& trace, Call& call) {
  PyObject* const function_class = PyCFunction_Check(call.callable) ? PyCFunction_GET_SELF(call.callable) : nullptr;
  if (function_class == nullptr || !PyType_Check(function_class)) throw Refusal(call.callable);
  if (!trace.store.backend().calls_python()) throw RefuseFunction("under a backend that compiles");
  if (!call.names.empty()) throw RefuseFunction("with arguments by name");
  if (MayBeSeen(trace.effects.pending))
    throw RefuseFunction("after changes of Python objects that its forward may read");
  if (trace.thread.IsContextSet()) throw RefuseFunction("after a context variable was set");
  if (IsAttentionSwitched(trace.aten)) throw RefuseFunction("where the kinds of attention are switched");
  bool takes_tensor = false;
  for (size_t i = 0; i < call.args.size(); ++i) {
    PyObject* const arg = call.args[i];
    SpecializeDeep(trace, arg, call.shadows[i], true);
    if (IsTensor(arg)) {
      takes_tensor = true;
      if (!trace.aten.tensors.ValueOf(TensorOf(arg))) throw Break{Reason::tensor_from_nowhere, ""};
    } else if (!IsConstantArgument(arg) && !CanBeGivenAgain(trace, arg)) {
      throw RefuseFunction("with an argument that is neither a tensor nor a plain value");
    }
  }
  if (!takes_tensor) throw RefuseFunction("without a tensor among its arguments");
  AdoptPinned(trace, function_class);
  GuardTypeOrIdentity(trace, function_class);
  trace.guards.Class(reinterpret_cast<PyTypeObject*>(function_class), trace.frames.Here());
  if (trace.repeated_calls)
    trace.repeated_calls->Invalidate();  // no call of another layer is repeated by its ops alone
  call.note.op.marks.calls_function = true;
  call.note.op.before_nodes = trace.aten.mark();
  call.note.op.effects_before = trace.effects.pending.size();
}

// F2. The ops of `forward` begin at `since`. Returns true if they write to an argument, or if a result may share
// memory with one.
static bool CheckFunction(Trace& trace, const AtenRecorder::Mark& since, const std::vector<ValueId>& given,
                          const std::vector<at::Tensor>& results) {
  bool reaches_arguments = false;
  const Graph& graph = trace.aten.graph();
  std::vector<bool> is_outer(graph.values.size());  // its memory may have existed before the call
  std::fill(is_outer.begin(), is_outer.begin() + static_cast<ptrdiff_t>(since.values), true);
  for (size_t n = since.nodes; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.op) {
      if (IsArrayOp(*node.op)) throw RefuseFunction("that calls NumPy");
      const OpFacts& facts = FactsOf(*node.op);
      if (facts.data_dependent_size || facts.scalar_from_data) throw RefuseFunction("that looks at elements");
      if (facts.changes_metadata) throw RefuseFunction("that changes sizes in place");
    }
    for (size_t i = 0; i < node.args.size(); ++i) {
      ForEachUseIn(node.args[i], [&](ValueId use) {
        const bool is_known = use.raw() < since.values || graph.value(use).def.valid();
        const bool is_given = std::find(given.begin(), given.end(), use) != given.end();
        if (trace.aten.tensors.IsInput(use) && !is_given && !trace.numbers.inputs.contains(use.raw())) {
          throw RefuseFunction("that uses a tensor which is not among its arguments");
        }
        if (is_known && use.raw() < since.values && !is_given && graph.value(use).type.kind == Type::Kind::kTensor) {
          throw RefuseFunction("that uses a tensor which is not among its arguments");
        }
        if (!is_outer[use.raw()]) return;
        reaches_arguments |= WritesTo(node, i);
        for (const ValueId out : node.outputs) {
          if (MayShareMemory(graph, node, i, use)) is_outer[out.raw()] = true;
        }
      });
    }
  }
  for (const at::Tensor& result : results) {
    const KnownTensor* const known = trace.aten.tensors.Find(result);
    if (known == nullptr || !known->value.valid() || is_outer[known->value.raw()]) {
      reaches_arguments = true;
    } else {
      FixRank(trace, known->value);  // the node does not show its origin
    }
  }
  return reaches_arguments;
}

// Expresses the sizes of a tensor that the ops of `forward` returned, as far as they follow from earlier values.
std::vector<std::optional<Shadow>> OuterSizes(Trace& trace, const at::Tensor& tensor, const AtenRecorder::Mark& since) {
  const std::optional<ValueId> value = trace.aten.tensors.ValueOf(tensor);
  std::vector<std::optional<Shadow>> sizes(static_cast<size_t>(tensor.dim()));
  for (size_t dim = 0; value && dim < sizes.size(); ++dim) {
    sizes[dim] = TraceSize(trace, *value, static_cast<int64_t>(dim), 0);
    if (sizes[dim] && sizes[dim]->kind == Shadow::Kind::kValue && sizes[dim]->id >= since.values) sizes[dim].reset();
  }
  return sizes;
}

void NoteSizes(Trace& trace, ValueId value, const std::vector<std::optional<Shadow>>& sizes) {
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim]) trace.numbers.traced_sizes[{value.raw(), static_cast<int64_t>(dim)}] = *sizes[dim];
  }
}

Shadow FunctionResult(Trace& trace, FrameNote& note, const Event& e, PyObject* result) {
  const AtenRecorder::Mark since = note.op.before_nodes;
  if (trace.repeated_calls) trace.repeated_calls->DropFrom(since.nodes);
  if (trace.effects.pending.size() != note.op.effects_before) throw RefuseFunction("that changes Python objects");
  if (KnowsNumbersSince(trace, since)) throw RefuseFunction("that hands out numbers");
  std::vector<at::Tensor> tensors;
  if (!TensorsOf(result, &tensors)) throw RefuseFunction("that gives something else than tensors");
  std::vector<GivenArgument> arguments;
  std::vector<Arg> given;
  std::vector<ValueId> values;
  PyObject* const args = e.op == Op::kCallEx ? e.in[1] : nullptr;
  const Py_ssize_t count = args != nullptr ? PyTuple_GET_SIZE(args) : e.n - 1;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const arg = args != nullptr ? PyTuple_GET_ITEM(args, i) : e.in[i + 1];
    arguments.push_back(GivenAgain(trace, arg));
    if (!IsTensor(arg)) continue;
    values.push_back(trace.aten.tensors.ValueBefore(TensorOf(arg), since.tensors));
    given.push_back(Arg::Of(values.back()));
  }
  const bool reaches_arguments = CheckFunction(trace, since, values, tensors);
  std::vector<std::vector<std::optional<Shadow>>> sizes;
  for (const at::Tensor& tensor : tensors) sizes.push_back(OuterSizes(trace, tensor, since));
  trace.aten.DropNodes(since);
  trace.numbers.Forget(trace.guards.mark().sources, since.values);
  Ref<> owner;
  FunctionCall call{Must(PyWeakref_NewRef(PyCFunction_GET_SELF(e.in[0]), nullptr)), std::move(arguments)};
  const int64_t id = KeptCalls<FunctionCall>::Keep(std::move(call), &owner);
  AddConstant(trace, owner.get());
  const ValueId list = trace.aten.AddOpNode(reaches_arguments ? kWritingOp : kFunctionOp, "",
                                            {Arg::Const(c10::IValue(id)), Arg::List(std::move(given))},
                                            Type::Scalar(Type::Kind::kTensorList));
  if (reaches_arguments) trace.aten.NoteWritesTo(values);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Arg index = Arg::Const(c10::IValue(static_cast<int64_t>(i)));
    const ValueId value = trace.aten.AddScalarNode(BuiltinOp::kListItem, {Arg::Of(list), index}, Type::Of(tensors[i]));
    trace.aten.tensors.Bind(tensors[i], value);
    NoteSizes(trace, value, sizes[i]);
  }
  return AdoptResult(trace, result);
}

}  // namespace frametap
