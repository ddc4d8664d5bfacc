// NumPy: functions of plain numbers, whose results are numbers of NumPy's types. Arrays end the segment.
//   Y1  Results are constants of the segment: the arguments are fixed, and a number of NumPy's never changes.
//   Y2  The program sets NumPy's reaction to an overflow, a division by zero or a NaN (np.errstate), and a warning
//       comes at each call. So only numbers for which none of these can happen are taken.
#include <cmath>

#include "frame_eval/callables/table.h"
#include "guards/tensor_door.h"

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
std::array<double, count> NumbersOf(Recorder& r, Call& call) {
  std::array<double, count> numbers{};
  if (call.args.size() != count || !call.names.empty()) Refuse(call);
  for (size_t i = 0; i < count; ++i) {
    if (!IsModest(call.args[i], &numbers[i])) Refuse(call);
  }
  r.ForceArguments(call, 0, false);
  return numbers;
}

void OfAny(Recorder& r, Call& call) { NumbersOf<1>(r, call); }

void OfPositive(Recorder& r, Call& call) {
  if (!(NumbersOf<1>(r, call)[0] > 0)) Refuse(call);
}

void OfExponent(Recorder& r, Call& call) {
  if (std::abs(NumbersOf<1>(r, call)[0]) > kLargestExponent) Refuse(call);
}

void OfTwo(Recorder& r, Call& call) { NumbersOf<2>(r, call); }

void Quotient(Recorder& r, Call& call) {
  if (NumbersOf<2>(r, call)[1] == 0) Refuse(call);
}

void Power(Recorder& r, Call& call) {
  constexpr double kLargestBase = 1e6, kHighest = 8;
  const std::array<double, 2> numbers = NumbersOf<2>(r, call);
  if (!(numbers[0] > 0) || numbers[0] > kLargestBase || !(numbers[1] >= 0) || numbers[1] > kHighest) Refuse(call);
}

// float32(x), float64(x): a number of the type.
void Convert(Recorder& r, Call& call) { NumbersOf<1>(r, call); }

// prod(x.shape): Python code that ends in a loop over ints.
void Product(Recorder& r, Call& call) {
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
  r.ForceArguments(call, 0, false);
  call.note.opaque_operation = true;
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
    AddSpecial("numpy", "", name, OfAny);
  }
  for (const char* name : {"sqrt", "log", "log2", "log10", "cbrt"}) AddSpecial("numpy", "", name, OfPositive);
  for (const char* name : {"exp", "exp2"}) AddSpecial("numpy", "", name, OfExponent);
  for (const char* name : {"add", "subtract", "multiply", "maximum", "minimum"}) AddSpecial("numpy", "", name, OfTwo);
  AddSpecial("numpy", "", "divide", Quotient);
  AddSpecial("numpy", "", "power", Power);
  for (const char* name : {"float32", "float64"}) AddSpecial("numpy", "", name, Convert);
  AddSpecial("numpy", "", "prod", Product);
}

}  // namespace frametap
