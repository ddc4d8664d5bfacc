#include "ir/graph/builtin_op.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>

namespace frametap {
namespace {

using Kind = Type::Kind;

// When the result is an int that is never negative.
enum class Natural : uint8_t {
  kUnknown,
  kAlways,
  kIfBoth,    // operands are such ints
  kIfEither,  // operand is
  kIfSecond,  // operand is: it has the sign of the divisor
};
constexpr uint8_t kCommutes = 1, kMayRaise = 2, kTotal = 4;

struct Row : ScalarRow {
  Natural natural = Natural::kUnknown;
  uint8_t traits = 0;
};

constexpr Row kRows[] = {
    {{BuiltinOp::kNone, "?", 0, Kind::kNone, Kind::kNone, nullptr}},
    {{BuiltinOp::kIntAdd, "int.add", 2, Kind::kInt, Kind::kInt, " + "}, Natural::kIfBoth, kCommutes},
    {{BuiltinOp::kIntSub, "int.sub", 2, Kind::kInt, Kind::kInt, " - "}},
    {{BuiltinOp::kIntMul, "int.mul", 2, Kind::kInt, Kind::kInt, " * "}, Natural::kIfBoth, kCommutes},
    {{BuiltinOp::kIntNeg, "int.neg", 1, Kind::kInt, Kind::kInt, "-"}},
    {{BuiltinOp::kFloatAdd, "float.add", 2, Kind::kFloat, Kind::kFloat, " + "}, Natural::kUnknown, kTotal},
    {{BuiltinOp::kFloatSub, "float.sub", 2, Kind::kFloat, Kind::kFloat, " - "}, Natural::kUnknown, kTotal},
    {{BuiltinOp::kFloatMul, "float.mul", 2, Kind::kFloat, Kind::kFloat, " * "}, Natural::kUnknown, kTotal},
    {{BuiltinOp::kFloatDiv, "float.div", 2, Kind::kFloat, Kind::kFloat, " / "}},
    {{BuiltinOp::kFloatNeg, "float.neg", 1, Kind::kFloat, Kind::kFloat, "-"}, Natural::kUnknown, kTotal},
    {{BuiltinOp::kListItem, "list.item", 2, Kind::kNone, Kind::kNone, nullptr}},
    {{BuiltinOp::kIntFloorDiv, "int.floordiv", 2, Kind::kInt, Kind::kInt, " // "}, Natural::kIfBoth},
    {{BuiltinOp::kIntMod, "int.mod", 2, Kind::kInt, Kind::kInt, " % "}, Natural::kIfSecond},
    {{BuiltinOp::kIntTrueDiv, "int.truediv", 2, Kind::kFloat, Kind::kInt, " / "}},
    {{BuiltinOp::kIntMin, "int.min", 2, Kind::kInt, Kind::kInt, "min"}, Natural::kIfBoth, kCommutes | kTotal},
    {{BuiltinOp::kIntMax, "int.max", 2, Kind::kInt, Kind::kInt, "max"}, Natural::kIfEither, kCommutes | kTotal},
    {{BuiltinOp::kIntAbs, "int.abs", 1, Kind::kInt, Kind::kInt, "abs"}, Natural::kAlways},
    {{BuiltinOp::kFloatFloorDiv, "float.floordiv", 2, Kind::kFloat, Kind::kFloat, " // "}},
    {{BuiltinOp::kFloatMod, "float.mod", 2, Kind::kFloat, Kind::kFloat, " % "}},
    {{BuiltinOp::kFloatPow, "float.pow", 2, Kind::kFloat, Kind::kFloat, " ** "}, Natural::kUnknown, kMayRaise},
    {{BuiltinOp::kFloatMin, "float.min", 2, Kind::kFloat, Kind::kFloat, "min"}, Natural::kUnknown, kTotal},
    {{BuiltinOp::kFloatMax, "float.max", 2, Kind::kFloat, Kind::kFloat, "max"}, Natural::kUnknown, kTotal},
    {{BuiltinOp::kFloatAbs, "float.abs", 1, Kind::kFloat, Kind::kFloat, "abs"}, Natural::kUnknown, kTotal},
    {{BuiltinOp::kFloatSqrt, "float.sqrt", 1, Kind::kFloat, Kind::kFloat, "sqrt"}},
    {{BuiltinOp::kFloatOf, "float.of", 1, Kind::kFloat, Kind::kFloat, "float"}, Natural::kUnknown, kTotal},
    {{BuiltinOp::kIntOf, "int.of", 1, Kind::kInt, Kind::kFloat, "int"}, Natural::kUnknown, kMayRaise},
    {{BuiltinOp::kIntFloor, "int.floor", 1, Kind::kInt, Kind::kFloat, "floor"}, Natural::kUnknown, kMayRaise},
    {{BuiltinOp::kIntCeil, "int.ceil", 1, Kind::kInt, Kind::kFloat, "ceil"}, Natural::kUnknown, kMayRaise},
    {{BuiltinOp::kIntRound, "int.round", 1, Kind::kInt, Kind::kFloat, "round"}, Natural::kUnknown, kMayRaise},
    {{BuiltinOp::kFloatRound, "float.round", 2, Kind::kFloat, Kind::kFloat, "round"}, Natural::kUnknown, kTotal},
    {{BuiltinOp::kIntPow, "int.pow", 2, Kind::kInt, Kind::kInt, " ** "}},
    {{BuiltinOp::kIntAnd, "int.and", 2, Kind::kInt, Kind::kInt, " & "}, Natural::kUnknown, kCommutes | kTotal},
    {{BuiltinOp::kIntOr, "int.or", 2, Kind::kInt, Kind::kInt, " | "}, Natural::kUnknown, kCommutes | kTotal},
    {{BuiltinOp::kIntXor, "int.xor", 2, Kind::kInt, Kind::kInt, " ^ "}, Natural::kUnknown, kCommutes | kTotal},
    {{BuiltinOp::kIntLshift, "int.lshift", 2, Kind::kInt, Kind::kInt, " << "}},
    {{BuiltinOp::kIntRshift, "int.rshift", 2, Kind::kInt, Kind::kInt, " >> "}},
    {{BuiltinOp::kIntInvert, "int.invert", 1, Kind::kInt, Kind::kInt, "~"}, Natural::kUnknown, kTotal},
    {{BuiltinOp::kFloatExp, "float.exp", 1, Kind::kFloat, Kind::kFloat, "exp"}, Natural::kUnknown, kMayRaise},
    {{BuiltinOp::kFloatLog, "float.log", 1, Kind::kFloat, Kind::kFloat, "log"}},
    {{BuiltinOp::kFloatLog2, "float.log2", 1, Kind::kFloat, Kind::kFloat, "log2"}},
    {{BuiltinOp::kFloatCos, "float.cos", 1, Kind::kFloat, Kind::kFloat, "cos"}, Natural::kUnknown, kMayRaise},
    {{BuiltinOp::kFloatSin, "float.sin", 1, Kind::kFloat, Kind::kFloat, "sin"}, Natural::kUnknown, kMayRaise},
    {{BuiltinOp::kIntBroadcast, "int.broadcast", 2, Kind::kInt, Kind::kInt, "broadcast"},
     Natural::kIfBoth,
     kCommutes | kTotal},
    {{BuiltinOp::kSize, "size", 2, Kind::kInt, Kind::kNone, nullptr}, Natural::kAlways, kTotal},
    {{BuiltinOp::kContiguous, "contiguous", 1, Kind::kBool, Kind::kNone, nullptr}},
    {{BuiltinOp::kAnother, "another", 2, Kind::kBool, Kind::kNone, nullptr}},
};

constexpr bool RowsAreInOrder() {
  for (size_t i = 0; i < std::size(kRows); ++i) {
    if (static_cast<size_t>(kRows[i].op) != i) return false;
  }
  return true;
}
static_assert(RowsAreInOrder());
static_assert(std::size(kRows) == static_cast<size_t>(BuiltinOp::kAnother) + 1);

const Row& WholeRowOf(BuiltinOp op) { return kRows[static_cast<size_t>(op)]; }

bool GiveInt(int64_t value, Number* result) {
  *result = Number::Int(value);
  return true;
}

bool Give(double value, Number* result) {
  *result = Number::Float(value);
  return true;
}

// A result that is not finite although the operands are: Python raises OverflowError for powers.
bool GiveFinite(double value, const Number& a, const Number& b, Number* result) {
  const bool operands = std::isfinite(a.as_float()) && std::isfinite(b.as_float());
  return (!operands || std::isfinite(value)) && Give(value, result);
}

bool IsExactAsFloat(int64_t value) {
  constexpr int64_t kExact = int64_t{1} << std::numeric_limits<double>::digits;
  return value >= -kExact && value <= kExact;
}

bool ToInt(double value, Number* result) {
  if (!(value > -0x1p63 && value < 0x1p63)) return false;  // nan as well
  *result = Number::Int(static_cast<int64_t>(value));
  return true;
}

// As CPython's floatobject.c: the remainder has the sign of the divisor, the quotient is the floor of the exact one.
void FloatDivMod(double a, double b, double* quotient, double* remainder) {
  double mod = std::fmod(a, b);
  double div = (a - mod) / b;
  if (mod != 0) {
    if ((b < 0) != (mod < 0)) {
      mod += b;
      div -= 1.0;
    }
  } else {
    mod = std::copysign(0.0, b);
  }
  double floor = std::copysign(0.0, a / b);
  if (div != 0) {
    floor = std::floor(div);
    if (div - floor > 0.5) floor += 1.0;
  }
  *quotient = floor;
  *remainder = mod;
}

Number NumberOf(const c10::IValue& v) {
  if (v.isDouble()) return Number::Float(v.toDouble());
  return Number::Int(v.isBool() ? int64_t{v.toBool()} : v.isNone() ? 0 : v.toInt());
}

// Returns the double that is nearest to the decimal number with so many places, as Python does: the exact value is rounded
// to even where it is halfway.
double ToDecimals(double x, int places) {
  if (!std::isfinite(x)) return x;
  std::array<char, std::numeric_limits<double>::max_exponent10 + kMostDecimals + 4> text;  // sign, first digit, point
  const auto written = std::to_chars(text.data(), text.data() + text.size(), x, std::chars_format::fixed, places);
  TORCH_INTERNAL_ASSERT(written.ec == std::errc(), "a number is longer than its longest text");
  double rounded = 0;
  std::from_chars(text.data(), written.ptr, rounded);
  return rounded;
}

}  // namespace

const ScalarRow& RowOf(BuiltinOp op) { return WholeRowOf(op); }
bool Commutes(BuiltinOp op) { return (WholeRowOf(op).traits & kCommutes) != 0; }
bool MayRaise(BuiltinOp op) { return (WholeRowOf(op).traits & kMayRaise) != 0; }
bool IsTotal(BuiltinOp op) { return (WholeRowOf(op).traits & kTotal) != 0; }

bool GivesNatural(BuiltinOp op, bool a, bool b) {
  switch (WholeRowOf(op).natural) {
    case Natural::kUnknown:
      return false;
    case Natural::kAlways:
      return true;
    case Natural::kIfBoth:
      return a && b;
    case Natural::kIfEither:
      return a || b;
    case Natural::kIfSecond:
      return b;
  }
  return false;
}

std::optional<BuiltinOp> ParseScalarOp(const std::string& name) {
  for (const ScalarRow& row : kRows) {
    if (row.op != BuiltinOp::kNone && name == row.name) return row.op;
  }
  return std::nullopt;
}

bool Compute(BuiltinOp op, const Number& a, const Number& b, Number* result) noexcept {
  int64_t out = 0;
  switch (op) {
    case BuiltinOp::kIntAdd:
    case BuiltinOp::kIntSub:
    case BuiltinOp::kIntMul: {
      const std::optional<int64_t> value = ComputeInts(op, a.i, b.i);
      return value && GiveInt(*value, result);
    }
    case BuiltinOp::kIntNeg:
      return !__builtin_sub_overflow(int64_t{0}, a.i, &out) && GiveInt(out, result);
    case BuiltinOp::kIntAbs:
      if (a.i >= 0) return GiveInt(a.i, result);
      return !__builtin_sub_overflow(int64_t{0}, a.i, &out) && GiveInt(out, result);
    case BuiltinOp::kIntMin:  // the first of equal ones, as Python: they are the same
      return GiveInt(b.i < a.i ? b.i : a.i, result);
    case BuiltinOp::kIntMax:
      return GiveInt(b.i > a.i ? b.i : a.i, result);
    case BuiltinOp::kIntFloorDiv:
    case BuiltinOp::kIntMod: {
      if (b.i == 0) return false;
      if (b.i == -1) {  // the one quotient that may not fit
        if (op == BuiltinOp::kIntMod) return GiveInt(0, result);
        return !__builtin_sub_overflow(int64_t{0}, a.i, &out) && GiveInt(out, result);
      }
      const int64_t rest = a.i % b.i;
      const bool down = rest != 0 && (rest < 0) != (b.i < 0);
      if (op == BuiltinOp::kIntMod) return GiveInt(down ? rest + b.i : rest, result);
      return GiveInt(a.i / b.i - (down ? 1 : 0), result);
    }
    case BuiltinOp::kIntTrueDiv:
      if (b.i == 0) return false;
      // Python divides with one rounding; beyond 2**53 two roundings could differ.
      if (!IsExactAsFloat(a.i) || !IsExactAsFloat(b.i)) return false;
      return Give(static_cast<double>(a.i) / static_cast<double>(b.i), result);
    case BuiltinOp::kFloatAdd:
      return Give(a.as_float() + b.as_float(), result);
    case BuiltinOp::kFloatSub:
      return Give(a.as_float() - b.as_float(), result);
    case BuiltinOp::kFloatMul:
      return Give(a.as_float() * b.as_float(), result);
    case BuiltinOp::kFloatDiv:
      if (!a.is_float && !b.is_float) return Compute(BuiltinOp::kIntTrueDiv, a, b, result);
      if (b.as_float() == 0) return false;
      return Give(a.as_float() / b.as_float(), result);
    case BuiltinOp::kFloatNeg:
      return Give(-a.as_float(), result);
    case BuiltinOp::kFloatAbs:
      return Give(std::fabs(a.as_float()), result);
    case BuiltinOp::kFloatMin:
      return Give(b.as_float() < a.as_float() ? b.as_float() : a.as_float(), result);
    case BuiltinOp::kFloatMax:
      return Give(b.as_float() > a.as_float() ? b.as_float() : a.as_float(), result);
    case BuiltinOp::kFloatFloorDiv:
    case BuiltinOp::kFloatMod: {
      if (b.as_float() == 0) return false;
      double quotient, rest;
      FloatDivMod(a.as_float(), b.as_float(), &quotient, &rest);
      return Give(op == BuiltinOp::kFloatMod ? rest : quotient, result);
    }
    case BuiltinOp::kFloatPow: {
      const double base = a.as_float(), exponent = b.as_float();
      if (base == 0 && exponent < 0) return false;
      if (base < 0 && std::isfinite(exponent) && exponent != std::floor(exponent)) return false;
      return GiveFinite(std::pow(base, exponent), a, b, result);
    }
    case BuiltinOp::kFloatSqrt:
      if (a.as_float() < 0) return false;
      return Give(std::sqrt(a.as_float()), result);
    case BuiltinOp::kFloatOf:
      return Give(a.as_float(), result);
    case BuiltinOp::kIntOf:
      return a.is_float ? ToInt(std::trunc(a.f), result) : GiveInt(a.i, result);
    case BuiltinOp::kIntFloor:
      return a.is_float ? ToInt(std::floor(a.f), result) : GiveInt(a.i, result);
    case BuiltinOp::kIntCeil:
      return a.is_float ? ToInt(std::ceil(a.f), result) : GiveInt(a.i, result);
    case BuiltinOp::kIntRound: {
      if (!a.is_float) return GiveInt(a.i, result);
      double rounded = std::round(a.f);
      if (std::fabs(a.f - rounded) == 0.5) rounded = 2.0 * std::round(a.f / 2.0);
      return ToInt(rounded, result);
    }
    case BuiltinOp::kFloatRound:
      if (b.is_float || b.i < 0 || b.i > kMostDecimals) return false;
      return Give(ToDecimals(a.as_float(), static_cast<int>(b.i)), result);
    case BuiltinOp::kIntPow: {
      if (b.i < 0) return false;  // Python gives a float
      int64_t power = 1, square = a.i;
      for (int64_t rest = b.i; rest > 0; rest >>= 1) {
        if ((rest & 1) != 0 && __builtin_mul_overflow(power, square, &power)) return false;
        if (rest > 1 && __builtin_mul_overflow(square, square, &square)) return false;
      }
      return GiveInt(power, result);
    }
    case BuiltinOp::kIntAnd:
      return GiveInt(a.i & b.i, result);
    case BuiltinOp::kIntOr:
      return GiveInt(a.i | b.i, result);
    case BuiltinOp::kIntXor:
      return GiveInt(a.i ^ b.i, result);
    case BuiltinOp::kIntInvert:
      return GiveInt(~a.i, result);
    case BuiltinOp::kIntLshift:
      if (b.i < 0) return false;
      if (a.i == 0) return GiveInt(0, result);
      if (b.i > 62 || __builtin_mul_overflow(a.i, int64_t{1} << b.i, &out)) return false;
      return GiveInt(out, result);
    case BuiltinOp::kIntRshift:  // towards minus infinity
      if (b.i < 0) return false;
      return GiveInt(a.i >> (b.i > 63 ? 63 : b.i), result);
    case BuiltinOp::kFloatExp:
      return GiveFinite(std::exp(a.as_float()), a, a, result);
    case BuiltinOp::kFloatLog:
    case BuiltinOp::kFloatLog2:
      if (!(a.as_float() > 0)) return false;  // nan as well
      return Give(op == BuiltinOp::kFloatLog ? std::log(a.as_float()) : std::log2(a.as_float()), result);
    case BuiltinOp::kFloatCos:
    case BuiltinOp::kFloatSin:
      if (std::isinf(a.as_float())) return false;
      return Give(op == BuiltinOp::kFloatCos ? std::cos(a.as_float()) : std::sin(a.as_float()), result);
    case BuiltinOp::kIntBroadcast:
      return GiveInt(a.i == 1 ? b.i : a.i, result);
    case BuiltinOp::kNone:
    case BuiltinOp::kListItem:
    case BuiltinOp::kSize:
    case BuiltinOp::kContiguous:
    case BuiltinOp::kAnother:
      break;
  }
  return false;
}

c10::IValue Evaluate(BuiltinOp op, const c10::IValue& a, const c10::IValue& b) {
  if (op == BuiltinOp::kListItem) {
    const c10::ArrayRef<c10::IValue> items = a.toListRef();
    const int64_t index = b.toInt();
    TORCH_CHECK(index >= 0 && index < static_cast<int64_t>(items.size()), "list.item: a list of ", items.size(),
                " elements has no element ", index);
    return items[static_cast<size_t>(index)];
  }
  if (op == BuiltinOp::kSize) return a.toTensor().size(b.toInt());
  if (op == BuiltinOp::kContiguous) {
    if (!a.toTensor().is_contiguous()) throw AssumptionFails("a tensor was contiguous when this was recorded");
    return true;
  }
  if (op == BuiltinOp::kAnother) {
    if (a.toTensor().is_same(b.toTensor())) throw AssumptionFails("an op made a new tensor when this was recorded");
    return true;
  }
  TORCH_INTERNAL_ASSERT(op != BuiltinOp::kNone, "not a scalar op");
  Number result;
  if (!Compute(op, NumberOf(a), NumberOf(b), &result))
    throw NoResult("an operation on numbers has no result in the graph");
  return result.is_float ? c10::IValue(result.f) : c10::IValue(result.i);
}

}  // namespace frametap
