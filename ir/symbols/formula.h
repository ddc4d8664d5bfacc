// Formula: an integer in terms of symbols, in canonical form. It is a sum of products of symbols and of operations
// that no rule takes apart. Equal sums are equal texts: `n + n` and `2*n`, `(n - 1)//2//2` and `(n - 1)//4`.
//   F1  Where the operations it was made of have a value in Python, the formula has the same. (It may have one where
//       they have none: `n//n` is 1.)
// Not here: which formula a size has, how long one may be (text/symbolic_sizes.h); numbers of guards (number_expr.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace frametap {

class Formula {
 public:
  static Formula Constant(int64_t value);
  // `natural`: it is never negative.
  static Formula Symbol(std::string name, bool natural);
  // Applies an op on ints; `b` is ignored by ops of one operand. Returns none for another op, a division by zero, and a
  // constant of more than 64 bits. Also returns none if the product of two sums has too many terms.
  static std::optional<Formula> Of(BuiltinOp op, const Formula& a, const Formula& b);

  std::optional<int64_t> constant() const;
  bool natural() const;  // never negative, whatever its symbols are
  size_t nodes() const;  // symbols, constants and operations in its text
  std::string Text() const;
  // Evaluates it with these values of its symbols (none if unknown). Returns none if Python would raise, or if more
  // than 64 bits are needed.
  using Values = std::function<std::optional<int64_t>(const std::string& symbol)>;
  std::optional<int64_t> Evaluate(const Values& values) const;

  friend bool operator==(const Formula& a, const Formula& b);

 private:
  struct Atom;
  struct Terms;  // as the simplifier knows it
  using AtomPtr = std::shared_ptr<const Atom>;
  struct Term {
    int64_t factor = 0;          // not 0
    std::vector<AtomPtr> atoms;  // by their texts; none: a constant
  };

  static std::optional<Formula> Sum(const Formula& a, const Formula& b, int64_t sign);
  static std::optional<Formula> Product(const Formula& a, const Formula& b);
  static std::optional<Formula> FloorDiv(const Formula& a, const Formula& b);
  static std::optional<Formula> Mod(const Formula& a, const Formula& b);
  static bool IsAtMost(const Formula& a, const Formula& b);
  static std::optional<Formula> Extreme(BuiltinOp op, const Formula& a, const Formula& b);
  static std::optional<Formula> Opaque(BuiltinOp op, const Formula& a, const Formula& b);
  static std::string TextOf(const Term& term);  // without its sign
  // What `by` (of one term) divides term by term, and what is left.
  static bool Cancel(Formula* a, Formula* b);  // `b` has one term
  static bool Split(const Formula& a, const Term& by, Formula* quotient, Formula* rest);
  const Atom* only_atom() const;  // the formula is that atom; null if it is another
  bool is_factor() const;         // it may stand in a product or quotient without parentheses
  void Add(Term term, bool* overflow);

  std::vector<Term> terms_;
};

}  // namespace frametap
