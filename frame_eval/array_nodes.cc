#include "frame_eval/array_nodes.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "frame_eval/callables/table.h"
#include "frame_eval/hook.h"
#include "frame_eval/known_objects.h"
#include "frame_eval/python_ops.h"
#include "frame_eval/recorder.h"
#include "frame_eval/repeated_calls.h"
#include "guards/import.h"
#include "guards/must.h"
#include "guards/tensor_door.h"
#include "guards/thread_end.h"
#include "ir/ops/scalar.h"
#include "ir/writes.h"

namespace frametap {
namespace {

constexpr const char* kReads = "frametap::numpy";
constexpr const char* kShares = "frametap::numpy_view";
constexpr const char* kWrites = "frametap::numpy_";
constexpr const char* kNumber = "frametap::numpy_number";

const char* OpOf(ArrayAccess access) {
  switch (access) {
    case ArrayAccess::kReads:
      return kReads;
    case ArrayAccess::kShares:
    case ArrayAccess::kConverts:
      return kShares;
    case ArrayAccess::kWrites:
      return kWrites;
    case ArrayAccess::kNumber:
      return kNumber;
  }
  return "";
}

Break RefuseArrays(std::string what) { return {Reason::numpy_code, std::move(what)}; }

// Plain Python runs the call instead: it may warn where this run has raised.
struct WouldWarn : IntOverflow {
  WouldWarn() : IntOverflow("NumPy found an error of floats") {}
};

using KeptArrayCalls = KeptCalls<std::shared_ptr<const ArrayCall>>;

class Held : public c10::ivalue::PyObjectHolder {
 public:
  explicit Held(PyObject* object) : object_(Py_NewRef(object)) {}
  ~Held() override {
    const PyGILState_STATE lock = StayingAtThreadEnd(PyGILState_Ensure);
    Py_DECREF(object_);
    PyGILState_Release(lock);
  }
  PyObject* getPyObject() override { return object_; }
  c10::InferredType tryToInferType() override { return c10::InferredType("an object of NumPy"); }
  c10::IValue toIValue(const c10::TypePtr&, std::optional<int32_t>) override { return {}; }
  std::string toStr() override { return "an object of NumPy"; }
  std::vector<at::Tensor> extractTensors() override { return {}; }

 private:
  PyObject* const object_;
};

// N5. NumPy keeps its reactions to errors of floats in a context variable, as an opaque object.
class StrictReactions {
 public:
  static bool Load() {
    const Ref<> module = ImportModule("numpy._core._multiarray_umath");
    if (module) {
      Parts().variable = PyObject_GetAttrString(module.get(), "_extobj_contextvar");
      Parts().make = PyObject_GetAttrString(module.get(), "_make_extobj");
      Parts().tell = PyObject_GetAttrString(module.get(), "_get_extobj_dict");
    }
    PyErr_Clear();
    return Parts().variable != nullptr && PyContextVar_CheckExact(Parts().variable) && Parts().make != nullptr &&
           Parts().tell != nullptr;
  }

  StrictReactions() {
    PyObject* now = nullptr;
    if (PyContextVar_Get(Parts().variable, nullptr, &now) < 0) return;
    const Ref<> owned = Ref<>::Steal(now);
    const Ref<> strict = owned ? StrictFormOf(owned.get()) : Ref<>();
    if (strict) token_ = Ref<>::Steal(PyContextVar_Set(Parts().variable, strict.get()));
  }
  ~StrictReactions() {
    if (!token_) return;
    const ErrScope keep;
    if (PyContextVar_Reset(Parts().variable, token_.get()) < 0) PyErr_Clear();
  }
  StrictReactions(const StrictReactions&) = delete;
  StrictReactions& operator=(const StrictReactions&) = delete;
  bool are_set() const { return static_cast<bool>(token_); }  // false: a Python exception is set

 private:
  struct Objects {
    PyObject *variable = nullptr, *make = nullptr, *tell = nullptr;
  };
  static Objects& Parts() {
    static Objects objects;
    return objects;
  }

