// NumPy: functions and methods of arrays, which are nodes (array_nodes.h); functions of plain numbers, whose results are
// numbers of NumPy's types.
//   Y1  Results of plain numbers are constants of the segment: the arguments are fixed, and a number of NumPy's never
//       changes.
//   Y2  The program sets NumPy's reaction to an overflow, a division by zero or a NaN (np.errstate), and a warning
//       comes at each call. So only numbers for which none of these can happen are taken.
#include <cmath>

#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/trace/array_nodes.h"

namespace frametap {
namespace {

constexpr double kLargest = 1e30;
constexpr double kLargestExponent = 50;

struct NumberTypes {
  PyTypeObject* of_floats[2] = {};  // float64, float32
  PyTypeObject* of_ints[2] = {};    // int64, int32
};

NumberTypes& Types() {
  static NumberTypes types;
  return types;
}

bool IsOneOf(PyTypeObject* type, PyTypeObject* const (&types)[2]) {
  return type != nullptr && (type == types[0] || type == types[1]);
}

// Y2. Zero, or neither very large nor very small.
bool IsModest(PyObject* object, double* value) {
  if (PyFloat_CheckExact(object) || Py_TYPE(object) == Types().of_floats[0]) {
    *value = PyFloat_AS_DOUBLE(object);  // float64 is a subclass of float
  } else if (PyLong_CheckExact(object)) {
    int overflow = 0;
    *value = static_cast<double>(PyLong_AsLongLongAndOverflow(object, &overflow));
    if (overflow != 0 || std::abs(*value) > 1e15) return false;
  } else {
    return false;
  }
  return *value == 0 || (std::abs(*value) <= kLargest && std::abs(*value) >= 1 / kLargest);
}

[[noreturn]] void Refuse(const Call& call) { throw Break{Reason::numpy_code, CallableName(call.callable)}; }

// The arguments, all of them plain numbers in their places.
template <size_t count>
std::array<double, count> NumbersOf(Trace& trace, Call& call) {
  std::array<double, count> numbers{};
  if (call.args.size() != count || !call.names.empty()) Refuse(call);
  for (size_t i = 0; i < count; ++i) {
    if (!IsModest(call.args[i], &numbers[i])) Refuse(call);
  }
  SpecializeArguments(trace, call, 0, false);
  return numbers;
}

void OfAny(Trace& trace, Call& call) { NumbersOf<1>(trace, call); }

void OfPositive(Trace& trace, Call& call) {
  if (!(NumbersOf<1>(trace, call)[0] > 0)) Refuse(call);
}

void OfExponent(Trace& trace, Call& call) {
  if (std::abs(NumbersOf<1>(trace, call)[0]) > kLargestExponent) Refuse(call);
}

void OfTwo(Trace& trace, Call& call) { NumbersOf<2>(trace, call); }

void Quotient(Trace& trace, Call& call) {
  if (NumbersOf<2>(trace, call)[1] == 0) Refuse(call);
}

void Power(Trace& trace, Call& call) {
  constexpr double kLargestBase = 1e6, kHighest = 8;
  const std::array<double, 2> numbers = NumbersOf<2>(trace, call);
  if (!(numbers[0] > 0) || numbers[0] > kLargestBase || !(numbers[1] >= 0) || numbers[1] > kHighest) Refuse(call);
}

// float32(x), float64(x): a number of the type.
void Convert(Trace& trace, Call& call) { NumbersOf<1>(trace, call); }

// prod(x.shape): Python code that ends in a loop over ints.
void Product(Trace& trace, Call& call) {
  constexpr double kMost = 1e15;
  PyObject* const row = call.args.size() == 1 && call.names.empty() ? call.args[0] : nullptr;
  if (row == nullptr || (!PyTuple_Check(row) && !PyList_CheckExact(row)) || PySequence_Fast_GET_SIZE(row) == 0)
    Refuse(call);
  double product = 1;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(row); ++i) {
    double value = 0;
    PyObject* const item = PySequence_Fast_GET_ITEM(row, i);
    if (!PyLong_CheckExact(item) || !IsModest(item, &value)) Refuse(call);
    product *= std::abs(value);
    if (product > kMost) Refuse(call);
  }
  SpecializeArguments(trace, call, 0, false);
  call.note.op.opaque_operation = true;
}

// ---- arrays ---------------------------------------------------------------------------------------------------------

template <ArrayAccess access>
void OfArrays(Trace& trace, Call& call) {
  CallArrays(trace, call, access);
}

// A function of arrays, or of plain numbers.
template <SpecialRow of_numbers>
void OfEither(Trace& trace, Call& call) {
  if (!TakesArrays(trace, call)) return of_numbers(trace, call);
  if (call.positional() > 3) Refuse(call);  // prod(a, axis, dtype, out)
  CallArrays(trace, call, ArrayAccess::kReads);
}

// A ufunc: a positional argument after its operands is an array to write to.
template <size_t operands>
void Ufunc(Trace& trace, Call& call) {
  if (call.positional() != operands || !TakesArrays(trace, call)) Refuse(call);
  CallArrays(trace, call, ArrayAccess::kReads);
}

template <SpecialRow of_numbers, size_t operands>
void UfuncOrNumbers(Trace& trace, Call& call) {
  TakesArrays(trace, call) ? Ufunc<operands>(trace, call) : of_numbers(trace, call);
}

// where(condition, a, b). With one argument it counts elements.
void Where(Trace& trace, Call& call) {
  if (call.args.size() != 3 || !call.names.empty()) Refuse(call);
  CallArrays(trace, call, ArrayAccess::kReads);
}

// a.item(): of an array of one element.
void ItemOfArray(Trace& trace, Call& call) {
  if (call.args.size() != 1) Refuse(call);
  CallArrays(trace, call, ArrayAccess::kNumber);
}

// nan_to_num(a, copy=False) would write to its argument.
void NanToNum(Trace& trace, Call& call) {
  if (call.args.size() != 1) Refuse(call);
  CallArrays(trace, call, ArrayAccess::kReads);
}

// The parameters of `sum` and its like that are out= arrays, if they are given by position.
template <size_t most>
void Reduction(Trace& trace, Call& call) {
  if (call.positional() > most) Refuse(call);
  CallArrays(trace, call, ArrayAccess::kReads);
}

void AddArrayRows(const char* path, SpecialRow row, std::initializer_list<const char*> names) {
  for (const char* name : names) AddSpecial("numpy", path, name, row);
}

void LoadArrayRows() {
  constexpr SpecialRow kReads = OfArrays<ArrayAccess::kReads>, kShares = OfArrays<ArrayAccess::kShares>;
  AddArrayRows("", Ufunc<1>,
               {"positive", "fabs",    "log1p",  "expm1",   "square",  "reciprocal", "tan",     "arcsin",
                "arccos",   "sinh",    "cosh",   "arcsinh", "arccosh", "arctanh",    "deg2rad", "rad2deg",
                "degrees",  "radians", "invert", "isnan",   "isinf",   "isfinite",   "signbit", "logical_not"});
  AddArrayRows("", Ufunc<2>,
               {"floor_divide", "remainder",  "fmod",        "float_power", "fmax",          "fmin",
                "arctan2",      "hypot",      "copysign",    "greater",     "greater_equal", "less",
                "less_equal",   "equal",      "not_equal",   "logical_and", "logical_or",    "logical_xor",
                "bitwise_and",  "bitwise_or", "bitwise_xor", "left_shift",  "right_shift",   "matmul"});
  AddArrayRows("", Reduction<2>, {"sum", "max", "min", "amax", "amin", "argmax", "argmin", "all", "any", "median"});
  AddArrayRows("", Reduction<3>, {"mean", "std", "var", "cumsum", "cumprod"});
  AddArrayRows("", Where, {"where"});
  AddArrayRows("", Reduction<3>, {"clip"});
  AddArrayRows("", Reduction<2>, {"take", "searchsorted", "digitize", "ptp", "average", "percentile", "quantile"});
  AddArrayRows("", Reduction<2>, {"round", "dot", "concatenate", "stack", "outer", "trace"});
  AddArrayRows("", kReads, {"vstack",    "hstack",    "column_stack",
                            "inner",     "tensordot", "zeros_like",
                            "ones_like", "full_like", "zeros",
                            "ones",      "full",      "arange",
                            "linspace",  "array",     "eye",
                            "copy",      "roll",      "tile",
                            "repeat",    "pad",       "diff",
                            "sort",      "argsort",   "isclose",
                            "cross",     "tril",      "triu",
                            "kron",      "interp",    "insert",
                            "append",    "delete",    "take_along_axis",
                            "convolve",  "trapezoid"});
  AddArrayRows("linalg", kReads, {"norm"});
  AddArrayRows("", kShares,
               {"reshape", "ravel", "transpose", "swapaxes", "moveaxis", "squeeze", "expand_dims", "atleast_1d",
                "atleast_2d", "flip", "flipud", "fliplr", "broadcast_to", "diagonal", "einsum"});
  for (const char* owner : {"ndarray", "generic"}) {
    AddArrayRows(owner, Reduction<3>, {"sum", "prod", "mean", "std", "var", "cumsum", "cumprod"});
    AddArrayRows(owner, Reduction<2>, {"max", "min", "all", "any", "argmax", "argmin", "round"});
    AddArrayRows(owner, Reduction<3>, {"clip"});
    AddArrayRows(owner, kReads, {"copy", "flatten"});
    AddArrayRows(owner, kShares, {"astype", "reshape", "ravel", "transpose", "swapaxes", "squeeze"});
    AddArrayRows(owner, ItemOfArray, {"item"});
  }
  AddArrayRows("ndarray", Reduction<2>, {"dot"});
  AddArrayRows("ndarray", kReads, {"repeat", "argsort"});
  AddArrayRows("ndarray", kShares, {"diagonal"});
  AddArrayRows("ndarray", OfArrays<ArrayAccess::kWrites>, {"fill", "sort"});
  AddArrayRows("", OfArrays<ArrayAccess::kConverts>, {"asarray", "ascontiguousarray"});
  AddArrayRows("", NanToNum, {"nan_to_num"});
  AddSpecial("torch._C", "TensorBase", "numpy", OfArrays<ArrayAccess::kConverts>);
  AddSpecial("torch", "", "from_numpy", kShares);
}

}  // namespace

