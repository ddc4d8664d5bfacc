// torch: functions and methods that dispatch, facts of tensors, switches of state.
#include <ATen/Context.h>

#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/numbers/numbers_in_tensors.h"
#include "frame_eval/record/numbers/sizes.h"
#include "frame_eval/record/numbers/symbolic_args.h"
#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/semantics/attribute_stores.h"
#include "frame_eval/record/semantics/tensor_attributes.h"
#include "frame_eval/record/trace/array_nodes.h"
#include "frame_eval/record/trace/attention_nodes.h"
#include "frame_eval/record/trace/checkpoint_nodes.h"
#include "frame_eval/record/trace/function_nodes.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"
#include "ir/autocast.h"

namespace frametap {
namespace {

// Marks everything that a binding type or module defines itself as dispatching; earlier rows stay. (The attributes
// that a type inherits from `object` exist for every object: object.__delattr__ is not an op.)
void AddAll(const char* module, const char* path, CallableRow row) {
  const Ref<> owner = OwnerOf(module, path);
  Ref<> names = owner ? Ref<>::Steal(PyObject_Dir(owner.get())) : Ref<>();
  if (!names) {
    PyErr_Clear();
    return;
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(names.get()); ++i) {
    PyObject* name = PyList_GET_ITEM(names.get(), i);
    Ref<> callable = Ref<>::Steal(PyObject_GetAttr(owner.get(), name));
    if (!callable) {
      PyErr_Clear();
      continue;
    }
    bool native = PyCFunction_Check(callable.get()) || Py_TYPE(callable.get()) == &PyMethodDescr_Type ||
                  Py_TYPE(callable.get()) == &PyWrapperDescr_Type;
    Ref<> objects = Ref<>::Steal(PyObject_GetAttr(reinterpret_cast<PyObject*>(&PyBaseObject_Type), name));
    if (!objects) PyErr_Clear();
    if (!native || callable.get() == objects.get() || FindCallable(callable.get()) != nullptr) continue;
    // Names live as long as the interned strings do: for ever.
    row.name = PyUnicode_AsUTF8(Interned(name).Release());
    AddRow(callable.get(), row);
  }
}

// x.size([dim]): sizes that wait for a decision, as x.shape.
void Size(Trace& trace, Call& call) {
  PyObject* self = call.args.empty() ? nullptr : call.args[0];
  if (self == nullptr || !IsTensor(self)) throw Break{Reason::unknown_operation, "size"};
  for (size_t i = 1; i < call.args.size(); ++i) Specialize(trace, call.args[i], call.shadows[i]);
  if (!SourceOf(trace, self).valid() && !trace.numbers.sizes_open()) return ReadTensor(trace, self, true, false);
  ReadRank(trace, self);
  const int64_t rank = TensorOf(self).dim();
  if (call.args.size() == 1) {
    call.note.op.expect.kind = ResultSpec::Kind::kItems;
    for (int64_t i = 0; i < rank; ++i) call.note.op.expect.items.push_back(SizeOf(trace, self, i));
    return;
  }
  if (call.args.size() == 2 && PyLong_CheckExact(call.args[1])) {
    int64_t dim = PyLong_AsLongLong(call.args[1]);
    if (dim < 0) dim += rank;
    if (dim >= 0 && dim < rank) return call.note.op.expect.SetShadow(SizeOf(trace, self, dim));
  }
  ReadTensor(trace, self, true, false);
}

// x.numel(), x.nelement(), torch.numel(x)
void Numel(Trace& trace, Call& call) {
  if (!trace.numbers.sizes_open() || call.args.size() != 1 || !IsTensor(call.args[0])) {
    return TorchCall(trace, call.note, &call, "numel");
  }
  call.note.op.expect.SetShadow(CountOfElements(trace, call.args[0]));
}

// x.item(): a number of the graph, until something decides on it.
void Item(Trace& trace, Call& call) {
  if (!trace.numbers.sizes_open() || call.args.size() != 1 || !IsTensor(call.args[0])) {
    throw Break{Reason::value_of_tensor, "item"};
  }
  // A value of the graph is a float, or an int of 64 bits with a sign.
  const at::Tensor& tensor = TensorOf(call.args[0]);
  if (tensor.is_complex() || tensor.scalar_type() == at::kUInt64) throw Break{Reason::value_of_tensor, "item"};
  TorchCall(trace, call.note, &call, "item");
  trace.aten.expect_number = true;
}

// t.__float__(), t.__int__(): as x.item(), made a float or an int.
template <bool to_float>
void NumberOfTensor(Trace& trace, Call& call) {
  if (call.args.size() != 1 || !ConvertTensor(trace, call, to_float)) throw Refusal(call.callable);
}

// Facts that the basic guard of every tensor holds.
void BasicFact(Trace& trace, Call& call) {
  for (size_t i = 0; i < call.args.size(); ++i) {
    if (IsTensor(call.args[i])) {
      if (!IsExactTensor(call.args[i])) throw Break{Reason::tensor_subclass, ""};
      ReadRank(trace, call.args[i]);  // a tensor without dimensions counts less for the type of a result
    } else {
      SpecializeDeep(trace, call.args[i], call.shadows[i], true);
    }
  }
}

void Rank(Trace& trace, Call& call) {
  if (call.args.size() == 1 && IsTensor(call.args[0])) ReadRank(trace, call.args[0]);
}

// torch.backends.cudnn.set_flags(…) gives the flags that were and sets others. They mean nothing to ops on a CPU, but
// must be at the end what they were (DescribeState).
void SetFlags(Trace& trace, Call& call) {
  SpecializeArguments(trace, call, 0, false);
  call.note.op.opaque_operation = true;
}

bool IsRow(PyObject* object) { return PyList_Check(object) || PyTuple_Check(object); }

// torch._C._set_sdp_use_math(on) and its like. Later ops of attention keep them (attention_nodes.h), and the exit sets them.
void SwitchAttention(Trace& trace, Call& call) {
  SpecializeArguments(trace, call, 0, false);
  trace.aten.attention_at_entry = AttentionSwitches::FromBackends(trace.entry.backends);
  call.note.op.opaque_operation = true;
}

PyObject* TorchFunctions() {
  static PyObject* const functions = Must(PyImport_ImportModule("torch._C")).Release();
  return functions;
}

// Guards what a function of torch._C without arguments answers about the process. The answer at the entry counts: a trace that
// changes it asks before.
void ReadProcess(Trace& trace, const char* name) {
  const Ref<> function = Must(PyObject_GetAttrString(TorchFunctions(), name));
  trace.guards.Answer(function.get(), name, trace.frames.Here());
}

template <const char* name>
void AskProcess(Trace& trace, Call& call) {
  if (!call.args.empty()) throw Refusal(call.callable);
  ReadProcess(trace, name);
}

constexpr char kOrder[] = "_get_sdp_priority_order", kSetOrder[] = "_set_sdp_priority_order",
               kOverrideable[] = "_get_overrideable_sdp_enabled", kSetOverrideable[] = "_set_sdp_use_overrideable";

bool IsRowOfDigits(PyObject* object) {
  bool is_it = PyList_CheckExact(object) || PyTuple_CheckExact(object);
  for (Py_ssize_t i = 0; is_it && i < PySequence_Fast_GET_SIZE(object); ++i) {
    PyObject* const item = PySequence_Fast_GET_ITEM(object, i);
    is_it = PyLong_CheckExact(item) && Py_SIZE(item) >= 0 && Py_SIZE(item) <= 1 && PyLong_AsLong(item) < 10;
  }
  return is_it;
}

// A switch of the process that ops on a CPU do not read. `getter` says how it is set.
template <const char* name, const char* getter>
void SwitchProcess(Trace& trace, Call& call) {
  if (call.args.size() != 1 || !call.names.empty()) throw Refusal(call.callable);
  PyObject* const value = call.args[0];
  if (name == kSetOrder ? !IsRowOfDigits(value) : !PyBool_Check(value)) throw Refusal(call.callable);  // it may raise
  SpecializeArguments(trace, call, 0, false);
  ReadProcess(trace, getter);
  SourceOrPin(trace, TorchFunctions());
  const Ref<> kept =
      PyBool_Check(value) ? Ref<>::New(value) : Must(PySequence_Tuple(value));  // a list may change later
  if (!IsScalar(kept.get())) TrackCreated(trace, kept.get());
  PushEffect(trace, Effect::Kind::kCall, TorchFunctions(), name, {kept.get()}, {Shadow()});
  trace.effects.pending.back().nodes_before = PendingEffect::kSeenByNobody;
}

// torch.get_default_device(). Nothing is recorded under a mode that sets one, so that a variable of the thread says it.
void DefaultDevice(Trace& trace, Call& call) {
  static PyObject* const reader = [] {
    const Ref<> torch = Must(PyImport_ImportModule("torch"));
    const Ref<> local = Must(PyObject_GetAttrString(torch.get(), "_GLOBAL_DEVICE_CONTEXT"));
    const Ref<> builtins = Must(PyImport_ImportModule("builtins"));
    const Ref<> getter = Must(PyObject_GetAttrString(builtins.get(), "getattr"));
    const Ref<> thread = Must(PyImport_ImportModule("_thread"));
    const Ref<> plain_type = Must(PyObject_GetAttrString(thread.get(), "_local"));
    const bool is_plain =
        reinterpret_cast<PyObject*>(Py_TYPE(local.get())) == plain_type.get();  // its reads run no code
    PyObject* const partial = reinterpret_cast<PyObject*>(Objects().partial);
    return is_plain ? Must(PyObject_CallFunction(partial, "OOsO", getter.get(), local.get(), "device_context", Py_None))
                          .Release()
                    : nullptr;
  }();
  if (reader == nullptr || !call.args.empty() || Must(PyObject_CallNoArgs(reader)).get() != Py_None) {
    throw Refusal(call.callable);
  }
  trace.guards.Answer(reader, "torch.get_default_device", trace.frames.Here());
  call.note.op.opaque_operation = true;
}

// Whether a text names a device whose autocast dtype each segment guards (WorldState::BackendsNow). Programs switch
// autocast of CUDA off on CPUs, too.
bool HasGuardedDtype(PyObject* device) {
  if (PyUnicode_CompareWithASCIIString(device, "cpu") == 0) return true;
  const c10::ScalarType dtype = at::autocast::get_autocast_dtype(at::kCUDA);
  return PyUnicode_CompareWithASCIIString(device, "cuda") == 0 &&
         (dtype == at::kHalf || dtype == at::kBFloat16 || dtype == at::kFloat || dtype == at::kDouble);
}

void AutocastDtype(Trace& trace, Call& call) {
  SpecializeArguments(trace, call, 0, false);
  PyObject* const device = call.args.size() == 1 ? call.args[0] : nullptr;
  if (device == nullptr || !PyUnicode_Check(device) || !HasGuardedDtype(device)) {
    throw Break{Reason::unknown_callable, "torch.get_autocast_dtype of another device"};
  }
}

// torch.set_autocast_enabled(device, on), torch.set_autocast_dtype(device, dtype). Autocast of CUDA means nothing to
// ops on a CPU, and the exit of a segment does not switch it, so it must stay as it is.
void SwitchAutocast(Trace& trace, Call& call) {
  for (size_t i = 0; i < call.args.size(); ++i) Specialize(trace, call.args[i], call.shadows[i]);
  PyObject *device = nullptr, *value = nullptr;
  for (PyObject* arg : call.args) (PyUnicode_Check(arg) ? device : value) = arg;
  if (device != nullptr && PyUnicode_CompareWithASCIIString(device, "cpu") == 0) return;
  const bool is_enabled = at::autocast::is_autocast_enabled(at::kCUDA);
  const bool stays =
      device != nullptr && HasGuardedDtype(device) &&
      (value == (is_enabled ? Py_True : Py_False) || value == DtypeObject(at::autocast::get_autocast_dtype(at::kCUDA)));
  if (!stays) throw Break{Reason::unknown_callable, "a switch of autocast of another device"};
}

// For argument `data` and the later ones.
void MakeTensorOf(Trace& trace, Call& call, size_t data) {
  for (size_t i = data; i < call.args.size(); ++i) {
    PyObject* arg = call.args[i];
    if (IsTensor(arg)) throw Break{Reason::value_of_tensor, "torch.tensor of a tensor"};
    if (!IsScalar(arg) && !IsRow(arg)) {
      throw Break{IsOfNumPy(arg) ? Reason::numpy_code : Reason::unknown_callable, "torch.tensor of foreign data"};
    }
  }
  DataCall(trace, call, data);
  trace.aten.expect_constant = true;
}

// torch.tensor(data): one op that takes the finished constant, or what makes it of the numbers in `data`.
void MakeTensor(Trace& trace, Call& call) {
  TakesArrays(trace, call) ? CallArrays(trace, call, ArrayAccess::kReads) : MakeTensorOf(trace, call, 0);
}

// torch.as_tensor(data): the same, but a tensor is converted as by x.to(device, dtype), and arrays share their memory.
void AsTensor(Trace& trace, Call& call) {
  if (call.positional() == 1 && IsExactTensor(call.args[0])) return TorchCall(trace, call.note, &call, "as_tensor");
  if (TakesArrays(trace, call)) return CallArrays(trace, call, ArrayAccess::kShares);
  if (call.args.empty() || (!IsNumber(call.args[0]) && !IsRow(call.args[0]))) throw Refusal(call.callable);
  MakeTensorOf(trace, call, 0);
}

// x.new_tensor(data): of x it reads dtype and device.
void NewTensor(Trace& trace, Call& call) {
  if (call.args.empty() || !IsExactTensor(call.args[0])) throw Break{Reason::tensor_subclass, ""};
  ReadRank(trace, call.args[0]);  // a tensor without dimensions counts less for the type of a result
  MakeTensorOf(trace, call, 1);
}

// torch.Tensor._make_subclass(Parameter, data, requires_grad): what nn.Parameter(data, requires_grad) does.
void MakeParameter(Trace& trace, Call& call) {
  const bool is_plain = call.args.size() == 3 && call.names.empty() &&
                        call.args[0] == reinterpret_cast<PyObject*>(Objects().parameter) && IsTensor(call.args[1]) &&
                        IsExactTensor(call.args[1]) && PyBool_Check(call.args[2]);
  if (!is_plain || !MakesLeaves(trace)) throw Refusal(call.callable);
  Specialize(trace, call.args[2], call.shadows[2]);
  TorchCall(trace, call.note, &call, "_make_subclass");
  call.note.op.marks.makes_parameter = true;
}

// torch.autograd.Variable(x, requires_grad=True): the constructor detaches x, which is an op, and sets a flag.
void MakeVariable(Trace& trace, Call& call) {
  static PyObject* const kFlag = InternedName("requires_grad");
  bool is_plain = (call.args.size() == 1 || call.args.size() == 2) && call.names.size() <= 1 && call.positional() > 0 &&
                  IsExactTensor(call.args[0]);
  if (is_plain && call.args.size() == 2) is_plain = PyBool_Check(call.args[1]);
  if (is_plain && !call.names.empty()) is_plain = PyUnicode_Compare(call.names[0], kFlag) == 0;
  if (!is_plain || !MakesLeaves(trace)) throw Refusal(call.callable);
  if (call.args.size() == 2) Specialize(trace, call.args[1], call.shadows[1]);
  TorchCall(trace, call.note, &call, "Variable");
  call.note.op.marks.makes_parameter = true;
}

// torch.sparse_coo_tensor and its like: whether the tensor is checked is a switch that the binding sets for the call.
void MakeSparse(Trace& trace, Call& call) {
  for (size_t i = call.positional(); i < call.args.size(); ++i) {
    if (PyUnicode_CompareWithASCIIString(call.names[i - call.positional()], "check_invariants") != 0) continue;
    const bool as_switched =
        call.args[i] == Py_None ||
        (call.args[i] == Py_False && at::globalContext().checkSparseTensorInvariants() == std::optional(false));
    if (!as_switched) throw Refusal(call.callable);
  }
  TorchCall(trace, call.note, &call, "");
}

// torch._C._functorch.unwrap_if_dead(x): x itself, as no transform of torch.func is or was at work.
void UnwrapIfDead(Trace& trace, Call& call) {
  if (call.args.size() != 1 || !IsExactTensor(call.args[0])) throw Refusal(call.callable);
  if (TensorOf(call.args[0]).key_set().has(c10::DispatchKey::FuncTorchBatched) ||
      TensorOf(call.args[0]).key_set().has(c10::DispatchKey::FuncTorchGradWrapper)) {
    throw Refusal(call.callable);
  }
  ReadRank(trace, call.args[0]);
}

// x.requires_grad_(): what is so already stays so; else the op for it, of a leaf that the trace has made.
void RequiresGrad(Trace& trace, Call& call) {
  PyObject* const self = call.args.empty() ? nullptr : call.args[0];
  const bool is_plain = self != nullptr && IsExactTensor(self) && call.args.size() <= 2 && call.names.empty() &&
                        (call.args.size() == 1 || PyBool_Check(call.args[1]));
  if (!is_plain) throw Refusal(call.callable);
  if (call.args.size() == 2) Specialize(trace, call.args[1], call.shadows[1]);
  PyObject* const wanted = call.args.size() == 2 ? call.args[1] : Py_True;
  if (trace.repeated_calls.get() != nullptr) trace.repeated_calls->NoteRequiresGrad();
  const bool has_it = TensorOf(self).requires_grad();
  if (has_it == (wanted == Py_True)) return ReadRank(trace, self);
  static PyObject* const name = InternedName("requires_grad");
  StoreAttribute(trace, call.note, self, name, wanted, Shadow());
  call.note.op.expect.kind = ResultSpec::Kind::kAny;  // self
}

// x.detach_(), of a tensor that the trace has made.
void DetachInPlace(Trace& trace, Call& call) {
  if (call.args.size() != 1 || !IsExactTensor(call.args[0]) || SourceOf(trace, call.args[0]).valid()) {
    throw Refusal(call.callable);
  }
  TorchCall(trace, call.note, &call, "detach_");
}

// torch._C._accelerator_getAccelerator(): a backend can be registered while the process runs.
void Accelerator(Trace& trace, Call& call) {
  if (!call.args.empty()) throw Refusal(call.callable);
  trace.guards.Answer(call.callable, "torch._C._accelerator_getAccelerator", trace.frames.Here());
}

// set_eval_frame(None) of TorchDynamo, where it is off already. Functions under torch.compiler.disable call it. Optimizers do, too,
// in a process that has compiled something.
void TurnDynamoOff(Trace& trace, Call& call) {
  static PyObject* const asks = [] {
    const Ref<> module = Must(PyImport_ImportModule("torch._C._dynamo.eval_frame"));
    return Must(PyObject_GetAttrString(module.get(), "get_eval_frame_callback")).Release();
  }();
  const bool turns_off = call.args.size() == 1 && call.names.empty() && call.args[0] == Py_None;
  if (!turns_off || Must(PyObject_CallNoArgs(asks)).get() != Py_None) throw Refusal(call.callable);
  trace.guards.Answer(asks, "get_eval_frame_callback", trace.frames.Here());
}

// torch._C._group_tensors_by_device_and_dtype(lists, with_indices): it reads the dtypes and devices of the tensors. The lists
// and tuples in its result are new, and the tensors in them are the given ones.
void GroupTensors(Trace& trace, Call& call) {
  SpecializeArguments(trace, call, 0, true);
  const auto read_ranks = [&](const auto& self, PyObject* object) -> void {
    if (IsTensor(object)) return ReadRank(trace, object);  // the dtype of a result may depend on ranks
    if (!IsRow(object)) return;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) self(self, PySequence_Fast_GET_ITEM(object, i));
  };
  for (PyObject* arg : call.args) {
    if (!IsRow(arg) && !PyBool_Check(arg)) throw Refusal(call.callable);
    read_ranks(read_ranks, arg);
  }
}

void ToList(Trace& trace, Call& call) { ListCall(trace, call); }

// torch._C._InferenceMode(mode) and its __exit__ exchange the thread's dispatch keys for the keys of the mode, and back for
// the keys from before. The key of the recording must not be among these: the block may outlive it.
void ExchangeKeys(Trace& trace, Call& call) {
  if (trace.repeated_calls.get() != nullptr) trace.repeated_calls->Invalidate();
  call.note.op.marks.hides_ops = true;
  aten::SeeEveryOp(false);
}

void MakeInferenceMode(Trace& trace, Call& call) {
  if (trace.ends_at_blocks) throw Refusal(call.callable);
  SpecializeArguments(trace, call, 0, false);
  ExchangeKeys(trace, call);
}

void SwitchInferenceMode(Trace& trace, Call& call) {
  if (call.args.empty() || Py_TYPE(call.args[0]) != Objects().inference_mode) throw Refusal(call.callable);
  const ObjectRecord* known = trace.objects.Find(call.args[0]);
  if (known == nullptr || known->state == ObjectRecord::State::kSource) throw Refusal(call.callable);
  SpecializeArguments(trace, call, 1, false);
  ExchangeKeys(trace, call);
}

// torch._C.DisableTorchFunctionSubclass(): a block without torch functions of subclasses. No graph has such subclasses. The
// block must end before the segment does, as a context variable must be reset (ThreadChanges).
void MakeSubclassBlock(Trace& trace, Call& call) {
  // A backend that compiles has `ends_at_blocks` set for inference mode.
  const bool has_ended_in_one = trace.ends_at_blocks && trace.store.backend().calls_python();
  if (!call.args.empty() || has_ended_in_one) throw Refusal(call.callable);
}

void EnterSubclassBlock(Trace& trace, Call& call) {
  const ObjectRecord* const known = call.args.size() == 1 ? trace.objects.Find(call.args[0]) : nullptr;
  if (known == nullptr || known->state == ObjectRecord::State::kSource) throw Refusal(call.callable);
  if (trace.thread.IsContextSet(call.args[0])) throw Refusal(call.callable);
  trace.thread.SetContext(call.args[0], 0);
}

void LeaveSubclassBlock(Trace& trace, Call& call) {
  if (call.args.empty() || !trace.thread.ResetContext(call.args[0], 0)) throw Refusal(call.callable);
  SpecializeArguments(trace, call, 1, false);
}

}  // namespace

