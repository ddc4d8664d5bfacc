// BuiltinOp: ops that are no dispatcher ops. One row an op; names, arity and meaning come from the row.
//   C1  The result is the one Python gives for exact ints and floats, to the bit; where int64 or IEEE cannot give it,
//       there is none.
//   C2  Int ops take ints and bools; float ops take those and floats.
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "ir/graph/graph.h"

namespace frametap {

struct ScalarRow {
  BuiltinOp op;
  const char* name;  // "int.add"
  size_t arity;
  Type::Kind result;     // kNone: as the list's elements
  Type::Kind operands;   // kInt excludes floats, kFloat takes any number, kNone also takes other values
  const char* notation;  // in Python: " + " between the operands, or the function's name; null if there is none
};

const ScalarRow& RowOf(BuiltinOp op);  // not for kNone
// Of an int op of two arguments. That two sizes are broadcast with each other does, where it succeeds.
bool Commutes(BuiltinOp op);
// Whether the result of an op is an int that is never negative, by whether its operands are such ints.
bool GivesNatural(BuiltinOp op, bool a, bool b);
std::optional<BuiltinOp> ParseScalarOp(const std::string& name);

// A Python number: an exact int of 64 bits, or a float.
struct Number {
  bool is_float = false;
  int64_t i = 0;
  double f = 0;

  static Number Int(int64_t value) { return {false, value, 0}; }
  static Number Float(double value) { return {true, 0, value}; }
  double as_float() const { return is_float ? f : static_cast<double>(i); }
  friend bool operator==(const Number&, const Number&) = default;
};

// round(x, n) is computed for so many decimal places.
inline constexpr int64_t kMostDecimals = 100;

// The ops on numbers (not kListItem, kSize, and what is taken for granted). `b` is ignored by ops of one argument. Returns false
// where there is no result: Python raises there, or gives a complex number or an int of more than 64 bits.
bool Compute(BuiltinOp op, const Number& a, const Number& b, Number* result) noexcept;
// The same for an op from ints to an int; none where that has no result. Guards compute the usual ones, which are inline.
inline std::optional<int64_t> ComputeInts(BuiltinOp op, int64_t a, int64_t b) noexcept {
  Number result;
  switch (op) {
    case BuiltinOp::kIntAdd:
      return __builtin_add_overflow(a, b, &a) ? std::nullopt : std::optional(a);
    case BuiltinOp::kIntSub:
      return __builtin_sub_overflow(a, b, &a) ? std::nullopt : std::optional(a);
    case BuiltinOp::kIntMul:
      return __builtin_mul_overflow(a, b, &a) ? std::nullopt : std::optional(a);
    default:
      if (!Compute(op, Number::Int(a), Number::Int(b), &result)) return std::nullopt;
      return result.i;
  }
}

// An op on numbers has no result (Compute). Plain Python runs the call then.
struct NoResult : std::domain_error {
  using std::domain_error::domain_error;
};

// Refuses what is not as it was when this was recorded.
inline bool IsAssumption(BuiltinOp op) { return op == BuiltinOp::kContiguous || op == BuiltinOp::kAnother; }

// Python raises for some operands (int(inf), 10.0 ** 400), and the guards do not say that these are others.
bool MayRaise(BuiltinOp op);
// Has a result for all operands of its types.
bool IsTotal(BuiltinOp op);

// An assumption of a graph about a value that is made on the way does not hold.
struct AssumptionFails : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Any op; throws where Compute has no result.
c10::IValue Evaluate(BuiltinOp op, const c10::IValue& a, const c10::IValue& b);

}  // namespace frametap
