// Numbers: int, float, complex, math, and operators on them, which on tensors are ops.
#include <string_view>

#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/numbers/numbers_in_tensors.h"
#include "frame_eval/record/numbers/operands.h"
#include "frame_eval/record/numbers/sequences.h"
#include "frame_eval/record/numbers/symbolic_args.h"
#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/objects/identity.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/semantics/calls.h"
#include "frame_eval/record/trace/array_nodes.h"
#include "guards/objects/torch_tensor.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

// A number that is not fixed, computed by `op` from the first argument, or from two.
void Compute(Trace& trace, Call& call, BuiltinOp op) {
  call.note.op.expect.SetShadow(
      call.args.size() == 1 ? AddNumber(trace, op, {{call.args[0], call.shadows[0]}})
                            : AddNumber(trace, op, {{call.args[0], call.shadows[0]}, {call.args[1], call.shadows[1]}}));
}

// Whether all arguments are plain numbers, and one of them is not fixed.
bool HasOpenNumber(Trace& trace, const Call& call) {
  bool open = false;
  for (size_t i = 0; i < call.args.size(); ++i) {
    if (!IsNumber(call.args[i])) return false;
    open = open || LeavesOpen(trace, call.args[i], call.shadows[i]);
  }
  return open && call.names.empty();
}

// float(x), int(x): values; a tensor's value ends the segment.
void Convert(Trace& trace, Call& call) {
  if (call.args.size() == 1 && HasOpenNumber(trace, call)) {
    const bool to_float = call.callable == reinterpret_cast<PyObject*>(&PyFloat_Type);
    if (to_float != static_cast<bool>(PyFloat_CheckExact(call.args[0]))) {
      return Compute(trace, call, to_float ? BuiltinOp::kFloatOf : BuiltinOp::kIntOf);
    }
    FixType(trace, call.shadows[0]);
    call.note.op.expect.SetShadow(call.shadows[0]);  // the very object
    return;
  }
  if (call.args.size() == 1 && TakesArrays(trace, call)) return CallArrays(trace, call, ArrayAccess::kNumber);
  const bool of_tensor = call.args.size() == 1 && call.names.empty() && IsTensor(call.args[0]);
  if (of_tensor && ConvertTensor(trace, call, call.callable == reinterpret_cast<PyObject*>(&PyFloat_Type))) return;
  for (size_t i = 0; i < call.args.size(); ++i) {
    if (IsTensor(call.args[i])) throw Break{Reason::value_of_tensor, CallableName(call.callable)};
    SpecializeDeep(trace, call.args[i], call.shadows[i], false);
  }
}

// The operation of Python on two items while it folds a sequence.
Ref<> Folded(BuiltinOp op, PyObject* a, PyObject* b) {
  switch (op) {
    case BuiltinOp::kIntAdd:
      return Must(PyNumber_Add(a, b));
    case BuiltinOp::kIntMul:
      return Must(PyNumber_Multiply(a, b));
    default: {
      const bool least = op == BuiltinOp::kIntMin || op == BuiltinOp::kFloatMin;
      return Ref<>::New(Must(PyObject_RichCompareBool(b, a, least ? Py_LT : Py_GT)) ? b : a);
    }
  }
}

// The sum, product or extreme of a sequence of numbers of one type, the last argument, from `start` or (null) from the first
// of them. Returns false if they have other types, or all are fixed.
bool Fold(Trace& trace, Call& call, BuiltinOp op, PyTypeObject* type, PyObject* start, size_t arguments = 1) {
  if (call.args.size() != arguments || !call.names.empty() || !HasOpenItems(trace, call.args.back())) return false;
  PyObject* const row = call.args.back();
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(row);
  for (Py_ssize_t i = 0; i < size; ++i) {
    if (Py_TYPE(PySequence_Fast_GET_ITEM(row, i)) != type) return false;
  }
  Py_ssize_t i = start == nullptr ? 1 : 0;  // an open item is there: the row is not empty
  Ref<> so_far = Ref<>::New(start == nullptr ? PySequence_Fast_GET_ITEM(row, 0) : start);
  Shadow shadow = start == nullptr ? ElementShadow(trace, row, 0) : Shadow();
  for (; i < size; ++i) {
    PyObject* const item = PySequence_Fast_GET_ITEM(row, i);
    shadow = AddNumber(trace, op, {{so_far.get(), shadow}, {item, ElementShadow(trace, row, i)}});
    so_far = Folded(op, so_far.get(), item);
  }
  call.note.op.expect.SetShadow(shadow);
  return true;
}