  static Ref<> StrictFormOf(PyObject* reactions) {
    static auto* const last = new std::pair<Ref<>, Ref<>>();
    if (last->first.get() == reactions) return last->second;
    const Ref<> told = Ref<>::Steal(PyObject_CallNoArgs(Parts().tell)), named = Ref<>::Steal(PyDict_New()),
                none = Ref<>::Steal(PyTuple_New(0)), raise = Ref<>::Steal(PyUnicode_FromString("raise"));
    if (!told || !named || !none || !raise) return Ref<>();
    for (const char* name : {"divide", "over", "under", "invalid"}) {
      PyObject* const reaction = PyDict_GetItemString(told.get(), name);
      const bool is_ignored =
          reaction != nullptr && PyUnicode_Check(reaction) && PyUnicode_CompareWithASCIIString(reaction, "ignore") == 0;
      if (PyDict_SetItemString(named.get(), name, is_ignored ? reaction : raise.get()) < 0) return Ref<>();
    }
    Ref<> strict = Ref<>::Steal(PyObject_Call(Parts().make, none.get(), named.get()));
    if (strict) *last = {Ref<>::New(reactions), strict};
    return strict;
  }

  Ref<> token_;
};

// ---- running --------------------------------------------------------------------------------------------------------

Ref<> ObjectOf(const c10::IValue& value) {
  if (value.isPyObject()) return Ref<>::New(value.toPyObject());
  if (value.isTensor()) return Ref<>::Steal(WrapTensor(value.toTensor()));
  if (value.isInt()) return Ref<>::Steal(PyLong_FromLongLong(value.toInt()));
  if (value.isDouble()) return Ref<>::Steal(PyFloat_FromDouble(value.toDouble()));
  if (value.isBool()) return Ref<>::New(value.toBool() ? Py_True : Py_False);
  PyErr_SetString(PyExc_SystemError, "frametap: an operand of NumPy of an unknown kind");
  return Ref<>();
}

Ref<> MakePart(const ArrayPart& part, const std::vector<Ref<>>& operands) {
  if (part.kind == ArrayPart::Kind::kConstant) return part.constant;
  if (part.kind == ArrayPart::Kind::kOperand) return operands[part.operand];
  const bool is_tuple = part.kind == ArrayPart::Kind::kTuple;
  const auto size = static_cast<Py_ssize_t>(part.items.size());
  Ref<> sequence = Ref<>::Steal(is_tuple ? PyTuple_New(size) : PyList_New(size));
  for (Py_ssize_t i = 0; sequence && i < size; ++i) {
    Ref<> item = MakePart(part.items[static_cast<size_t>(i)], operands);
    if (!item) return item;
    is_tuple ? PyTuple_SET_ITEM(sequence.get(), i, item.Release()) : PyList_SET_ITEM(sequence.get(), i, item.Release());
  }
  return sequence;
}

Ref<> Unary(int op, PyObject* a) {
  switch (op) {
    case 0:
      return Ref<>::Steal(PyNumber_Positive(a));
    case 1:
      return Ref<>::Steal(PyNumber_Negative(a));
    default:
      return Ref<>::Steal(PyNumber_Invert(a));
  }
}

using Binary = PyObject* (*)(PyObject*, PyObject*);

template <PyObject* (*power)(PyObject*, PyObject*, PyObject*)>
PyObject* Power(PyObject* a, PyObject* b) {
  return power(a, b, Py_None);
}

// As the argument of BINARY_OP counts them: first the plain ones, then the ones in place.
constexpr Binary kBinary[] = {
    PyNumber_Add,
    PyNumber_And,
    PyNumber_FloorDivide,
    PyNumber_Lshift,
    PyNumber_MatrixMultiply,
    PyNumber_Multiply,
    PyNumber_Remainder,
    PyNumber_Or,
    Power<PyNumber_Power>,
    PyNumber_Rshift,
    PyNumber_Subtract,
    PyNumber_TrueDivide,
    PyNumber_Xor,
    PyNumber_InPlaceAdd,
    PyNumber_InPlaceAnd,
    PyNumber_InPlaceFloorDivide,
    PyNumber_InPlaceLshift,
    PyNumber_InPlaceMatrixMultiply,
    PyNumber_InPlaceMultiply,
    PyNumber_InPlaceRemainder,
    PyNumber_InPlaceOr,
    Power<PyNumber_InPlacePower>,
    PyNumber_InPlaceRshift,
    PyNumber_InPlaceSubtract,
    PyNumber_InPlaceTrueDivide,
    PyNumber_InPlaceXor,
};
constexpr int kInPlaceFrom = std::size(kBinary) / 2;
constexpr const char* kBinaryText[kInPlaceFrom] = {"+", "&", "//", "<<", "@", "*", "%", "|", "**", ">>", "-", "/", "^"};

// `operands` outlives the call, so no operand is a temporary object, whose memory NumPy would use for the result.
Ref<> Perform(const ArrayCall& call, const std::vector<Ref<>>& operands) {
  std::vector<Ref<>> args;
  std::vector<PyObject*> borrowed;
  for (const ArrayPart& part : call.args) {
    args.push_back(MakePart(part, operands));
    if (!args.back()) return Ref<>();
    borrowed.push_back(args.back().get());
  }
  switch (call.what) {
    case ArrayCall::What::kCall: {
      const Py_ssize_t named = call.names ? PyTuple_GET_SIZE(call.names.get()) : 0;
      return Ref<>::Steal(PyObject_Vectorcall(call.callable.get(), borrowed.data(),
                                              borrowed.size() - static_cast<size_t>(named), call.names.get()));
    }
    case ArrayCall::What::kAttribute:
      return Ref<>::Steal(PyObject_GetAttr(borrowed[0], call.callable.get()));
    case ArrayCall::What::kUnary:
      return Unary(call.op, borrowed[0]);
    case ArrayCall::What::kBinary:
      return Ref<>::Steal(kBinary[call.op](borrowed[0], borrowed[1]));
    case ArrayCall::What::kCompare:
      return Ref<>::Steal(PyObject_RichCompare(borrowed[0], borrowed[1], call.op));
    case ArrayCall::What::kItem:
      return Ref<>::Steal(PyObject_GetItem(borrowed[0], borrowed[1]));
    case ArrayCall::What::kStore:
      return PyObject_SetItem(borrowed[0], borrowed[1], borrowed[2]) < 0 ? Ref<>() : Ref<>::New(Py_None);
  }
  return Ref<>();
}

// N2, N3
bool IsAsRecorded(const ArrayCall& call, const std::vector<Ref<>>& operands, PyObject* result) {
  if (call.gives == ArrayCall::Gives::kOperand) return operands[call.given].get() == result;
  for (const Ref<>& operand : operands) {
    if (operand.get() == result) return false;
  }
  switch (call.gives) {
    case ArrayCall::Gives::kArray:
      return call.facts.Hold(result);
    case ArrayCall::Gives::kArrayNumber:
    case ArrayCall::Gives::kNumber:
      return Py_TYPE(result) == call.type;
    case ArrayCall::Gives::kTensor:
      return IsExactTensor(result);
    default:
      return result == Py_None;
  }
}

c10::IValue ValueOfResult(const ArrayCall& call, PyObject* result) {
  switch (call.gives) {
    case ArrayCall::Gives::kTensor:
      return TensorOf(result);
    case ArrayCall::Gives::kNone:
      return {};
    case ArrayCall::Gives::kNumber: {
      if (PyFloat_CheckExact(result)) return PyFloat_AS_DOUBLE(result);
      int overflow = 0;
      const int64_t number = PyLong_AsLongLongAndOverflow(result, &overflow);
      if (overflow != 0) throw IntOverflow("an int of more than 64 bits");
      return number;
    }
    default:
      return ArrayAsValue(result);
  }
}

void RunArrayCall(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  const c10::IValue others = torch::jit::pop(*stack), first = torch::jit::pop(*stack);
  torch::jit::drop(*stack, 1);
  const int64_t id = torch::jit::pop(*stack).toInt();
  c10::IValue out;
  RunInPython([&] {
    const HookPause below;
    const auto* const found = KeptArrayCalls::Find(id);
    const std::shared_ptr<const ArrayCall> call = found != nullptr ? *found : nullptr;
    if (call == nullptr) {
      PyErr_SetString(PyExc_RuntimeError, "frametap: the call of NumPy of this graph is gone");
      return;
    }
    std::vector<Ref<>> operands;
    for (const c10::IValue& list : {first, others}) {
      for (const c10::IValue& value : list.toListRef()) {
        operands.push_back(ObjectOf(value));
        if (!operands.back()) return;
      }
    }
    Ref<> result;
    {
      const StrictReactions strict;
      if (!strict.are_set()) return;
      result = Perform(*call, operands);
    }
    if (!result && PyErr_ExceptionMatches(PyExc_FloatingPointError)) {
      PyErr_Clear();
      throw WouldWarn();
    }
    if (!result) return;
    if (!IsAsRecorded(*call, operands, result.get())) throw AssumptionFails("a call of NumPy gives something else");
    out = ValueOfResult(*call, result.get());
  });
  stack->push_back(std::move(out));
}

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

}  // namespace

c10::IValue ArrayAsValue(PyObject* object) {
  return c10::IValue(c10::intrusive_ptr<c10::ivalue::PyObjectHolder>(c10::make_intrusive<Held>(object)));
}

bool IsArrayOp(const c10::OperatorHandle& op) { return absl::StartsWith(op.operator_name().name, kReads); }

bool RegisterArrayOps() {
  if (!LoadArrays() || !StrictReactions::Load()) return false;
  const auto add = [](const char* op, const char* first, const char* others, const char* result) {
    const auto list = [](const char* alias) { return std::string("Any") + alias + "[]"; };
    RegisterPythonOp(std::string(op) + "(int call, str name, " + list(first) + " first, " + list(others) +
                         " others) -> Any" + result,
                     c10::DispatchKey::CompositeExplicitAutograd,
                     c10::KernelFunction::makeFromBoxedFunction<&RunArrayCall>());
  };
  add(kReads, "", "", "");
  add(kNumber, "", "", "");
  add(kShares, "(a)", "(a)", "(a)");
  add(kWrites, "(a!)", "", "(a!)");
  return true;
}

// ---- recording ------------------------------------------------------------------------------------------------------

namespace {

ArrayPart Constant(PyObject* object) {
  ArrayPart part;
  part.constant = Ref<>::New(object);
  return part;
}

// Returns whether it is a slice of plain values.
bool IsPlainSlice(PyObject* object) {
  if (!PySlice_Check(object)) return false;
  const auto* slice = reinterpret_cast<PySliceObject*>(object);
  return Recorder::IsScalar(slice->start) && Recorder::IsScalar(slice->stop) && Recorder::IsScalar(slice->step);
}

}  // namespace

void ArrayParts::Add(PyObject* object, Shadow shadow) { call_.args.push_back(PartOf(object, shadow, 0)); }

ArrayPart ArrayParts::PartOf(PyObject* object, Shadow shadow, int depth) {
  constexpr int kDeepest = 20;
  if (IsArrayOperand(r_, object)) {
    if (IsArray(object) && ElementsOf(object) == 0) throw RefuseArrays("an array without elements");
    return Operand({object, ArrayValue(r_, object), Shadow()});
  }
  if (IsTensor(object)) return TensorOperand(object);
  if (call_.leaves_open && r_.LeavesOpen(object, shadow)) return Operand({object, ValueId(), shadow});
  if (Recorder::IsScalar(object)) {
    r_.Force(object, shadow);
    return Constant(object);
  }
  if (depth < kDeepest && (PyTuple_CheckExact(object) || PyList_CheckExact(object))) return Sequence(object, depth);
  if (IsPlainSlice(object)) {
    r_.ForceDeep(object, shadow, false);
    return Constant(object);
  }
  if (IsArrayNumber(object)) return Constant(object);  // of fixed arguments
  if (IsDtypeConstant(object)) {
    r_.AdoptPinned(object);
    r_.Touch(object);
    if (Known* const known = r_.Find(object); known != nullptr && known->state == Known::State::kSource) r_.Fix(*known);
    return Constant(object);
  }
  throw RefuseArrays(call_.text + " with an object of type " + Py_TYPE(object)->tp_name);
}

ArrayPart ArrayParts::Sequence(PyObject* object, int depth) {
  r_.AdoptElements(object);
  ArrayPart part;
  part.kind = PyTuple_CheckExact(object) ? ArrayPart::Kind::kTuple : ArrayPart::Kind::kList;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
    part.items.push_back(PartOf(PySequence_Fast_GET_ITEM(object, i), r_.ElementShadow(object, i), depth + 1));
  }
  return part;
}

