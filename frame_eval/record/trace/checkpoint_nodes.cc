#include "frame_eval/record/trace/checkpoint_nodes.h"

#include <memory>

#include "absl/container/flat_hash_map.h"
#include "backends/backend.h"
#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/finish/describe.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/numbers/sizes.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/semantics/calls.h"
#include "frame_eval/record/trace.h"
#include "frame_eval/record/trace/array_nodes.h"
#include "frame_eval/record/trace/attention_nodes.h"
#include "frame_eval/record/trace/function_nodes.h"
#include "frame_eval/record/trace/python_ops.h"
#include "guards/objects/dict_items.h"
#include "guards/objects/thread_end.h"
#include "guards/objects/torch_tensor.h"
#include "guards/throw_if_null.h"
#include "ir/graph/builtin_op.h"
#include "ir/passes/writes.h"

namespace frametap {

static bool CheckCheckpointed(Trace& trace, const AtenRecorder::Mark& since);
namespace {

struct Checkpointed {
  Graph graph;  // inputs: tensors by position, other tensors, numbers
  std::unique_ptr<Executable> executable;
  std::vector<bool> is_tensor;
  size_t given = 0;  // tensors by position
  Ref<> checkpoint, options;
  Ref<> names;  // of keywords that the function gets
};

using KeptCheckpoints = KeptCalls<std::shared_ptr<Checkpointed>>;

// The function that torch's checkpoint calls, once or twice: it runs the recorded ops.
struct Body {
  PyObject_HEAD std::shared_ptr<Checkpointed> of;
  std::vector<c10::IValue> others;  // the inputs after the tensors that are passed by position
  Ref<> called;                     // K4. A tuple of the function and its arguments; null until the run has ended
};

// Bodies to which no function was handed yet, and the threads that made them. Under Python's lock.
std::vector<std::pair<Body*, unsigned long>>& Waiting() {
  static auto* const bodies = new std::vector<std::pair<Body*, unsigned long>>();
  return *bodies;
}

// An assumption of the graph does not hold. Python code is between the ops that find this and the node that reports
// it.
thread_local constinit bool assumption_failed = false;

PyObject* CallBody(PyObject* self, PyObject* args, PyObject*) {
  const auto& body = *reinterpret_cast<Body*>(self);
  const Checkpointed& of = *body.of;
  if (body.called) {
    const Ref<> called = Ref<>::New(body.called.get()), names = Ref<>::New(of.names.get());
    PyObject* const* const items = reinterpret_cast<PyTupleObject*>(called.get())->ob_item;
    const auto count = static_cast<size_t>(PyTuple_GET_SIZE(called.get()) - 1 - PyTuple_GET_SIZE(names.get()));
    return PyObject_Vectorcall(items[0], items + 1, count, names.get());
  }
  try {
    std::vector<c10::IValue> inputs;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args) && static_cast<size_t>(i) < of.is_tensor.size(); ++i) {
      if (of.is_tensor[static_cast<size_t>(i)]) inputs.emplace_back(TensorOf(PyTuple_GET_ITEM(args, i)));
    }
    inputs.insert(inputs.end(), body.others.begin(), body.others.end());
    std::vector<c10::IValue> outputs;
    {
      const AtenPause below;
      const UnlockedToThreadEnd unlocked;
      outputs = of.executable->Run(inputs);
    }
    Ref<> result = Ref<>::Steal(PyTuple_New(static_cast<Py_ssize_t>(outputs.size())));
    for (size_t i = 0; result && i < outputs.size(); ++i) {
      PyObject* const tensor = WrapTensor(outputs[i].toTensor());
      if (tensor == nullptr) return nullptr;
      PyTuple_SET_ITEM(result.get(), static_cast<Py_ssize_t>(i), tensor);
    }
    return result.Release();
  } catch (const AssumptionFails& failed) {
    assumption_failed = true;
    PyErr_SetString(PyExc_RuntimeError, failed.what());
    return nullptr;
  } catch (const abi::__forced_unwind&) {
    WaitForProcessEnd();
  } catch (...) {
    SetPythonErrorFromException();
    return nullptr;
  }
}

