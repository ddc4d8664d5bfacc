#include "frame_eval/record/semantics/tensor_attributes.h"

#include <c10/core/InferenceMode.h>
#include <structmember.h>

#include <cstring>

#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/numbers/sizes.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/semantics/attribute_lookup.h"
#include "frame_eval/record/trace/array_nodes.h"
#include "frame_eval/state/aten_pause.h"
#include "guards/cpython/deque_view.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

// The value that the instruction gives is asked only whether it is None or another constant.
bool ComparesIdentityNext(const FrameState& f) {
  const InstructionInfo next = InstructionAt(f.code, InstructionAt(f.code, f.offset).next);
  if (next.role == InstructionRole::kJumpsOnNone) return true;
  return next.role == InstructionRole::kLoadsConstant &&
         InstructionAt(f.code, next.next).role == InstructionRole::kComparesIdentity;
}

// Returns whether the guards that each tensor has imply that it is a leaf.
bool IsLeafForGood(PyObject* tensor) {
  const at::Tensor& t = TensorOf(tensor);
  return t.is_leaf() && (!t.requires_grad() || PyObject_TypeCheck(tensor, Objects().parameter));
}

}  // namespace

static bool IsUnresolved(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet unresolved(
      {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});
  return tensor.key_set().has_any(unresolved);
}

// Where autograd's kernel does not run, aten::data first makes a copy of a conjugate. The getter makes none.
static bool OpCopiesData(const at::Tensor& tensor) {
  return IsUnresolved(tensor) && (tensor.is_inference() || c10::InferenceMode::is_enabled());
}

