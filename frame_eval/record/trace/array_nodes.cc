// Calls of NumPy, while they are recorded.
#include "frame_eval/record/trace/array_nodes.h"

#include <algorithm>
#include <utility>

#include "frame_eval/interpreter/hook.h"
#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/finish/describe.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/semantics/calls.h"
#include "frame_eval/record/shared_breaks.h"
#include "guards/objects/import.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"
#include "ir/graph/builtin_op.h"
#include "ir/passes/writes.h"

namespace frametap {
namespace {

Break RefuseArrays(std::string what) { return {Reason::numpy_code, std::move(what)}; }

bool HasName(PyObject* name, std::initializer_list<const char*> among) {
  return std::any_of(among.begin(), among.end(),
                     [name](const char* one) { return PyUnicode_CompareWithASCIIString(name, one) == 0; });
}

bool IsTypeOfNumbers(PyObject* object) {
  return IsArrayNumberType(object) || object == reinterpret_cast<PyObject*>(&PyFloat_Type) ||
         object == reinterpret_cast<PyObject*>(&PyLong_Type) || object == reinterpret_cast<PyObject*>(&PyBool_Type);
}

// Returns whether the object names a dtype and is the same one for ever.
bool IsDtypeConstant(PyObject* object) { return IsArrayDtype(object) || IsTypeOfNumbers(object); }

ArrayPart Constant(PyObject* object) {
  ArrayPart part;
  part.constant = Ref<>::New(object);
  return part;
}

// Returns whether it is a slice of plain values.
bool IsPlainSlice(PyObject* object) {
  if (!PySlice_Check(object)) return false;
  const auto* slice = reinterpret_cast<PySliceObject*>(object);
  return IsScalar(slice->start) && IsScalar(slice->stop) && IsScalar(slice->step);
}

}  // namespace

void ArrayParts::Add(PyObject* object, Shadow shadow) { call_.args.push_back(PartOf(object, shadow, 0)); }

ArrayPart ArrayParts::PartOf(PyObject* object, Shadow shadow, int depth) {
  constexpr int kDeepest = 20;
  if (IsArrayOperand(trace_, object)) {
    if (IsArray(object) && ElementsOf(object) == 0) throw RefuseArrays("an array without elements");
    return Operand({object, ArrayValue(trace_, object), Shadow()});
  }
  if (IsTensor(object)) return TensorOperand(object);
  if (call_.leaves_open && LeavesOpen(trace_, object, shadow)) return Operand({object, ValueId(), shadow});
  if (IsScalar(object)) {
    Specialize(trace_, object, shadow);
    return Constant(object);
  }
  if (depth < kDeepest && (PyTuple_CheckExact(object) || PyList_CheckExact(object))) return Sequence(object, depth);
  if (IsPlainSlice(object)) {
    SpecializeDeep(trace_, object, shadow, false);
    return Constant(object);
  }
  if (IsArrayNumber(object)) return Constant(object);  // of fixed arguments
  if (IsDtypeConstant(object)) {
    AdoptPinned(trace_, object);
    GuardTypeOrIdentity(trace_, object);
    if (ObjectRecord* const known = trace_.objects.Find(object);
        known != nullptr && known->state == ObjectRecord::State::kSource)
      Fix(trace_, *known);
    return Constant(object);
  }
  throw RefuseArrays(call_.text + " with an object of type " + Py_TYPE(object)->tp_name);
}

ArrayPart ArrayParts::Sequence(PyObject* object, int depth) {
  AdoptElements(trace_, object);
  ArrayPart part;
  part.kind = PyTuple_CheckExact(object) ? ArrayPart::Kind::kTuple : ArrayPart::Kind::kList;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
    part.items.push_back(PartOf(PySequence_Fast_GET_ITEM(object, i), ElementShadow(trace_, object, i), depth + 1));
  }
  return part;
}