void DropBody(PyObject* self) {
  auto* const body = reinterpret_cast<Body*>(self);
  std::erase_if(Waiting(), [body](const auto& one) { return one.first == body; });
  std::destroy_at(&body->of);
  std::destroy_at(&body->others);
  std::destroy_at(&body->called);
  Py_TYPE(self)->tp_free(self);
}

PyTypeObject* BodyType() {
  static PyTypeObject* const type = [] {
    auto* const made = new PyTypeObject();
    Py_SET_REFCNT(reinterpret_cast<PyObject*>(made), 1);
    made->tp_name = "frametap.checkpointed";
    made->tp_basicsize = sizeof(Body);
    made->tp_flags = Py_TPFLAGS_DEFAULT;
    made->tp_dealloc = DropBody;
    made->tp_call = CallBody;
    if (PyType_Ready(made) < 0) throw std::runtime_error("a type cannot be made");
    return made;
  }();
  return type;
}

Ref<> MakeBody(std::shared_ptr<Checkpointed> of, std::vector<c10::IValue> others) {
  Ref<> object = Ref<>::Steal(BodyType()->tp_alloc(BodyType(), 0));
  if (!object) return object;
  auto* const body = reinterpret_cast<Body*>(object.get());
  std::construct_at(&body->of, std::move(of));
  std::construct_at(&body->others, std::move(others));
  std::construct_at(&body->called);
  Waiting().emplace_back(body, PyThread_get_thread_ident());
  return object;
}

// K4. Called with the function and its arguments. `owner` belongs to the kept checkpoint.
PyObject* HandOver(PyObject* owner, PyObject* called) {
  const std::shared_ptr<Checkpointed>* const found = KeptCheckpoints::Find(KeptCheckpoints::IdOf(owner));
  std::vector<std::pair<Body*, unsigned long>>& waiting = Waiting();
  for (size_t i = waiting.size(); found != nullptr && i-- > 0;) {
    Body* const body = waiting[i].first;
    if (body->of != *found || waiting[i].second != PyThread_get_thread_ident()) continue;
    body->called = Ref<>::New(called);
    waiting.erase(waiting.begin() + static_cast<ptrdiff_t>(i));
    break;
  }
  Py_RETURN_NONE;
}

PyMethodDef hand_over = {"checkpointed", HandOver, METH_VARARGS, nullptr};

Ref<> MakeCall(int64_t id, const std::vector<at::Tensor>& tensors, const std::vector<int64_t>& numbers) {
  const std::shared_ptr<Checkpointed>* const found = KeptCheckpoints::Find(id);
  if (found == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, "frametap: the checkpointed function of this graph is gone");
    return {};
  }
  const std::shared_ptr<Checkpointed> of = *found;
  std::vector<c10::IValue> others(tensors.begin() + static_cast<ptrdiff_t>(of->given), tensors.end());
  others.insert(others.end(), numbers.begin(), numbers.end());
  Ref<> body = MakeBody(of, std::move(others));
  const Ref<> arguments = Ref<>::Steal(PyTuple_New(static_cast<Py_ssize_t>(of->is_tensor.size() + 1)));
  if (!body || !arguments) return {};
  PyTuple_SET_ITEM(arguments.get(), 0, body.Release());
  size_t next = 0;
  for (size_t i = 0; i < of->is_tensor.size(); ++i) {
    PyObject* const item = of->is_tensor[i] ? WrapTensor(tensors[next++]) : Py_NewRef(Py_None);
    if (item == nullptr) return {};
    PyTuple_SET_ITEM(arguments.get(), static_cast<Py_ssize_t>(i + 1), item);
  }
  return Ref<>::Steal(PyObject_Call(of->checkpoint.get(), arguments.get(), of->options.get()));
}

void RunCheckpoint(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  const std::vector<int64_t> numbers = torch::jit::pop(*stack).toIntVector();
  const std::vector<at::Tensor> tensors = torch::jit::pop(*stack).toTensorVector();
  const int64_t id = torch::jit::pop(*stack).toInt();
  std::vector<at::Tensor> results;
  RunInPython([&] {
    const Ref<> result = MakeCall(id, tensors, numbers);
    for (Py_ssize_t i = 0; result && i < PyTuple_GET_SIZE(result.get()); ++i) {
      results.push_back(TensorOf(PyTuple_GET_ITEM(result.get(), i)));
    }
    if (std::exchange(assumption_failed, false) && !result) {
      PyErr_Clear();
      throw AssumptionFails("in a checkpointed function");
    }
  });
  stack->emplace_back(std::move(results));
}

