// Nodes that call NumPy, while a graph runs.
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "frame_eval/interpreter/hook.h"
#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/trace/array_nodes.h"
#include "frame_eval/record/trace/python_ops.h"
#include "frame_eval/segment/array_value.h"
#include "guards/objects/import.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"
#include "ir/graph/builtin_op.h"

namespace frametap {
namespace {

constexpr const char* kReads = "frametap::numpy";
constexpr const char* kShares = "frametap::numpy_view";
constexpr const char* kWrites = "frametap::numpy_";
constexpr const char* kNumber = "frametap::numpy_number";

// Plain Python runs the call instead: it may warn where this run has raised.
struct WouldWarn : NoResult {
  WouldWarn() : NoResult("NumPy found an error of floats") {}
};

// array_nodes/N5. NumPy keeps its reactions to errors of floats in a context variable, as an opaque object.
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
      PyObject* const reaction = ItemOrError(told.get(), name);
      if (reaction == nullptr && PyErr_Occurred() != nullptr) return Ref<>();
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
static_assert(std::size(kBinary) == 2 * kInPlaceFrom);

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

// array_nodes/N2, array_nodes/N3
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
      if (overflow != 0) throw NoResult("an int of more than 64 bits");
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

}  // namespace

const char* ArrayOpOf(ArrayAccess access) {
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

}  // namespace frametap