ArrayPart ArrayParts::TensorOperand(PyObject* object) {
  if (!call_.takes_tensors || !IsExactTensor(object)) throw RefuseArrays(call_.text + " of a tensor");
  if (!trace_.aten.tensors.Find(TensorOf(object))) throw Break{Reason::tensor_from_nowhere, ""};
  ReadTensor(trace_, object, true, true);
  const std::optional<ValueId> value = trace_.aten.tensors.ValueOf(TensorOf(object));
  if (!value) throw Break{Reason::tensor_from_nowhere, ""};
  return Operand({object, *value, Shadow()});
}

ArrayPart ArrayParts::Operand(ArrayCall::Operand operand) {
  ArrayPart part;
  part.kind = ArrayPart::Kind::kOperand;
  part.operand = call_.operands.size();
  call_.operands.push_back(operand);
  return part;
}

// Adds the node of a call whose result is known.
static ValueId AddArrayNode(Trace& trace, std::shared_ptr<ArrayCall> call, Type type,
                            absl::FunctionRef<ValueId(Shadow)> value_of) {
  const std::string text = call->text;
  const char* const op = ArrayOpOf(call->access);
  const size_t written = call->access == ArrayAccess::kWrites ? 1 : 0;
  std::vector<Arg> first, others;
  for (size_t i = 0; i < call->operands.size(); ++i) {
    const ArrayCall::Operand& operand = call->operands[i];
    (i < written ? first : others).push_back(Arg::Of(operand.value.valid() ? operand.value : value_of(operand.open)));
  }
  call->operands.clear();
  Ref<> owner;
  const int64_t id = KeptArrayCalls::Keep(std::move(call), &owner);
  AddConstant(trace, owner.get());
  return trace.aten.AddOpNode(op, "",
                              {Arg::Const(c10::IValue(id)), Arg::Const(c10::IValue(text)), Arg::List(std::move(first)),
                               Arg::List(std::move(others))},
                              std::move(type));
}

Shadow AddPlainNumber(Trace& trace, PyObject* number, Ref<>* plain) {
  if (!trace.store.backend().calls_numpy()) throw NumPyUnderCompiler();
  const bool is_float = PyNumber_Check(number) && !PyIndex_Check(number);
  auto call = std::make_unique<ArrayCall>();
  call->access = ArrayAccess::kNumber;
  PyTypeObject* const type = is_float ? &PyFloat_Type : &PyLong_Type;
  call->callable = Ref<>::New(reinterpret_cast<PyObject*>(type));
  call->text = is_float ? "float" : "int";
  call->gives = ArrayCall::Gives::kNumber;
  call->type = type;
  ArrayParts(trace, *call).Add(number, Shadow());
  *plain = Must(is_float ? PyNumber_Float(number) : PyNumber_Index(number));
  AddConstant(trace, plain->get());  // the operation that it is for reads it
  const Type::Kind kind = is_float ? Type::Kind::kFloat : Type::Kind::kInt;
  const auto no_number = [](Shadow) { return ValueId(); };  // the operand is a value
  return {Shadow::Kind::kValue, AddArrayNode(trace, std::move(call), Type::Scalar(kind), no_number).raw()};
}

bool IsOperandOfNumPy(Trace& trace, PyObject* object) {
  if (IsArray(object)) return true;
  if (!IsArrayNumber(object)) return false;
  const ObjectRecord* const known = trace.objects.Find(object);
  return known != nullptr && (known->state == ObjectRecord::State::kSource || !known->items.empty());
}

bool TakesArrays(Trace& trace, const Call& call) {
  return std::any_of(call.args.begin(), call.args.end(),
                     [&trace](PyObject* arg) { return IsArrayOperand(trace, arg); });
}

void ReadArray(Trace& trace, PyObject* object) {
  const SourceId source = SourceOf(trace, object);
  if (!source.valid()) return;
  IsArray(object) ? trace.guards.Add(GuardKind::kLayout, source, trace.frames.Here())
                  : trace.guards.Type(source, trace.frames.Here());
}

