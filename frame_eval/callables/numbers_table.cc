// Numbers: int, float, complex, math, and operators on them, which on tensors are ops.
#include "frame_eval/callables/table.h"
#include "guards/tensor_door.h"

namespace frametap {
namespace {

// float(x), int(x), bool(x), abs, min, max, sum …: values; a tensor's value ends the segment.
void Number(Recorder& r, Call& call) {
  for (size_t i = 0; i < call.args.size(); ++i) {
    if (IsTensor(call.args[i])) throw Break{Reason::value_of_tensor, CallableName(call.callable)};
    r.ForceDeep(call.args[i], call.shadows[i], false);
  }
}

// sum, abs, round, pow, divmod: plain numbers, or tensors through their operators.
void Arithmetic(Recorder& r, Call& call) {
  bool tensors = false;
  for (PyObject* arg : call.args) {
    tensors = tensors || IsTensor(arg);
    if (PyTuple_Check(arg) || PyList_Check(arg)) {
      for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(arg); ++i) {
        tensors = tensors || IsTensor(PySequence_Fast_GET_ITEM(arg, i));
      }
    }
  }
  if (tensors) return r.TorchCall(call.note, &call, "");
  r.ForceArguments(call, 0, true);
}

}  // namespace

void LoadNumbers() {
  for (const char* name : {"int", "float"}) AddSpecial("builtins", "", name, Number, true);
  for (const char* name : {"abs", "round", "pow", "divmod", "sum"}) {
    AddSpecial("builtins", "", name, Arithmetic, true);
  }
  AddRows("builtins", "", Conduct::kPure, {"bin", "chr", "hex", "oct", "ord", "complex"});
  AddRows("builtins", "int", Conduct::kPure,
          {"bit_length", "bit_count", "conjugate", "to_bytes", "from_bytes", "as_integer_ratio", "__round__",
           "__trunc__", "__floor__", "__ceil__", "__format__", "__getnewargs__"});
  AddRows("builtins", "bool", Conduct::kPure, {"from_bytes"});
  AddRows("builtins", "float", Conduct::kPure,
          {"is_integer", "hex", "fromhex", "as_integer_ratio", "conjugate", "__round__", "__trunc__", "__floor__",
           "__ceil__", "__format__", "__getnewargs__", "__getformat__"});
  AddRows("builtins", "complex", Conduct::kPure, {"conjugate", "__format__", "__getnewargs__", "__complex__"});
  AddRows(
      "math", "", Conduct::kPure,
      {"acos",     "acosh",     "asin",      "asinh",   "atan",  "atan2", "atanh",   "cbrt",      "ceil",  "comb",
       "copysign", "cos",       "cosh",      "degrees", "dist",  "erf",   "erfc",    "exp",       "exp2",  "expm1",
       "fabs",     "factorial", "floor",     "fmod",    "frexp", "fsum",  "gamma",   "gcd",       "hypot", "isclose",
       "isfinite", "isinf",     "isnan",     "isqrt",   "lcm",   "ldexp", "lgamma",  "log",       "log10", "log1p",
       "log2",     "modf",      "nextafter", "perm",    "pow",   "prod",  "radians", "remainder", "sin",   "sinh",
       "sqrt",     "tan",       "tanh",      "trunc",   "ulp"});
  for (const char* name : {"add", "sub", "mul", "truediv", "floordiv", "mod", "neg", "pos", "matmul", "and_", "or_",
                           "xor", "invert", "inv", "pow", "abs", "lshift", "rshift"}) {
    AddSpecial("_operator", "", name, Arithmetic, true);
  }
  AddRows("_operator", "", Conduct::kPure, {"index", "length_hint"});
}

}  // namespace frametap