// Records min or max of an int and a float: the result is one of the two, and it is guarded which one.
bool ExtremeOfBoth(Trace& trace, Call& call, bool least) {
  const int better = least ? Py_LT : Py_GT;
  PyObject *const a = call.args[0], *const b = call.args[1];
  if (!DecideNumbers(trace, b, call.shadows[1], a, call.shadows[0], better, false)) return false;
  const bool is_second = Must(PyObject_RichCompareBool(b, a, better));
  for (const Shadow shadow : call.shadows) FixType(trace, shadow);
  call.note.op.expect.SetShadow(call.shadows[is_second ? 1 : 0]);
  return true;
}

// min(a, b), max(a, b), or of a row of numbers of one type; otherwise as of any iterable.
template <BuiltinOp of_ints, BuiltinOp of_floats>
void Extreme(Trace& trace, Call& call) {
  if (call.args.size() == 2 && Py_TYPE(call.args[0]) == Py_TYPE(call.args[1]) && HasOpenNumber(trace, call)) {
    return Compute(trace, call, PyFloat_CheckExact(call.args[0]) ? of_floats : of_ints);
  }
  if (call.args.size() == 2 && HasOpenNumber(trace, call) && ExtremeOfBoth(trace, call, of_ints == BuiltinOp::kIntMin))
    return;
  if (Fold(trace, call, of_ints, &PyLong_Type, nullptr) || Fold(trace, call, of_floats, &PyFloat_Type, nullptr)) return;
  for (size_t i = 0; i < call.args.size(); ++i) {
    // It iterates over the tensor and asks for truth.
    if (IsTensor(call.args[i])) throw Break{Reason::value_of_tensor, CallableName(call.callable)};
    SpecializeDeep(trace, call.args[i], call.shadows[i], true);
  }
  ReadCallbacks(trace, call);
  ReadIdentities(trace, Reads::kKeys, call);
}

// Functions of `math` of one argument that is not fixed.
template <BuiltinOp op, int py_compare_op_with_zero>
void Math(Trace& trace, Call& call) {
  const bool is_open = call.args.size() == 1 && HasOpenNumber(trace, call);
  if (is_open &&
      (py_compare_op_with_zero < 0 || TakesOperand(trace, call.args[0], call.shadows[0], py_compare_op_with_zero))) {
    return Compute(trace, call, op);
  }
  for (size_t i = 0; i < call.args.size(); ++i) {
    if (IsTensor(call.args[i])) throw Break{Reason::unknown_operation, CallableName(call.callable) + " of a tensor"};
    SpecializeDeep(trace, call.args[i], call.shadows[i], false);
  }
}

// divmod(a, b) of ints, of which one is not fixed.
bool DivMod(Trace& trace, Call& call) {
  if (call.args.size() != 2 || !HasOpenNumber(trace, call)) return false;
  if (!PyLong_CheckExact(call.args[0]) || !PyLong_CheckExact(call.args[1])) return false;
  if (!TakesOperand(trace, call.args[1], call.shadows[1], Py_NE)) return false;
  call.note.op.expect.kind = ResultSpec::Kind::kItems;
  for (const BuiltinOp op : {BuiltinOp::kIntFloorDiv, BuiltinOp::kIntMod}) {
    call.note.op.expect.items.push_back(
        AddNumber(trace, op, {{call.args[0], call.shadows[0]}, {call.args[1], call.shadows[1]}}));
  }
  return true;
}