ValueId ArrayValue(Trace& trace, PyObject* object) {
  ObjectRecord* const known = trace.objects.Find(object);
  if (known == nullptr) throw Break{Reason::object_from_nowhere, Py_TYPE(object)->tp_name};
  if (known->items.empty()) {
    if (known->state != ObjectRecord::State::kSource)
      throw Break{Reason::object_from_nowhere, Py_TYPE(object)->tp_name};
    ReadArray(trace, object);
    const ValueId value = trace.aten.tensors.AddNumberInput(known->source, Type::Scalar(Type::Kind::kOpaque));
    known->items.assign(1, Shadow{Shadow::Kind::kValue, value.raw()});
  }
  const ValueId value{known->items[0].id};
  if (value.raw() >= trace.aten.graph().values.size())
    throw Break{Reason::object_from_nowhere, Py_TYPE(object)->tp_name};
  return value;
}

// N4, N5. The call has its parts.
static void BeginArrays(Trace& trace, FrameNote& note, std::shared_ptr<ArrayCall> call) {
  if (call->access == ArrayAccess::kNumber && !trace.numbers.sizes_open())
    throw Break{Reason::value_of_tensor, call->text};
  if (trace.thread.IsContextSet()) throw RefuseArrays(call->text + " in a block of np.errstate");
  if (trace.aten.memory.writes_inputs())
    throw RefuseArrays(call->text + " after a write to memory that existed before");
  if (call->access == ArrayAccess::kWrites) {
    if (call->args.empty() || call->args[0].kind != ArrayPart::Kind::kOperand || !IsArray(call->operands[0].object)) {
      throw RefuseArrays(call->text + " that writes to an unknown object");
    }
    std::vector<bool> written;
    NoteWritten(trace.aten.graph(), call->operands[0].value, &written,
                [&](ValueId) { throw RefuseArrays(call->text + " that writes to memory that existed before"); });
  }
  if (trace.repeated_calls.get() != nullptr)
    trace.repeated_calls->Invalidate();  // no call of another layer is repeated by its ops alone
  note.op.opaque_operation = true;
  call->since = trace.aten.mark();
  trace.aten.expect_constant = true;  // torch.tensor(array) dispatches an op; ArrayResult drops it
  note.op.arrays = std::move(call);
}

void CallArrays(Trace& trace, Call& call, ArrayAccess access) {
  auto made = std::make_unique<ArrayCall>();
  made->access = access;
  made->callable = Ref<>::New(call.callable);
  made->text = CallableName(call.callable);
  const bool is_bound = PyCFunction_Check(call.callable) && !IsModuleFunction(call.callable);
  if (is_bound) {
    // The method itself: what it is bound to is the first argument.
    PyObject* const self = PyCFunction_GET_SELF(call.callable);
    const Ref<> name = Must(PyObject_GetAttrString(call.callable, "__name__"));
    PyObject* const method = _PyType_Lookup(Py_TYPE(self), name.get());
    if (method == nullptr || KeyOf(method) != KeyOf(call.callable)) throw Refusal(call.callable);
    made->callable = Ref<>::New(method);
  }
  for (PyObject* const name : call.names) {
    if (HasName(name, {"out", "where", "like", "signature", "mean", "ddof", "correction"})) {
      throw RefuseArrays(made->text + " with an argument " + PyUnicode_AsUTF8(name));
    }
  }
  made->takes_tensors = access == ArrayAccess::kConverts;
  ArrayParts parts(trace, *made);
  for (size_t i = 0; i < call.args.size(); ++i) parts.Add(call.args[i], call.shadows[i]);
  if (!call.names.empty()) made->names = KeywordsOf(call);
  BeginArrays(trace, call.note, std::move(made));
}