Break RefuseCheckpoint(const char* why) { return {Reason::unknown_callable, std::string("a checkpoint ") + why}; }

// Collects the tensors in the result of the function. Returns false if it contains anything except sequences and
// dicts.
bool CollectTensors(PyObject* object, std::vector<PyObject*>* tensors, int depth = 0) {
  constexpr int kDeepest = 8;
  if (IsScalar(object)) return true;
  if (IsTensor(object)) {
    tensors->push_back(object);
    return true;
  }
  if (depth == kDeepest) return false;
  if (PyTuple_Check(object) || PyList_CheckExact(object)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      if (!CollectTensors(PySequence_Fast_GET_ITEM(object, i), tensors, depth + 1)) return false;
    }
    return true;
  }
  if (!PyDict_CheckExact(object)) return false;
  for (const auto [key, value] : DictItems(object)) {
    if (!IsScalar(key) || !CollectTensors(value, tensors, depth + 1)) return false;
  }
  return true;
}

// K1. The nodes of `whole` from `since` on, as a graph of their own.
struct PartBuilder {
  const Graph& whole;
  AtenRecorder::Mark since;
  Graph part = {};
  absl::flat_hash_map<uint32_t, ValueId> now = {};
  std::vector<ValueId> tensors = {}, numbers = {};  // of `whole`, that it takes

  // Values that the nodes use and do not make.
  void Collect() {
    for (const auto& [value, tensor] : whole.constants) {
      if (value.raw() >= since.values) now[value.raw()] = part.AddConstant("", tensor);
    }
    std::vector<bool> seen(whole.values.size());
    for (const ValueId given : tensors) seen[given.raw()] = true;
    for (size_t n = since.nodes; n < whole.nodes.size(); ++n) {
      ForEachUse(whole.nodes[n].args, [&](ValueId use) {
        const NodeId def = whole.value(use).def;
        const bool is_inner = def.valid() && def.raw() >= since.nodes;
        if (is_inner || seen[use.raw()] || now.contains(use.raw())) return;
        seen[use.raw()] = true;
        const Type::Kind kind = whole.value(use).type.kind;
        if (kind != Type::Kind::kTensor && kind != Type::Kind::kInt) {
          throw RefuseCheckpoint("of a function that uses a number which is no int");
        }
        (kind == Type::Kind::kTensor ? tensors : numbers).push_back(use);
      });
    }
  }

  Arg Mapped(const Arg& arg) const {
    if (arg.kind == Arg::Kind::kValue) return Arg::Of(now.at(arg.value.raw()));
    if (arg.kind == Arg::Kind::kConst) return arg;
    std::vector<Arg> items;
    for (const Arg& item : arg.items) items.push_back(Mapped(item));
    return Arg::List(std::move(items));
  }

  void Build(const EagerState& entry) {
    const auto relative = [&](EagerState state) {
      state.autocast_cleared = static_cast<uint16_t>(state.autocast_cleared - entry.autocast_cleared);
      return state;
    };
    part.states[0] = relative(entry);
    for (const ValueId value : tensors) now[value.raw()] = part.AddInput("", whole.value(value).type);
    for (const ValueId value : numbers) now[value.raw()] = part.AddInput("", whole.value(value).type);
    for (size_t n = since.nodes; n < whole.nodes.size(); ++n) {
      const Node& node = whole.nodes[n];
      Node copy;
      copy.op = node.op;
      copy.builtin_op = node.builtin_op;
      for (const Arg& arg : node.args) copy.args.push_back(Mapped(arg));
      copy.state = part.AddState(relative(whole.states[node.state.raw()]));
      for (const ValueId out : node.outputs) {
        const ValueId value = part.NewValue("", whole.value(out).type, NodeId(part.nodes.size()));
        now[out.raw()] = value;
        copy.outputs.push_back(value);
      }
      part.AddNode(std::move(copy));
    }
  }
};

}  // namespace