void TensorAttribute(Trace& trace, FrameNote& note, PyObject* owner, PyObject* name) {
  if (!IsExactTensor(owner)) throw Break{Reason::tensor_subclass, Py_TYPE(owner)->tp_name};
  const at::Tensor& tensor = TensorOf(owner);
  KnownTensor* known = trace.aten.tensors.Find(tensor);
  if (known == nullptr) throw Break{Reason::tensor_from_nowhere, Text(name)};
  const char* text = Text(name);
  note.op.expect.kind = ResultSpec::Kind::kAny;
  if (std::strcmp(text, "shape") == 0) {
    if (!known->is_as_at_entry() && !trace.numbers.sizes_open()) return ReadTensor(trace, owner, true, false);
    ReadRank(trace, owner);  // how many there are
    note.op.expect.kind = ResultSpec::Kind::kItems;
    for (int64_t i = 0; i < tensor.dim(); ++i) note.op.expect.items.push_back(SizeOf(trace, owner, i));
    return;
  }
  if (OneOf(text, {"dtype",     "device",  "layout",    "requires_grad", "is_cuda",      "is_cpu",    "is_xpu",
                   "is_mps",    "is_meta", "is_sparse", "is_sparse_csr", "is_quantized", "is_nested", "is_mkldnn",
                   "is_vulkan", "is_mtia", "is_maia",   "is_ipu",        "is_xla",       "itemsize"})) {
    // Every input's guard holds these facts. That of a result may depend on which operand has no dimensions.
    if (trace.repeated_calls && std::strcmp(text, "requires_grad") == 0) trace.repeated_calls->NoteRequiresGrad();
    return ReadRank(trace, owner);
  }
  if (OneOf(text, {"ndim"})) return ReadRank(trace, owner);
  // For a tensor that requires no grad these follow; otherwise they depend on earlier ops.
  if (OneOf(text, {"is_leaf", "grad_fn"}) && !tensor.requires_grad()) {
    if (trace.repeated_calls) trace.repeated_calls->NoteRequiresGrad();
    return ReadRank(trace, owner);
  }
  // Both follow from the ops that made the tensor in the trace. A leaf has no grad_fn.
  const bool follows = std::strcmp(text, "is_leaf") == 0 || (std::strcmp(text, "grad_fn") == 0 && tensor.is_leaf());
  if (follows && known->value.valid() && !known->source.valid()) return ReadRank(trace, owner);
  // Whether it is a leaf is a guard, as long as the trace has not written to it.
  const bool is_as_it_came =
      known->source.valid() && (!known->value.valid() || !trace.aten.graph().value(known->value).def.valid());
  const auto is_guarded_leaf = [&] {
    if (!is_as_it_came) return false;
    if (trace.repeated_calls) trace.repeated_calls->Invalidate();
    trace.guards.Add(GuardKind::kLeaf, known->source, trace.frames.Here());
    return true;
  };
  if (std::strcmp(text, "is_leaf") == 0 && is_guarded_leaf()) return;
  if (std::strcmp(text, "grad_fn") == 0 && ComparesIdentityNext(trace.frames.innermost()) &&
      (!known->source.valid() || is_guarded_leaf())) {
    note.op.expect.kind = ResultSpec::Kind::kNothing;
    return;
  }
  // For sparse data it counts the stored elements.
  if (OneOf(text, {"nbytes"}) && tensor.layout() == c10::kStrided) return ReadTensor(trace, owner, true, false);
  if (OneOf(text, {"T", "mT", "H", "mH", "real", "imag"})) {
    note.op.expect.kind = ResultSpec::Kind::kTorch;
    return;
  }
  // Reading it of a tensor that is not a leaf warns.
  if (std::strcmp(text, "grad") == 0 && tensor.is_leaf() &&
      (IsLeafForGood(owner) || !known->source.valid() || is_guarded_leaf())) {
    if (known->grad_set) return;
    const at::Tensor& grad = tensor.unsafeGetTensorImpl()->grad();
    if (!known->source.valid()) {
      if (grad.defined()) throw Break{Reason::tensor_attribute, text};
      return;  // None, because a tensor of the trace gets one by backward only
    }
    known->grad_read = true;
    const Ref<> value = grad.defined() ? Must(WrapTensor(grad)) : Ref<>::New(Py_None);
    note.op.expect.SetSource(trace.guards.Child(known->source, Accessor::kGrad, 0, nullptr, value.get()));
    if (trace.repeated_calls) trace.repeated_calls->Invalidate();
    return;
  }
  if (std::strcmp(text, "data") == 0) {
    // The getter dispatches nothing; there is an op that does the same.
    if (known->data_set) throw Break{Reason::tensor_attribute, text};
    const std::optional<ValueId> value = trace.aten.tensors.ValueOf(tensor);
    if (!value) throw Break{Reason::tensor_from_nowhere, text};
    if (OpCopiesData(tensor)) throw Break{Reason::tensor_attribute, text};
    note.op.expect.kind = ResultSpec::Kind::kData;
    note.op.expect.shadow = {Shadow::Kind::kValue, value->raw()};
    if (trace.repeated_calls) trace.repeated_calls->Invalidate();  // ops of another layer do not show it
    return;
  }
  PyObject* dict = InstanceDict(owner);
  PyObject* descriptor = _PyType_Lookup(Py_TYPE(owner), name);
  if (PyObject* value = dict ? ItemQuietly(dict, name) : nullptr; value != nullptr) {
    // On a tensor that the trace has made, the trace has put it there.
    if (!known->source.valid() && IsScalar(value)) return;
    // On one that existed before, the trace has put nothing there (StoreTensorAttribute).
    if (known->source.valid() && descriptor == nullptr && PyUnicode_CheckExact(name)) {
      RefuseMutatedDict(trace, dict);
      RefuseSharedDict(trace, owner, dict);
      if (trace.repeated_calls) trace.repeated_calls->Invalidate();
      note.op.expect.SetSource(trace.guards.Child(known->source, Accessor::kAttr, 0, name, value));
      return;
    }
    throw Break{Reason::tensor_attribute, text};
  }
  if (descriptor == nullptr) {
    // hasattr(x, "…"): neither the class nor the tensor has it.
    trace.guards.Class(Py_TYPE(owner), trace.frames.Here());
    if (known->source.valid()) trace.guards.NoInstanceAttr(known->source, name, trace.frames.Here());
    return;
  }
  PyTypeObject* kind = Py_TYPE(descriptor);
  if (PyFunction_Check(descriptor) || kind == &PyMethodDescr_Type || kind == &PyWrapperDescr_Type ||
      kind == &PyClassMethod_Type || kind == &PyStaticMethod_Type || PyCFunction_Check(descriptor) ||
      std::strcmp(text, "__class__") == 0) {
    return;
  }
  throw Break{Reason::tensor_attribute, text};
}