bool AttributeOfArray(Trace& trace, FrameNote& note, PyObject* owner, PyObject* name) {
  if (!IsArrayOperand(trace, owner)) return false;
  PyObject* const descriptor = _PyType_Lookup(Py_TYPE(owner), name);
  if (descriptor != nullptr && Py_TYPE(descriptor) == &PyMethodDescr_Type) {
    ReadArray(trace, owner);
    return true;
  }
  if (descriptor == nullptr || Py_TYPE(descriptor) != &PyGetSetDescr_Type) {
    throw RefuseArrays(std::string("the attribute ") + PyUnicode_AsUTF8(name) + " of an array");
  }
  ReadArray(trace, owner);
  if (HasName(name, {"shape", "ndim", "size", "itemsize", "nbytes", "strides"})) return true;
  if (HasName(name, {"dtype"})) {
    note.op.expect.kind = ResultSpec::Kind::kPinned;
    return true;
  }
  if (!IsArray(owner) || !HasName(name, {"T", "mT", "real"})) {
    throw RefuseArrays(std::string("the attribute ") + PyUnicode_AsUTF8(name) + " of an array");
  }
  auto made = std::make_unique<ArrayCall>();
  made->what = ArrayCall::What::kAttribute;
  made->access = ArrayAccess::kShares;
  made->callable = Ref<>::New(name);
  made->text = std::string(".") + PyUnicode_AsUTF8(name);
  ArrayParts(trace, *made).Add(owner, Shadow());
  BeginArrays(trace, note, std::move(made));
  return true;
}

// a[1:], a[0, ::2], a[[0, 2]]: not by masks, which count elements.
static bool SelectsByMask(PyObject* key, int depth = 0) {
  constexpr int kDeepest = 20;
  if (depth > kDeepest || PyBool_Check(key) || (IsArray(key) && HasBools(key))) return true;
  if (!PyTuple_CheckExact(key) && !PyList_CheckExact(key)) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(key); ++i) {
    if (SelectsByMask(PySequence_Fast_GET_ITEM(key, i), depth + 1)) return true;
  }
  return false;
}

// a.dtype == np.float32: of objects that are the same for ever.
static bool ComparesDtypes(Trace& trace, const Event& e) {
  if (!IsArrayDtype(e.in[0]) && !IsArrayDtype(e.in[1])) return false;
  for (int i = 0; i < e.n; ++i) {
    if (!IsDtypeConstant(e.in[i])) return false;
  }
  for (int i = 0; i < e.n; ++i) {
    ObjectRecord* const known = trace.objects.Find(e.in[i]);
    if (known != nullptr && known->state == ObjectRecord::State::kSource) Fix(trace, *known);
  }
  return true;
}

constexpr const char* kBinaryText[kInPlaceFrom] = {"+", "&", "//", "<<", "@", "*", "%", "|", "**", ">>", "-", "/", "^"};

bool OperatorOfArrays(Trace& trace, FrameNote& note, const Event& e) {
  const auto is_operand = [&](int i) { return i < e.n && e.in[i] != nullptr && IsArrayOperand(trace, e.in[i]); };
  auto made = [&]() -> std::unique_ptr<ArrayCall> {
    switch (e.op) {
      case Op::kUnary:
      case Op::kBinary:
      case Op::kCompare:
        if (!is_operand(0) && !is_operand(1)) return nullptr;
        break;
      case Op::kSubscr:
        if (!is_operand(0)) return nullptr;
        break;
      case Op::kStoreSubscr:
        if (!is_operand(1)) return nullptr;
        break;
      default:
        return nullptr;
    }
    return std::make_unique<ArrayCall>();
  }();
  if (made == nullptr) return e.op == Op::kCompare && ComparesDtypes(trace, e);
  // Reflected operators of tensors are torch's.
  for (int i = 0; i < e.n; ++i) {
    if (e.in[i] != nullptr && IsTensor(e.in[i])) return false;
  }
  ArrayParts parts(trace, *made);
  made->op = e.arg;
  switch (e.op) {
    case Op::kUnary:
      if (e.arg == 2) return false;  // `not a` asks for its truth
      made->what = ArrayCall::What::kUnary;
      made->text = e.arg == 1 ? "-" : e.arg == 0 ? "+" : "~";
      break;
    case Op::kBinary:
      made->what = ArrayCall::What::kBinary;
      made->leaves_open = true;
      made->text = kBinaryText[e.arg % kInPlaceFrom];
      if (e.arg >= kInPlaceFrom && IsArray(e.in[0])) {
        made->access = ArrayAccess::kWrites;
        made->text += "=";
      }
      break;
    case Op::kCompare:
      made->what = ArrayCall::What::kCompare;
      made->leaves_open = true;
      made->text = "a comparison";
      break;
    case Op::kSubscr:
      made->what = ArrayCall::What::kItem;
      made->access = ArrayAccess::kShares;
      made->text = "[]";
      if (!IsArray(e.in[0]) || SelectsByMask(e.in[1])) throw RefuseArrays("an item by a mask");
      break;
    default:
      made->what = ArrayCall::What::kStore;
      made->access = ArrayAccess::kWrites;
      made->text = "[] =";
      if (!IsArray(e.in[1])) return false;
      parts.Add(e.in[1], e.shadows[1]);
      parts.Add(e.in[2], e.shadows[2]);
      made->leaves_open = true;
      parts.Add(e.in[0], e.shadows[0]);
      BeginArrays(trace, note, std::move(made));
      return true;
  }
  for (int i = 0; i < e.n; ++i) parts.Add(e.in[i], e.shadows[i]);
  BeginArrays(trace, note, std::move(made));
  return true;
}