void RegisterCheckpointOp() {
  RegisterPythonOps(kCheckpointOp, kWritingCheckpointOp, ", int[] numbers",
                    c10::KernelFunction::makeFromBoxedFunction<&RunCheckpoint>());
}

bool IsCheckpointCode(const PyCodeObject* code) {
  static const void* const known = []() -> const void* {
    const ErrScope keep;
    const Ref<> outer = OwnerOf("torch.utils.checkpoint", "checkpoint");
    const Ref<> checkpoint = outer ? Ref<>::Steal(PyObject_GetAttrString(outer.get(), "__wrapped__")) : Ref<>();
    if (!checkpoint) PyErr_Clear();
    return checkpoint && PyFunction_Check(checkpoint.get()) ? PyFunction_GET_CODE(checkpoint.get()) : nullptr;
  }();
  return known == code;
}

// Before torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, …).
void CallCheckpoint(Trace& trace, Call& call) {
  // The recomputation has the switches of attention of its time.
  const bool is_switched = IsAttentionSwitched(trace.aten);
  if (!trace.store.backend().calls_python() || call.positional() == 0 || trace.frames.checkpoint || is_switched)
    throw Refusal(call.callable);
  CheckpointAtWork work;
  work.options = Must(PyDict_New());
  Call inner{call.f, call.note, call.args[0], {}, {}, {}};
  for (size_t i = 1; i < call.positional(); ++i) {
    PyObject* const arg = call.args[i];
    inner.args.push_back(arg);
    inner.shadows.push_back(call.shadows[i]);
    work.is_tensor.push_back(IsTensor(arg));
    if (!IsTensor(arg)) continue;
    const std::optional<ValueId> value = IsExactTensor(arg) ? trace.aten.tensors.ValueOf(TensorOf(arg)) : std::nullopt;
    if (!value) throw Break{Reason::tensor_from_nowhere, ""};
    work.tensors.push_back(*value);
  }
  bool reenters = true;
  for (size_t k = 0; k < call.names.size(); ++k) {
    PyObject* const value = call.args[call.positional() + k];
    const auto is = [&](const char* name) { return PyUnicode_CompareWithASCIIString(call.names[k], name) == 0; };
    if (is("context_fn") || is("debug")) throw Refusal(call.callable);
    if (!is("use_reentrant") && !is("preserve_rng_state") && !is("determinism_check") && !is("early_stop")) {
      inner.args.push_back(value);
      inner.shadows.push_back(call.shadows[call.positional() + k]);
      inner.names.push_back(call.names[k]);
      continue;
    }
    if (!IsScalar(value)) throw Refusal(call.callable);
    Specialize(trace, value, call.shadows[call.positional() + k]);
    if (is("use_reentrant")) reenters = value != Py_False;
    if (PyDict_SetItem(work.options.get(), call.names[k], value) < 0) throw std::bad_alloc();
  }
  if (reenters) throw Break{Reason::unknown_callable, "torch.utils.checkpoint with use_reentrant=True"};
  if (trace.repeated_calls) trace.repeated_calls->Invalidate();
  work.checkpoint = Ref<>::New(call.callable);
  PyObject* const function = call.args[0];
  work.called.push_back(Ref<>::New(function));
  for (PyObject* const arg : inner.args) work.called.push_back(Ref<>::New(arg));
  work.shadows = {call.shadows[0]};
  work.shadows.insert(work.shadows.end(), inner.shadows.begin(), inner.shadows.end());
  work.names = KeywordsOf(inner);
  trace.frames.ClearPending();
  Invoke(trace, std::move(inner));
  if (!trace.frames.has_pending || trace.frames.checkpoint || PyType_Check(function)) throw Refusal(function);
  call.note.op.expect.Reset();
  work.caller = &call.f;
  work.since = trace.aten.mark();
  work.effects = trace.effects.pending.size();
  work.decisions = trace.decisions.size();
  trace.frames.checkpoint.emplace(std::move(work));
}

bool AwaitsCheckpointed(const Trace& trace, PyCodeObject* code) {
  return trace.frames.checkpoint && !trace.frames.checkpoint->has_begun && trace.frames.has_pending &&
         PyFunction_GET_CODE(trace.frames.pending.function) == reinterpret_cast<PyObject*>(code);
}