bool IsNumPyNumber(PyObject* object) {
  return IsOneOf(Py_TYPE(object), Types().of_floats) || IsOneOf(Py_TYPE(object), Types().of_ints);
}

bool IsModestQuotient(PyObject* a, PyObject* b) {
  double x = 0, y = 0;
  return IsModest(a, &x) && IsModest(b, &y) && y != 0;
}

void LoadNumPy() {
  const auto type = [](const char* name) {
    const Ref<> module = OwnerOf("numpy", "");
    Ref<> found = module ? Ref<>::Steal(PyObject_GetAttrString(module.get(), name)) : Ref<>();
    PyErr_Clear();
    return found && PyType_Check(found.get()) ? reinterpret_cast<PyTypeObject*>(found.Release()) : nullptr;
  };
  if (Ref<> module = OwnerOf("numpy", ""); !module) return;
  Types() = {{type("float64"), type("float32")}, {type("int64"), type("int32")}};
  for (const char* name :
       {"sin", "cos", "tanh", "arctan", "floor", "ceil", "rint", "trunc", "absolute", "negative", "sign"}) {
    AddSpecial("numpy", "", name, UfuncOrNumbers<OfAny, 1>);
  }
  AddArrayRows("", UfuncOrNumbers<OfPositive, 1>, {"sqrt", "log", "log2", "log10", "cbrt"});
  AddArrayRows("", UfuncOrNumbers<OfExponent, 1>, {"exp", "exp2"});
  AddArrayRows("", UfuncOrNumbers<OfTwo, 2>, {"add", "subtract", "multiply", "maximum", "minimum"});
  AddArrayRows("", UfuncOrNumbers<Quotient, 2>, {"divide"});
  AddArrayRows("", UfuncOrNumbers<Power, 2>, {"power"});
  AddArrayRows("", OfEither<Convert>, {"float32", "float64"});
  AddArrayRows("", OfEither<Product>, {"prod"});
  if (RegisterArrayOps()) LoadArrayRows();
}

}  // namespace frametap