// round(x, n) of a float that is not fixed, to a fixed number of decimal places.
bool RoundToDecimals(Trace& trace, Call& call) {
  static PyObject* const parameter = InternedName("ndigits");
  const bool by_name = call.names.size() == 1 && PyUnicode_Compare(call.names[0], parameter) == 0;
  if (call.args.size() != 2 || (!call.names.empty() && !by_name)) return false;
  if (!PyFloat_CheckExact(call.args[0]) || !PyLong_CheckExact(call.args[1])) return false;
  if (!LeavesOpen(trace, call.args[0], call.shadows[0])) return false;
  int overflow = 0;
  const long long places = PyLong_AsLongLongAndOverflow(call.args[1], &overflow);
  if (overflow != 0 || places < 0 || places > kMostDecimals) return false;
  Specialize(trace, call.args[1], call.shadows[1]);
  call.shadows[1] = Shadow();
  Compute(trace, call, BuiltinOp::kFloatRound);
  return true;
}

// functools.reduce(operator.mul, x.shape)
void Reduce(Trace& trace, Call& call) {
  static PyObject* const multiply = [] {
    const Ref<> module = Must(PyImport_ImportModule("_operator"));
    return Must(PyObject_GetAttrString(module.get(), "mul")).Release();
  }();
  const bool multiplies = !call.args.empty() && call.args[0] == multiply;
  if (multiplies && Fold(trace, call, BuiltinOp::kIntMul, &PyLong_Type, nullptr, 2)) return;
  for (PyObject* arg : call.args) {
    if (IsTensor(arg)) throw Break{Reason::value_of_tensor, CallableName(call.callable)};
  }
  SpecializeArguments(trace, call, 0, true);
  ReadCallbacks(trace, call);
}

// math.prod(x.shape)
void Product(Trace& trace, Call& call) {
  static PyObject* const one = Must(PyLong_FromLong(1)).Release();
  if (Fold(trace, call, BuiltinOp::kIntMul, &PyLong_Type, one)) return;
  SpecializeArguments(trace, call, 0, true);
}

// sum, abs, round, pow, divmod: plain numbers, or tensors through their operators.
void Arithmetic(Trace& trace, Call& call) {
  bool tensors = false;
  for (PyObject* arg : call.args) {
    tensors = tensors || IsTensor(arg);
    if (PyTuple_Check(arg) || PyList_Check(arg)) {
      for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(arg); ++i) {
        tensors = tensors || IsTensor(PySequence_Fast_GET_ITEM(arg, i));
      }
    }
  }
  if (tensors) return TorchCall(trace, call.note, &call, "");
  const std::string_view name = FindCallable(call.callable)->name;
  if (name == "abs" && TakesArrays(trace, call)) return CallArrays(trace, call, ArrayAccess::kReads);
  if (call.args.size() == 1 && (name == "abs" || name == "round") && HasOpenNumber(trace, call)) {
    const bool is_float = PyFloat_CheckExact(call.args[0]);
    if (name == "abs") return Compute(trace, call, is_float ? BuiltinOp::kFloatAbs : BuiltinOp::kIntAbs);
    if (is_float) return Compute(trace, call, BuiltinOp::kIntRound);
  }
  if (name == "round" && RoundToDecimals(trace, call)) return;
  if (name == "divmod" && DivMod(trace, call)) return;
  static PyObject* const zero = Must(PyLong_FromLong(0)).Release();
  if (name == "sum" && Fold(trace, call, BuiltinOp::kIntAdd, &PyLong_Type, zero)) return;
  SpecializeArguments(trace, call, 0, true);
}

// iadd, imul …: of tensors, or of numbers, which are not changed.
void InPlaceArithmetic(Trace& trace, Call& call) {
  if (!call.args.empty() && IsTensor(call.args[0])) return TorchCall(trace, call.note, &call, "");
  for (PyObject* arg : call.args) {
    if (!IsNumber(arg)) throw Refusal(call.callable);
  }
  SpecializeArguments(trace, call, 0, true);
}

}  // namespace