// K3. Numbers of dropped nodes that something still knows.
bool KnowsNumbersSince(const Trace& trace, const AtenRecorder::Mark& since) {
  const auto& values = trace.aten.graph().values;
  const auto is_tensor = [](const auto& value) { return value.type.kind == Type::Kind::kTensor; };
  if (std::all_of(values.begin() + static_cast<ptrdiff_t>(since.values), values.end(), is_tensor)) return false;
  const auto is_gone = [&](Shadow shadow) { return shadow.kind == Shadow::Kind::kValue && shadow.id >= since.values; };
  for (const ObjectRecord& known : trace.objects.known) {
    if (std::any_of(known.items.begin(), known.items.end(), is_gone)) return true;
    for (const auto* by_name : {known.written.get(), known.changes ? &known.changes->stored : nullptr}) {
      const auto is_gone_there = [&](const auto& entry) { return is_gone(entry.second); };
      if (by_name != nullptr && std::any_of(by_name->begin(), by_name->end(), is_gone_there)) return true;
    }
  }
  return std::any_of(trace.variables.cells.begin(), trace.variables.cells.end(), is_gone);
}

// K1 to K3. Before the result is adopted.
void CheckpointResult(Trace& trace, FrameNote& note, PyObject* result) {
  const CheckpointAtWork work = std::move(*std::exchange(trace.frames.checkpoint, std::nullopt));
  if (trace.repeated_calls) trace.repeated_calls->DropFrom(work.since.nodes);
  if (trace.aten.pending) return;
  const AtenRecorder::Mark& since = work.since;
  const Graph& graph = trace.aten.graph();
  if (!work.has_begun || note.op.returned != result)
    throw RefuseCheckpoint("that gives something else than the function");
  if (trace.effects.pending.size() != work.effects) throw RefuseCheckpoint("of a function that changes Python objects");
  const bool is_number = note.op.returned_shadow.kind != Shadow::Kind::kNone;
  if (trace.decisions.size() != work.decisions || is_number || KnowsNumbersSince(trace, since)) {
    throw RefuseCheckpoint("of a function that hands out numbers");
  }
  std::vector<PyObject*> found;
  if (!CollectTensors(result, &found)) throw RefuseCheckpoint("of a function that gives objects");
  PartBuilder builder{graph, since};
  builder.tensors = work.tensors;
  builder.Collect();
  const bool reaches_arguments = CheckCheckpointed(trace, since);
  builder.Build(work.state);
  struct Output {
    at::Tensor tensor;
    std::vector<std::optional<Shadow>> sizes;
  };
  std::vector<Output> outputs;
  std::vector<bool> is_output(graph.values.size());
  for (PyObject* const object : found) {
    const std::optional<ValueId> value = trace.aten.tensors.ValueOf(TensorOf(object));
    if (!value) throw Break{Reason::tensor_from_nowhere, ""};
    const NodeId def = graph.value(*value).def;
    if (!def.valid() || def.raw() < since.nodes || is_output[value->raw()]) continue;
    is_output[value->raw()] = true;
    FixRank(trace, *value);
    outputs.push_back({TensorOf(object), OuterSizes(trace, TensorOf(object), since)});
    builder.part.outputs.push_back(builder.now.at(value->raw()));
  }
  if (outputs.empty()) throw RefuseCheckpoint("of a function that gives no new tensor");
  // Inputs that were met on the way go with the nodes, and come again.
  std::vector<std::optional<at::Tensor>> met;
  for (const ValueId value : builder.tensors) {
    met.push_back(value.raw() >= since.values ? trace.aten.tensors.TensorOfInput(value) : std::nullopt);
    if (value.raw() >= since.values && !met.back()) throw Break{Reason::tensor_from_nowhere, ""};
  }
  std::vector<SourceId> number_sources;
  for (const ValueId value : builder.numbers) {
    number_sources.push_back(value.raw() >= since.values ? trace.aten.tensors.SourceOfInput(value) : SourceId());
    if (value.raw() >= since.values && !number_sources.back().valid()) throw RefuseCheckpoint("of unknown numbers");
  }
  auto kept = std::make_shared<Checkpointed>();
  kept->graph = std::move(builder.part);
  kept->is_tensor = work.is_tensor;
  kept->given = work.tensors.size();
  kept->checkpoint = Ref<>::New(work.checkpoint.get());
  kept->options = Ref<>::New(work.options.get());
  kept->names = Ref<>::New(work.names.get());
  absl::StatusOr<std::unique_ptr<Executable>> executable = MakeNativeBackend()->Compile(kept->graph);
  if (!executable.ok()) throw RefuseCheckpoint("whose graph cannot be run by itself");
  kept->executable = std::move(*executable);

  std::vector<ValueId> tensors = builder.tensors;
  trace.aten.DropNodes(since);
  trace.numbers.Forget(trace.guards.mark().sources, since.values);
  std::vector<Arg> given, numbers;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (met[i]) tensors[i] = *trace.aten.tensors.ValueOf(*met[i]);
    given.push_back(Arg::Of(tensors[i]));
  }
  for (size_t i = 0; i < builder.numbers.size(); ++i) {
    const SourceId source = number_sources[i];
    numbers.push_back(
        Arg::Of(source.valid() ? NumberValue(trace, {Shadow::Kind::kSource, source.raw()}) : builder.numbers[i]));
  }
  Ref<> owner;
  const int64_t id = KeptCheckpoints::Keep(std::move(kept), &owner);
  AddConstant(trace, owner.get());
  const Ref<> hand = Must(PyCFunction_New(&hand_over, owner.get()));
  AdoptPinned(trace, hand.get());
  std::vector<PyObject*> called;
  for (const Ref<>& one : work.called) called.push_back(one.get());
  PushEffect(trace, Effect::Kind::kCall, hand.get(), "__call__", called, work.shadows);
  trace.effects.pending.back().nodes_before = PendingEffect::kSeenByNobody;
  const Arg ints = numbers.empty() ? Arg::Const(c10::IValue(std::vector<int64_t>())) : Arg::List(std::move(numbers));
  const ValueId list = trace.aten.AddOpNode(reaches_arguments ? kWritingCheckpointOp : kCheckpointOp, "",
                                            {Arg::Const(c10::IValue(id)), Arg::List(std::move(given)), ints},
                                            Type::Scalar(Type::Kind::kTensorList));
  if (reaches_arguments) trace.aten.NoteWritesTo(tensors);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Arg index = Arg::Const(c10::IValue(static_cast<int64_t>(i)));
    const ValueId value =
        trace.aten.AddScalarNode(BuiltinOp::kListItem, {Arg::Of(list), index}, Type::Of(outputs[i].tensor));
    trace.aten.tensors.Bind(outputs[i].tensor, value);
    NoteSizes(trace, value, outputs[i].sizes);
  }
}

