// Simplifier: the identities of integer arithmetic. Each form of integer expressions applies operations through it: sizes
// in rules (size_expr.h), formulas (formula.h), numbers of a recording (frame_eval/record/numbers/sizes.cc).
//   S1  Where the operation has a value, the result has the same value for all values of the terms. It has none if a sum
//       or product inside of it needs more than 64 bits. It may have one where the operation has none: `0*(1//n)` is 0.
//   S2  It makes an operation of two terms, or of one, only where no identity applies. A constant is the second term of
//       an operation that commutes.
// Not here: values of operations (graph/builtin_op.h).
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <utility>

#include "ir/graph/builtin_op.h"

namespace frametap {

// The terms of one form of expressions.
template <class T>
concept IntTerms = requires(T terms, const typename T::Term& term, BuiltinOp op, int64_t number) {
  { terms.Constant(number) } -> std::same_as<typename T::Term>;
  { terms.ConstantOf(term) } -> std::same_as<std::optional<int64_t>>;
  { terms.IsNatural(term) } -> std::same_as<bool>;  // it is never negative where it has a value
  { terms.OperandsOf(op, term)->first } -> std::convertible_to<typename T::Term>;  // none unless `op` made the term
  // The second term of an op of one operand is 0. Returns none if the form cannot hold the result.
  { terms.Make(op, term, term) } -> std::same_as<std::optional<typename T::Term>>;
  { term == term } -> std::convertible_to<bool>;
};

template <IntTerms Terms>
class Simplifier {
 public:
  using Term = typename Terms::Term;
  using Result = std::optional<Term>;

  explicit Simplifier(Terms& terms) : terms_(terms) {}

  // Applies an op from ints to an int. Returns none if these constants have no result.
  Result Apply(BuiltinOp op, const Term& a, const Term& b) {
    const bool is_unary = RowOf(op).arity == 1;
    const std::optional<int64_t> x = terms_.ConstantOf(a), y = is_unary ? 0 : terms_.ConstantOf(b);
    if (x && y) {
      const std::optional<int64_t> value = ComputeInts(op, *x, *y);
      return value ? Result(terms_.Constant(*value)) : std::nullopt;
    }
    if (is_unary) {
      if (op == BuiltinOp::kIntAbs && terms_.IsNatural(a)) return a;
      return terms_.Make(op, a, terms_.Constant(0));
    }
    return x && Commutes(op) ? ApplyInOrder(op, b, a, x) : ApplyInOrder(op, a, b, y);
  }

 private:
  // `c` is `b` if that is a constant; not both are.
  Result ApplyInOrder(BuiltinOp op, const Term& a, const Term& b, std::optional<int64_t> c) {
    Result simpler = Identity(op, a, b, c);
    if (!simpler && c && IsSmall(*c)) simpler = Gather(op, a, *c);
    return simpler ? simpler : terms_.Make(op, a, b);
  }

  // Most results of size rules reduce to one of their terms, as sizes pass through many ops.
  Result Identity(BuiltinOp op, const Term& a, const Term& b, std::optional<int64_t> c) {
    switch (op) {
      case BuiltinOp::kIntAdd:
        if (c == 0) return a;
        if (const auto& made = terms_.OperandsOf(BuiltinOp::kIntSub, a); made && made->second == b) {
          return made->first;  // a - b + b
        }
        break;
      case BuiltinOp::kIntSub:
        if (c == 0) return a;
        if (a == b) return terms_.Constant(0);
        if (const auto& made = terms_.OperandsOf(BuiltinOp::kIntAdd, a)) {
          if (made->second == b) return made->first;  // a + b - b
          if (made->first == b) return made->second;
        }
        break;
      case BuiltinOp::kIntMul:
        if (c == 1) return a;
        if (c == 0) return b;
        break;
      case BuiltinOp::kIntFloorDiv:
        if (c == 1) return a;
        if (c && c != 0) {
          if (const auto& made = terms_.OperandsOf(BuiltinOp::kIntMul, a); made && made->second == b)
            return made->first;
        }
        break;
      case BuiltinOp::kIntMod:
        if (c == 1) return terms_.Constant(0);
        break;
      case BuiltinOp::kIntMin:
      case BuiltinOp::kIntMax:
        if (c && *c <= 0 && terms_.IsNatural(a)) return op == BuiltinOp::kIntMax ? a : b;
        return Idempotent(op, a, b);
      case BuiltinOp::kIntBroadcast:
        if (c) return c == 1 ? a : b;  // the other is as large, or 1
        return Idempotent(op, a, b);
      default:
        break;
    }
    return std::nullopt;
  }

  // An operation of a term with itself, or with an operation that has the term as an operand.
  Result Idempotent(BuiltinOp op, const Term& a, const Term& b) {
    if (a == b || Contains(op, a, b)) return a;
    return Contains(op, b, a) ? Result(b) : std::nullopt;
  }

  bool Contains(BuiltinOp op, const Term& whole, const Term& part) {
    const auto& made = terms_.OperandsOf(op, whole);
    return made && (made->first == part || made->second == part || Contains(op, made->first, part));
  }

  // Products of such constants have 64 bits.
  static bool IsSmall(int64_t c) { return c > -(int64_t{1} << 31) && c < int64_t{1} << 31; }

  // The operands of a term that `op` made of another term and a small constant.
  std::optional<std::pair<Term, int64_t>> SmallOf(BuiltinOp op, const Term& term) {
    const auto& made = terms_.OperandsOf(op, term);
    const std::optional<int64_t> c = made ? terms_.ConstantOf(made->second) : std::nullopt;
    return c && IsSmall(*c) ? std::optional(std::pair(made->first, *c)) : std::nullopt;
  }

  // Brings constants together, so that successive steps of layers are one step: (n - 2)//2 + 1 is n//2, and that again by
  // two is n//4. Returns none if there are none to bring together.
  Result Gather(BuiltinOp op, const Term& a, int64_t c) {
    const auto apply = [&](BuiltinOp next, const Result& term, int64_t by) {
      return term ? Apply(next, *term, terms_.Constant(by)) : std::nullopt;
    };
    switch (op) {
      case BuiltinOp::kIntSub:
        return apply(BuiltinOp::kIntAdd, a, -c);
      case BuiltinOp::kIntAdd:
        if (const auto sum = SmallOf(op, a)) return apply(op, sum->first, sum->second + c);
        if (const auto quotient = SmallOf(BuiltinOp::kIntFloorDiv, a)) {
          const int64_t by = quotient->second;
          return apply(BuiltinOp::kIntFloorDiv, apply(op, quotient->first, c * by), by);
        }
        break;
      case BuiltinOp::kIntMul:
        if (const auto product = SmallOf(op, a)) return apply(op, product->first, product->second * c);
        if (const auto sum = SmallOf(BuiltinOp::kIntAdd, a)) {
          return apply(BuiltinOp::kIntAdd, apply(op, sum->first, c), sum->second * c);
        }
        break;
      case BuiltinOp::kIntFloorDiv:
        if (c <= 0) break;
        if (const auto quotient = SmallOf(op, a)) return apply(op, quotient->first, quotient->second * c);
        if (const auto product = SmallOf(BuiltinOp::kIntMul, a); product && product->second % c == 0) {
          return apply(BuiltinOp::kIntMul, product->first, product->second / c);
        }
        break;
      default:
        break;
    }
    return std::nullopt;
  }

  Terms& terms_;
};

}  // namespace frametap