Shadow ArrayResult(Trace& trace, FrameNote& note, PyObject* result, absl::FunctionRef<ValueId(Shadow)> value_of) {
  std::shared_ptr<ArrayCall> call = std::exchange(note.op.arrays, nullptr);
  if (trace.aten.pending) return Shadow();
  if (trace.aten.mark().nodes != call->since.nodes) trace.aten.DropNodes(call->since);
  using Gives = ArrayCall::Gives;
  Type type = Type::Scalar(Type::Kind::kOpaque);
  const auto operand = std::find_if(call->operands.begin(), call->operands.end(),
                                    [result](const ArrayCall::Operand& one) { return one.object == result; });
  if (call->what == ArrayCall::What::kStore) {
    call->gives = Gives::kNone;
  } else if (operand != call->operands.end() && IsOfNumPy(result)) {
    call->gives = Gives::kOperand;
    call->given = static_cast<size_t>(operand - call->operands.begin());
  } else if (trace.objects.Find(result) != nullptr) {
    throw RefuseArrays(call->text + " that gives an object from elsewhere");
  } else if (IsArray(result)) {
    call->gives = Gives::kArray;
    call->facts = ArrayFacts::Of(result);
  } else if (IsArrayNumber(result)) {
    call->gives = Gives::kArrayNumber;
    call->type = Py_TYPE(result);
  } else if (IsTensor(result) && Py_TYPE(result) == Objects().tensor && operand == call->operands.end()) {
    call->gives = Gives::kTensor;
    type = Type::Of(TensorOf(result));
  } else if (call->access == ArrayAccess::kNumber && IsNumber(result)) {
    call->gives = Gives::kNumber;
    call->type = Py_TYPE(result);
    type = Type::Scalar(PyFloat_CheckExact(result) ? Type::Kind::kFloat : Type::Kind::kInt);
    int overflow = 0;
    if (PyLong_CheckExact(result)) PyLong_AsLongLongAndOverflow(result, &overflow);
    if (overflow != 0) throw RefuseArrays(call->text + " that gives a large int");
  } else if (result != Py_None || call->access != ArrayAccess::kWrites) {
    throw RefuseArrays(call->text + " that gives an object of type " + Py_TYPE(result)->tp_name);
  }
  const Gives gives = call->gives;
  const ValueId value = AddArrayNode(trace, std::move(call), std::move(type), value_of);
  const Shadow shadow{Shadow::Kind::kValue, value.raw()};
  if (gives == Gives::kNumber) return shadow;
  if (gives == Gives::kTensor) trace.aten.tensors.Bind(TensorOf(result), value);
  if (gives == Gives::kArray || gives == Gives::kArrayNumber) {
    AddFresh(trace, result, ObjectRecord::State::kOpaque).items.assign(1, shadow);
  }
  return Shadow();
}

}  // namespace frametap