void LoadNumbers() {
  for (const char* name : {"int", "float"}) AddSpecial("builtins", "", name, Convert, true);
  for (const char* name : {"abs", "round", "pow", "divmod", "sum"}) {
    AddSpecial("builtins", "", name, Arithmetic, true);
  }
  // C code may call them with two items of a sequence (functools.reduce), which they compare as keys then.
  AddSpecial("builtins", "", "min", Extreme<BuiltinOp::kIntMin, BuiltinOp::kFloatMin>, true, Reads::kKeys);
  AddSpecial("builtins", "", "max", Extreme<BuiltinOp::kIntMax, BuiltinOp::kFloatMax>, true, Reads::kKeys);
  AddSpecial("_functools", "", "reduce", Reduce, true);
  AddSpecial("math", "", "sqrt", Math<BuiltinOp::kFloatSqrt, Py_GE>, true);
  AddSpecial("math", "", "floor", Math<BuiltinOp::kIntFloor, -1>, true);
  AddSpecial("math", "", "ceil", Math<BuiltinOp::kIntCeil, -1>, true);
  AddSpecial("math", "", "trunc", Math<BuiltinOp::kIntOf, -1>, true);
  AddSpecial("math", "", "exp", Math<BuiltinOp::kFloatExp, -1>, true);
  AddSpecial("math", "", "log", Math<BuiltinOp::kFloatLog, Py_GT>, true);
  AddSpecial("math", "", "log2", Math<BuiltinOp::kFloatLog2, Py_GT>, true);
  AddSpecial("math", "", "cos", Math<BuiltinOp::kFloatCos, -1>, true);
  AddSpecial("math", "", "sin", Math<BuiltinOp::kFloatSin, -1>, true);
  AddSpecial("math", "", "prod", Product, true);
  AddSpecial("torch", "Size", "numel", Product, true);
  AddRows("builtins", "", Conduct::kPure, {"bin", "chr", "hex", "oct", "ord", "complex"});
  AddRows("builtins", "int", Conduct::kPure,
          {"bit_length", "bit_count", "conjugate", "to_bytes", "from_bytes", "as_integer_ratio", "__round__",
           "__trunc__", "__floor__", "__ceil__", "__format__", "__getnewargs__"});
  AddRows("builtins", "bool", Conduct::kPure, {"from_bytes"});
  AddRows("builtins", "float", Conduct::kPure,
          {"is_integer", "hex", "fromhex", "as_integer_ratio", "conjugate", "__round__", "__trunc__", "__floor__",
           "__ceil__", "__format__", "__getnewargs__", "__getformat__"});
  AddRows("builtins", "complex", Conduct::kPure, {"conjugate", "__format__", "__getnewargs__", "__complex__"});
  AddRows("math", "", Conduct::kPure,
          {"acos",      "acosh", "asin",    "asinh",   "atan",      "atan2",  "atanh", "cbrt",    "comb",
           "copysign",  "cosh",  "degrees", "dist",    "erf",       "erfc",   "exp2",  "expm1",   "fabs",
           "factorial", "fmod",  "frexp",   "fsum",    "gamma",     "gcd",    "hypot", "isclose", "isfinite",
           "isinf",     "isnan", "isqrt",   "lcm",     "ldexp",     "lgamma", "log10", "log1p",   "modf",
           "nextafter", "perm",  "pow",     "radians", "remainder", "sinh",   "tan",   "tanh",    "ulp"});
  for (const char* name : {"add", "sub", "mul", "truediv", "floordiv", "mod", "neg", "pos", "matmul", "and_", "or_",
                           "xor", "invert", "inv", "pow", "abs", "lshift", "rshift"}) {
    AddSpecial("_operator", "", name, Arithmetic, true);
  }
  for (const char* name : {"iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "imatmul", "iand", "ior", "ixor",
                           "ipow", "ilshift", "irshift"}) {
    AddSpecial("_operator", "", name, InPlaceArithmetic);
  }
  AddRows("_operator", "", Conduct::kPure, {"index", "length_hint"});
}

}  // namespace frametap