ArrayPart ArrayParts::TensorOperand(PyObject* object) {
  if (!call_.takes_tensors || !IsExactTensor(object)) throw RefuseArrays(call_.text + " of a tensor");
  if (!r_.aten().Find(TensorOf(object))) throw Break{Reason::tensor_from_nowhere, ""};
  r_.ReadTensor(object, true, true);
  const std::optional<ValueId> value = r_.aten().ValueOf(TensorOf(object));
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
static ValueId AddArrayNode(Recorder& recorder, std::unique_ptr<ArrayCall> call, Type type,
                            absl::FunctionRef<ValueId(Shadow)> value_of) {
  const std::string text = call->text;
  const char* const op = OpOf(call->access);
  const size_t written = call->access == ArrayAccess::kWrites ? 1 : 0;
  std::vector<Arg> first, others;
  for (size_t i = 0; i < call->operands.size(); ++i) {
    const ArrayCall::Operand& operand = call->operands[i];
    (i < written ? first : others).push_back(Arg::Of(operand.value.valid() ? operand.value : value_of(operand.open)));
  }
  call->operands.clear();
  Ref<> owner;
  const int64_t id = KeptArrayCalls::Keep(std::move(call), &owner);
  recorder.AddConstant(owner.get());
  return recorder.aten().AddOpNode(op, "",
                                   {Arg::Const(c10::IValue(id)), Arg::Const(c10::IValue(text)),
                                    Arg::List(std::move(first)), Arg::List(std::move(others))},
                                   std::move(type));
}

Shadow AddPlainNumber(Recorder& recorder, PyObject* number, Ref<>* plain) {
  const bool is_float = PyNumber_Check(number) && !PyIndex_Check(number);
  auto call = std::make_unique<ArrayCall>();
  call->access = ArrayAccess::kNumber;
  PyTypeObject* const type = is_float ? &PyFloat_Type : &PyLong_Type;
  call->callable = Ref<>::New(reinterpret_cast<PyObject*>(type));
  call->text = is_float ? "float" : "int";
  call->gives = ArrayCall::Gives::kNumber;
  call->type = type;
  ArrayParts(recorder, *call).Add(number, Shadow());
  *plain = Must(is_float ? PyNumber_Float(number) : PyNumber_Index(number));
  recorder.AddConstant(plain->get());  // the operation that it is for reads it
  const Type::Kind kind = is_float ? Type::Kind::kFloat : Type::Kind::kInt;
  const auto no_number = [](Shadow) { return ValueId(); };  // the operand is a value
  return {Shadow::Kind::kValue, AddArrayNode(recorder, std::move(call), Type::Scalar(kind), no_number).raw()};
}

bool IsOperandOfNumPy(Recorder& r, PyObject* object) {
  if (IsArray(object)) return true;
  if (!IsArrayNumber(object)) return false;
  const Known* const known = r.Find(object);
  return known != nullptr && (known->state == Known::State::kSource || !known->items.empty());
}

bool TakesArrays(Recorder& r, const Call& call) {
  return std::any_of(call.args.begin(), call.args.end(), [&r](PyObject* arg) { return IsArrayOperand(r, arg); });
}

void ReadArray(Recorder& r, PyObject* object) {
  const SourceId source = r.SourceOf(object);
  if (!source.valid()) return;
  IsArray(object) ? r.guards().Layout(source, r.Here()) : r.guards().Type(source, r.Here());
}

ValueId ArrayValue(Recorder& r, PyObject* object) {
  Known* const known = r.Find(object);
  if (known == nullptr) throw Break{Reason::object_from_nowhere, Py_TYPE(object)->tp_name};
  if (known->items.empty()) {
    if (known->state != Known::State::kSource) throw Break{Reason::object_from_nowhere, Py_TYPE(object)->tp_name};
    ReadArray(r, object);
    const ValueId value = r.aten().AddNumberInput(known->source, Type::Scalar(Type::Kind::kOpaque));
    known->items.assign(1, Shadow{Shadow::Kind::kValue, value.raw()});
  }
  const ValueId value{known->items[0].id};
  if (value.raw() >= r.aten().graph().values.size()) throw Break{Reason::object_from_nowhere, Py_TYPE(object)->tp_name};
  return value;
}

// The operations that are recorded, by the notes of their frames. Under Python's lock.
static absl::flat_hash_map<const FrameNote*, std::unique_ptr<ArrayCall>>& AtWork() {
  static auto* const calls = new absl::flat_hash_map<const FrameNote*, std::unique_ptr<ArrayCall>>();
  return *calls;
}

size_t array_calls = 0;

bool HasArrayCall(const FrameNote& note) { return AtWork().contains(&note); }

static std::unique_ptr<ArrayCall> TakeArrayCall(const FrameNote& note) {
  auto taken = AtWork().extract(&note);
  array_calls = AtWork().size();
  return taken ? std::move(taken.mapped()) : nullptr;
}

void DropArrayCall(const FrameNote& note) { TakeArrayCall(note); }

// N4, N5. The call has its parts.
static void BeginArrays(Recorder& r, FrameNote& note, std::unique_ptr<ArrayCall> call) {
  if (call->access == ArrayAccess::kNumber && !r.sizes_open()) throw Break{Reason::value_of_tensor, call->text};
  if (r.IsContextSet()) throw RefuseArrays(call->text + " in a block of np.errstate");
  if (r.aten().writes_inputs()) throw RefuseArrays(call->text + " after a write to memory that existed before");
  if (call->access == ArrayAccess::kWrites) {
    if (call->args.empty() || call->args[0].kind != ArrayPart::Kind::kOperand || !IsArray(call->operands[0].object)) {
      throw RefuseArrays(call->text + " that writes to an unknown object");
    }
    std::vector<bool> written;
    NoteWritten(r.aten().graph(), call->operands[0].value, &written,
                [&](ValueId) { throw RefuseArrays(call->text + " that writes to memory that existed before"); });
  }
  if (r.repeated_calls() != nullptr)
    r.repeated_calls()->Spoil();  // no call of another layer is repeated by its ops alone
  note.opaque_operation = true;
  call->since = r.aten().mark();
  r.aten().expect_constant = true;  // torch.tensor(array) dispatches an op; ArrayResult drops it
  AtWork().insert_or_assign(&note, std::move(call));
  array_calls = AtWork().size();
}

void CallArrays(Recorder& r, Call& call, ArrayAccess access) {
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
  ArrayParts parts(r, *made);
  for (size_t i = 0; i < call.args.size(); ++i) parts.Add(call.args[i], call.shadows[i]);
  if (!call.names.empty()) {
    made->names = Must(PyTuple_New(static_cast<Py_ssize_t>(call.names.size())));
    for (size_t i = 0; i < call.names.size(); ++i) {
      PyTuple_SET_ITEM(made->names.get(), static_cast<Py_ssize_t>(i), Py_NewRef(call.names[i]));
    }
  }
  BeginArrays(r, call.note, std::move(made));
}

bool AttributeOfArray(Recorder& r, FrameNote& note, PyObject* owner, PyObject* name) {
  if (!IsArrayOperand(r, owner)) return false;
  PyObject* const descriptor = _PyType_Lookup(Py_TYPE(owner), name);
  if (descriptor != nullptr && Py_TYPE(descriptor) == &PyMethodDescr_Type) {
    ReadArray(r, owner);
    return true;
  }
  if (descriptor == nullptr || Py_TYPE(descriptor) != &PyGetSetDescr_Type) {
    throw RefuseArrays(std::string("the attribute ") + PyUnicode_AsUTF8(name) + " of an array");
  }
  ReadArray(r, owner);
  if (HasName(name, {"shape", "ndim", "size", "itemsize", "nbytes", "strides"})) return true;
  if (HasName(name, {"dtype"})) {
    note.expect.kind = Expect::Kind::kPinned;
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
  ArrayParts(r, *made).Add(owner, Shadow());
  BeginArrays(r, note, std::move(made));
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
static bool ComparesDtypes(Recorder& r, const Event& e) {
  if (!IsArrayDtype(e.in[0]) && !IsArrayDtype(e.in[1])) return false;
  for (int i = 0; i < e.n; ++i) {
    if (!IsDtypeConstant(e.in[i])) return false;
  }
  for (int i = 0; i < e.n; ++i) {
    Known* const known = r.Find(e.in[i]);
    if (known != nullptr && known->state == Known::State::kSource) r.Fix(*known);
  }
  return true;
}

bool OperatorOfArrays(Recorder& r, FrameNote& note, const Event& e) {
  const auto is_operand = [&](int i) { return i < e.n && e.in[i] != nullptr && IsArrayOperand(r, e.in[i]); };
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
  if (made == nullptr) return e.op == Op::kCompare && ComparesDtypes(r, e);
  // Reflected operators of tensors are torch's.
  for (int i = 0; i < e.n; ++i) {
    if (e.in[i] != nullptr && IsTensor(e.in[i])) return false;
  }
  ArrayParts parts(r, *made);
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
      BeginArrays(r, note, std::move(made));
      return true;
  }
  for (int i = 0; i < e.n; ++i) parts.Add(e.in[i], e.shadows[i]);
  BeginArrays(r, note, std::move(made));
  return true;
}

Shadow ArrayResult(Recorder& r, const FrameNote& note, PyObject* result, absl::FunctionRef<ValueId(Shadow)> value_of) {
  std::unique_ptr<ArrayCall> call = TakeArrayCall(note);
  if (r.aten().pending) return Shadow();
  if (r.aten().mark().nodes != call->since.nodes) r.aten().DropNodes(call->since);
  using Gives = ArrayCall::Gives;
  Type type = Type::Scalar(Type::Kind::kOpaque);
  const auto operand = std::find_if(call->operands.begin(), call->operands.end(),
                                    [result](const ArrayCall::Operand& one) { return one.object == result; });
  if (call->what == ArrayCall::What::kStore) {
    call->gives = Gives::kNone;
  } else if (operand != call->operands.end() && IsOfNumPy(result)) {
    call->gives = Gives::kOperand;
    call->given = static_cast<size_t>(operand - call->operands.begin());
  } else if (r.Find(result) != nullptr) {
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
  } else if (call->access == ArrayAccess::kNumber && Recorder::IsNumber(result)) {
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
  const ValueId value = AddArrayNode(r, std::move(call), std::move(type), value_of);
  const Shadow shadow{Shadow::Kind::kValue, value.raw()};
  if (gives == Gives::kNumber) return shadow;
  if (gives == Gives::kTensor) r.aten().Bind(TensorOf(result), value);
  if (gives == Gives::kArray || gives == Gives::kArrayNumber) {
    r.AddFresh(result, Known::State::kOpaque).items.assign(1, shadow);
  }
  return Shadow();
}

}  // namespace frametap
