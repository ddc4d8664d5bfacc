// NumberExpr: arithmetic on numbers (sizes, arguments) that are read when it is evaluated. Guards are made of it.
//   E1  Evaluate neither throws nor allocates, and takes a few nanoseconds an operation.
//   E2  Where Python would raise, or its result needs more than 64 bits, there is no result.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/graph/builtin_op.h"

namespace frametap {

class NumberExpr {
 public:
  static constexpr size_t kDeepest = 16;     // operands that wait at a time
  static constexpr size_t kMostTerms = 100;  // what is computed once in a graph may stand here many times

  // In postfix order. Returns false if it is too deep or too long; the expression is of no use then.
  bool PushConstant(const Number& number);
  bool PushInput(uint32_t input);
  bool Push(BuiltinOp op);  // on numbers

  bool is_constant() const { return terms_.size() == 1 && terms_[0].op == BuiltinOp::kNone && !terms_[0].is_input; }
  const Number& constant() const { return terms_[0].constant; }
  bool has_floats() const;                                             // a constant or result inside of it is one
  bool Evaluate(const Number* inputs, Number* result) const noexcept;  // returns false by E2
  // The same for inputs that are all ints, of an expression without floats. Most guards are on sizes.
  bool EvaluateInts(const int64_t* inputs, int64_t* result) const noexcept;
  // As Python would write it, with these names for the inputs: "L.x.size(0) // 2".
  std::string Text(const std::vector<std::string>& names) const;

  friend bool operator==(const NumberExpr&, const NumberExpr&) = default;

 private:
  struct Term {
    friend bool operator==(const Term&, const Term&) = default;

    BuiltinOp op = BuiltinOp::kNone;  // kNone: an operand
    bool is_input = false;
    uint32_t input = 0;
    Number constant;
  };
  bool PushOperand(Term term);

  std::vector<Term> terms_;
  size_t depth_ = 0;
};

std::string ToString(const Number& number);

}  // namespace frametap