// K3. Returns true if the ops since then write to older memory, or return it.
static bool CheckCheckpointed(Trace& trace, const AtenRecorder::Mark& since) {
  const Graph& graph = trace.aten.graph();
  bool reaches = false;
  std::vector<bool> is_outer(graph.values.size(), true);
  for (size_t n = since.nodes; n < graph.nodes.size(); ++n) {
    for (const ValueId out : graph.nodes[n].outputs) is_outer[out.raw()] = false;
  }
  for (size_t n = since.nodes; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.op) {
      if (IsArrayOp(*node.op)) throw RefuseCheckpoint("of a function that calls NumPy");
      const OpFacts& facts = FactsOf(*node.op);
      if (facts.data_dependent_size || facts.scalar_from_data)
        throw RefuseCheckpoint("of a function that looks at elements");
      if (facts.changes_metadata) throw RefuseCheckpoint("of a function that changes sizes in place");
    }
    for (size_t i = 0; i < node.args.size(); ++i) {
      ForEachUseIn(node.args[i], [&](ValueId use) {
        if (!is_outer[use.raw()]) return;
        reaches |= WritesTo(node, i);
        for (const ValueId out : node.outputs) {
          if (!MayShareMemory(graph, node, i, use)) continue;
          is_outer[out.raw()] = true;
          reaches = true;  // it may be given back
        }
      });
    }
  }
  return reaches;
}

}  // namespace frametap