void LoadTorch() {
  RegisterFunctionOp();
  RegisterCheckpointOp();
  AddSpecial("torch.utils.checkpoint", "", "checkpoint", CallCheckpoint);
  AddRows("torch._C", "TensorBase", Conduct::kTensorValue,
          {"__bool__", "__index__", "__complex__", "__contains__", "nonzero_static"});
  AddSpecial("torch._C", "", "_accelerator_getAccelerator", Accelerator);
  AddSpecial("torch._C", "", "_group_tensors_by_device_and_dtype", GroupTensors);
  AddSpecial("torch._C._dynamo.eval_frame", "", "set_eval_frame", TurnDynamoOff);
  AddSpecial("torch._C", "TensorBase", "__float__", NumberOfTensor<true>);
  AddSpecial("torch._C", "TensorBase", "__int__", NumberOfTensor<false>);
  AddRows("torch._C", "TensorBase", Conduct::kRefused,
          {"backward",
           "register_hook",
           "_register_hook",
           "retain_grad",
           "numpy",
           "data_ptr",
           "storage",
           "untyped_storage",
           "_typed_storage",
           "set_",
           "resize_",
           "resize_as_",
           "share_memory_",
           "apply_",
           "map_",
           "map2_",
           "_make_wrapper_subclass",
           "as_subclass",
           "_as_subclass",
           "_fix_weakref",
           "__setstate__",
           "__reduce_ex__",
           "_set_data",
           "record_stream",
           "pin_memory",
           "is_shared",
           "_is_view",
           "data",
           "module_load",
           "__dlpack__",
           "_view_func",
           "_view_func_unsafe",
           "_rev_view_func_unsafe"});
  // Facts that no guard compares, of the storage, of sparse and quantized data, of the object.
  AddRows("torch._C", "TensorBase", Conduct::kRefused,
          {"storage_offset", "is_set_to", "const_data_ptr", "is_pinned", "_use_count", "_nnz", "_dimI", "_dimV",
           "sparse_dim", "dense_dim", "is_coalesced", "q_scale", "q_zero_point", "q_per_channel_axis", "qscheme",
           "__dir__", "__sizeof__", "__getstate__"});
  AddRows("torch", "", Conduct::kRefused, {"q_scale", "q_zero_point", "q_per_channel_axis"});
  AddSpecial("torch._C", "TensorBase", "requires_grad_", RequiresGrad);
  AddSpecial("torch._C", "TensorBase", "_make_subclass", MakeParameter);
  AddSpecial("torch.autograd", "", "Variable", MakeVariable);
  AddSpecial("torch._C", "TensorBase", "detach_", DetachInPlace);
  AddSpecial("torch._C", "_FunctionBase", "apply", CallFunction);
  AddSpecial("torch._C._functorch", "", "unwrap_if_dead", UnwrapIfDead);
  AddSpecial("torch._C", "", "_InferenceMode", MakeInferenceMode);
  for (const char* name : {"__enter__", "__exit__"})
    AddSpecial("torch._C", "_InferenceMode", name, SwitchInferenceMode);
  AddSpecial("torch._C", "", "DisableTorchFunctionSubclass", MakeSubclassBlock);
  AddSpecial("torch._C", "DisableTorchFunctionSubclass", "__enter__", EnterSubclassBlock);
  AddSpecial("torch._C", "DisableTorchFunctionSubclass", "__exit__", LeaveSubclassBlock);
  AddSpecial("torch._C", "TensorBase", "size", Size);
  AddSpecial("torch._C", "TensorBase", "item", Item);
  AddSpecial("torch._C", "TensorBase", "tolist", ToList);
  AddSpecial("torch._C", "TensorBase", "new_tensor", NewTensor);
  for (const char* name : {"numel", "nelement"}) AddSpecial("torch._C", "TensorBase", name, Numel);
  AddSpecial("torch", "", "numel", Numel);
  for (const char* name : {"dim", "ndimension"}) AddSpecial("torch._C", "TensorBase", name, Rank);
  for (const char* name :
       {"is_floating_point", "is_complex", "is_signed", "element_size", "get_device", "is_inference"}) {
    AddSpecial("torch._C", "TensorBase", name, BasicFact);
  }
  for (const char* name :
       {"is_floating_point", "is_complex", "is_signed", "is_inference", "result_type", "promote_types", "can_cast"}) {
    AddSpecial("torch", "", name, BasicFact);
  }
  for (const char* name : {"_has_torch_function", "_has_torch_function_unary", "_has_torch_function_variadic",
                           "_get_tracing_state", "_is_tracing", "_log_api_usage_once", "_jit_is_script_object"}) {
    AddSpecial("torch._C", "", name, BasicFact);
  }
  AddSpecial("torch", "", "tensor", MakeTensor);
  AddSpecial("torch", "", "as_tensor", AsTensor);
  for (const char* name : {"sparse_coo_tensor", "sparse_csr_tensor", "sparse_csc_tensor", "sparse_bsr_tensor",
                           "sparse_bsc_tensor", "sparse_compressed_tensor"}) {
    AddSpecial("torch", "", name, MakeSparse);
  }
  AddSpecial("torch.backends.cudnn", "", "set_flags", SetFlags);
  RegisterAttentionOp();
  for (const char* name :
       {"_set_sdp_use_flash", "_set_sdp_use_math", "_set_sdp_use_mem_efficient", "_set_sdp_use_cudnn"}) {
    AddSpecial("torch._C", "", name, SwitchAttention);
  }
  AddSpecial("torch._C", "", kOrder, AskProcess<kOrder>);
  AddSpecial("torch._C", "", kSetOrder, SwitchProcess<kSetOrder, kOrder>);
  AddSpecial("torch._C", "", kOverrideable, AskProcess<kOverrideable>);
  AddSpecial("torch._C", "", kSetOverrideable, SwitchProcess<kSetOverrideable, kOverrideable>);
  AddSpecial("torch", "", "get_autocast_dtype", AutocastDtype);
  AddSpecial("torch", "", "get_default_device", DefaultDevice);
  for (const char* name : {"set_autocast_enabled", "set_autocast_dtype"}) {
    AddSpecial("torch", "", name, SwitchAutocast);
    AddSpecial("torch._C", "", name, SwitchAutocast);
  }
  AddRows("torch", "", Conduct::kRefused,
          {"manual_seed", "from_numpy", "frombuffer", "asarray", "from_file", "_C._set_grad_enabled"});
  AddRows("torch._C", "", Conduct::kState,
          {"_set_grad_enabled", "set_grad_enabled", "set_autocast_cache_enabled", "autocast_increment_nesting",
           "autocast_decrement_nesting", "clear_autocast_cache"});
  AddRows("torch", "", Conduct::kState,
          {"set_autocast_cache_enabled", "autocast_increment_nesting", "autocast_decrement_nesting",
           "clear_autocast_cache"});
  AddRows("torch", "", Conduct::kPureObjects,
          {"is_grad_enabled", "is_inference_mode_enabled", "is_autocast_enabled", "is_autocast_cache_enabled",
           "get_default_dtype", "get_autocast_cpu_dtype", "is_autocast_cpu_enabled", "is_deterministic",
           "are_deterministic_algorithms_enabled", "finfo", "iinfo", "device", "is_anomaly_enabled",
           "_is_functional_tensor"});
  AddRows("torch._C", "", Conduct::kPureObjects,
          {"_get_default_device",
           "is_grad_enabled",
           "_is_torch_function_enabled",
           "_is_torch_function_all_disabled",
           "_len_torch_function_stack",
           "_len_torch_dispatch_stack",
           "is_autocast_available",
           "_get_cudnn_enabled",
           "_get_mkldnn_enabled",
           "_is_autocast_available",
           "_get_deterministic_algorithms",
           "_get_flash_sdp_enabled",
           "_get_math_sdp_enabled",
           "_get_mem_efficient_sdp_enabled",
           "_get_nnpack_enabled",
           "_is_xnnpack_enabled",
           "_get_cudnn_sdp_enabled",
           "_get_default_dtype",
           "_cuda_isDriverSufficient",
           "_is_fwd_grad_enabled",
           "_are_functorch_transforms_active",
           "_is_torch_function_mode_enabled",
           "_get_privateuse1_backend_name"});
  AddAll("torch._C", "_VariableFunctions", {"", Conduct::kTorch});
  AddAll("torch._C._nn", "", {"", Conduct::kTorch});
  AddAll("torch._C._linalg", "", {"", Conduct::kTorch});
  AddAll("torch._C._special", "", {"", Conduct::kTorch});
  AddAll("torch._C._fft", "", {"", Conduct::kTorch});
  AddAll("torch._C._sparse", "", {"", Conduct::kTorch});
  AddAll("torch._C", "TensorBase", {"", Conduct::kTorch});
}

}  // namespace frametap