static void RecordRequiresGrad(AtenRecorder& aten, const at::Tensor& tensor) {
  static const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::requires_grad_", "");
  torch::jit::Stack stack{tensor, true};
  // Without the keys that only hand the op on.
  aten.Record(op, tensor.key_set() & c10::autograd_dispatch_keyset, &stack);
}

// Compilers (AOTAutograd) decide by the inputs alone what requires grad.
bool MakesLeaves(const Trace& trace) { return !trace.store.backend().assumptions().static_sizes; }

// nn.Parameter(data): the binding detaches the data, which is an op, and sets a flag. The object cannot be made again: it
// must not leave the segment.
Shadow ParameterResult(Trace& trace, PyObject* parameter) {
  if (trace.aten.pending) return Shadow();
  const at::Tensor& tensor = TensorOf(parameter);
  const KnownTensor* const known = trace.aten.tensors.Find(tensor);
  if (known == nullptr || !known->value.valid()) throw Break{Reason::tensor_from_nowhere, "nn.Parameter"};
  if (tensor.requires_grad()) RecordRequiresGrad(trace.aten, tensor);
  return Shadow();
}

// Returns whether the trace has made the tensor.
static bool IsMade(Trace& trace, PyObject* tensor) {
  const KnownTensor* const known = IsExactTensor(tensor) ? trace.aten.tensors.Find(TensorOf(tensor)) : nullptr;
  return known != nullptr && known->value.valid() && !known->source.valid();
}

// Returns whether the setter of `grad` accepts this tensor for each run: the sizes that it compares are fixed.
static bool FitsAsGrad(Trace& trace, PyObject* owner, PyObject* value) {
  if (!IsExactTensor(value) || value == owner) return false;
  const at::Tensor &tensor = TensorOf(owner), &grad = TensorOf(value);
  const KnownTensor* const known = trace.aten.tensors.Find(grad);
  if (known == nullptr || tensor.layout() != c10::kStrided || grad.layout() != c10::kStrided) return false;
  if (grad.dtype() != tensor.dtype() || grad.device() != tensor.device()) return false;
  ReadTensor(trace, owner, true, false);
  ReadTensor(trace, value, true, false);
  return grad.sizes() == tensor.sizes();
}

// x.grad = None, x.grad = y: of a leaf that existed before, which may be read without a warning (TensorAttribute). A graph that
// began with dropping gradients would hold their memory for as long as it runs: it begins after them.
static void StoreGrad(Trace& trace, PyObject* owner, PyObject* value) {
  const at::Tensor& tensor = TensorOf(owner);
  KnownTensor* const known = trace.aten.tensors.Find(tensor);
  const bool is_followed = IsExactTensor(owner) && known != nullptr && known->source.valid() && IsLeafForGood(owner) &&
                           (value == Py_None || FitsAsGrad(trace, owner, value));
  const bool drops_first =
      value == Py_None && trace.node_count() == 0 && tensor.unsafeGetTensorImpl()->grad().defined();
  if (!is_followed || drops_first) throw Break{Reason::tensor_attribute, "grad"};
  if (trace.repeated_calls) trace.repeated_calls->Invalidate();
  AddEffect(trace, Effect::Kind::kSetAttr, owner, "grad", {value}, {Shadow()});
  trace.aten.tensors.Find(tensor)->grad_set = true;
}

static bool IsPlainData(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && tensor.has_storage() && !tensor.is_inference() && !IsUnresolved(tensor);
}

// Returns whether x.data = y gives `owner` elements alone: for guards it stays what it is.
static bool FitsAsData(Trace& trace, PyObject* owner, PyObject* value) {
  if (!IsExactTensor(value) || value == owner) return false;
  const at::Tensor &tensor = TensorOf(owner), &data = TensorOf(value);
  if (!trace.aten.tensors.ValueOf(data)) return false;
  if (!IsPlainData(tensor) || !IsPlainData(data)) return false;
  if (data.dtype() != tensor.dtype() || data.device() != tensor.device()) return false;
  if (data.sizes() != tensor.sizes() || data.strides() != tensor.strides()) return false;
  ReadTensor(trace, owner, true, true);
  ReadTensor(trace, value, true, true);
  return true;
}

// x.data = y: of a leaf that existed before, and that the trace uses no more. Memory is exchanged after the graph has run: ops
// before it have used the old memory. AOTAutograd saves copies for a backward, which plain Python runs with the new memory.
static void StoreData(Trace& trace, FrameNote& note, PyObject* owner, PyObject* value) {
  const at::Tensor& tensor = TensorOf(owner);
  KnownTensor* const known = IsExactTensor(owner) ? trace.aten.tensors.Find(tensor) : nullptr;
  const bool is_followed = known != nullptr && known->source.valid() && !known->resized && IsLeafForGood(owner) &&
                           !tensor.is_view() && MakesLeaves(trace) && FitsAsData(trace, owner, value);
  if (!is_followed) throw Break{Reason::tensor_attribute, "data"};
  if (trace.repeated_calls) trace.repeated_calls->Invalidate();
  trace.aten.resized.KeepBefore(MetadataBefore(tensor));
  AddEffect(trace, Effect::Kind::kSetAttr, owner, "data", {value}, {Shadow()});
  trace.aten.tensors.Find(tensor)->data_set = true;
  // The setter asks by an op whether the kinds of tensors fit.
  note.op.marks.hides_ops = true;
  aten::SeeEveryOp(false);
}

// x.requires_grad = True, x.requires_grad = False: where it stays so, or of a leaf that the trace has made.
static void StoreRequiresGrad(Trace& trace, PyObject* owner, PyObject* value, Shadow shadow) {
  if (!IsExactTensor(owner) || !PyBool_Check(value)) throw Break{Reason::tensor_attribute, "requires_grad"};
  const at::Tensor& tensor = TensorOf(owner);
  if (tensor.requires_grad() == (value == Py_True) && IsLeafForGood(owner)) {
    if (trace.repeated_calls) trace.repeated_calls->NoteRequiresGrad();
    Specialize(trace, value, shadow);
    return ReadRank(trace, owner);
  }
  if (value == Py_False || !IsMade(trace, owner) || !tensor.is_leaf() || !tensor.is_floating_point())
    throw Break{Reason::tensor_attribute, "requires_grad"};
  if (!MakesLeaves(trace)) throw Break{Reason::tensor_attribute, "requires_grad=True"};
  // The binding sets a flag and dispatches nothing. The op for it does the same: it is run for the graph, and what
  // the program does then changes nothing more.
  Specialize(trace, value, shadow);
  RecordRequiresGrad(trace.aten, tensor);
}

// Besides `grad`, `data` and `requires_grad`: a plain attribute in the __dict__ of a tensor that the trace has made (a tag for
// others to read).
void StoreTensorAttribute(Trace& trace, FrameNote& note, PyObject* owner, PyObject* name, PyObject* value,
                          Shadow shadow) {
  if (std::strcmp(Text(name), "grad") == 0) return StoreGrad(trace, owner, value);
  if (std::strcmp(Text(name), "data") == 0) return StoreData(trace, note, owner, value);
  if (std::strcmp(Text(name), "requires_grad") == 0) return StoreRequiresGrad(trace, owner, value, shadow);
  if (!IsMade(trace, owner) || !IsScalar(value) || _PyType_Lookup(Py_TYPE(owner), name) != nullptr) {
    throw Break{Reason::tensor_attribute, Text(name)};
  }
  Specialize(trace, value, shadow);
  AddEffect(trace, Effect::Kind::kSetAttr, owner, Text(name), {value}, {Shadow()});
}

}  // namespace frametap
