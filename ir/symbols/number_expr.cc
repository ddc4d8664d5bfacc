#include "ir/symbols/number_expr.h"

#include "absl/strings/str_cat.h"
#include "ir/graph/literal.h"

namespace frametap {

std::string ToString(const Number& number) { return number.is_float ? FloatText(number.f) : absl::StrCat(number.i); }

bool NumberExpr::PushOperand(Term term) {
  if (depth_ == kDeepest || terms_.size() == kMostTerms) return false;
  ++depth_;
  terms_.push_back(term);
  return true;
}

bool NumberExpr::PushConstant(const Number& number) { return PushOperand({BuiltinOp::kNone, false, 0, number}); }

bool NumberExpr::PushInput(uint32_t input) { return PushOperand({BuiltinOp::kNone, true, input, Number()}); }

bool NumberExpr::Push(BuiltinOp op) {
  const size_t arity = RowOf(op).arity;
  if (depth_ < arity || terms_.size() == kMostTerms || RowOf(op).operands == Type::Kind::kNone) return false;
  depth_ -= arity - 1;
  terms_.push_back({op, false, 0, Number()});
  return true;
}

bool NumberExpr::has_floats() const {
  for (const Term& term : terms_) {
    if (term.op == BuiltinOp::kNone ? term.constant.is_float : RowOf(term.op).result == Type::Kind::kFloat) return true;
  }
  return false;
}

bool NumberExpr::Evaluate(const Number* inputs, Number* result) const noexcept {
  Number stack[kDeepest];
  size_t depth = 0;
  for (const Term& term : terms_) {
    if (term.op == BuiltinOp::kNone) {
      stack[depth++] = term.is_input ? inputs[term.input] : term.constant;
      continue;
    }
    const Number b = RowOf(term.op).arity == 2 ? stack[--depth] : Number();
    if (!Compute(term.op, stack[depth - 1], b, &stack[depth - 1])) return false;
  }
  *result = stack[0];
  return depth == 1;
}

bool NumberExpr::EvaluateInts(const int64_t* inputs, int64_t* result) const noexcept {
  int64_t stack[kDeepest];
  size_t depth = 0;
  for (const Term& term : terms_) {
    if (term.op == BuiltinOp::kNone) {
      stack[depth++] = term.is_input ? inputs[term.input] : term.constant.i;
      continue;
    }
    const int64_t b = RowOf(term.op).arity == 2 ? stack[--depth] : 0;
    const std::optional<int64_t> value = ComputeInts(term.op, stack[depth - 1], b);
    if (!value) return false;
    stack[depth - 1] = *value;
  }
  *result = stack[0];
  return depth == 1;
}

std::string NumberExpr::Text(const std::vector<std::string>& names) const {
  struct Part {
    std::string text;
    bool is_compound = false;
    std::string Inside() const { return is_compound ? absl::StrCat("(", text, ")") : text; }
  };
  std::vector<Part> stack;
  for (const Term& term : terms_) {
    if (term.op == BuiltinOp::kNone) {
      stack.push_back({term.is_input ? names[term.input] : ToString(term.constant), false});
      continue;
    }
    Part b;
    if (RowOf(term.op).arity == 2) {
      b = std::move(stack.back());
      stack.pop_back();
    }
    Part& a = stack.back();
    const char* const notation = RowOf(term.op).notation;  // ops on numbers have one
    const bool is_sum = term.op == BuiltinOp::kIntAdd;
    if (is_sum && b.text.size() > 1 && b.text[0] == '-' && !b.is_compound) {
      a = {absl::StrCat(a.Inside(), " - ", b.text.substr(1)), true};
    } else if (notation[0] == ' ') {
      a = {absl::StrCat(a.Inside(), notation, b.Inside()), true};
    } else {
      a = {absl::StrCat(notation, "(", a.text, b.text.empty() ? "" : ", ", b.text, ")"), false};
    }
  }
  if (stack.empty()) return "";
  // In Python, these bind less than the comparison that stands beside the text.
  const BuiltinOp last = terms_.back().op;
  const bool binds_less = last == BuiltinOp::kIntAnd || last == BuiltinOp::kIntOr || last == BuiltinOp::kIntXor;
  return binds_less ? stack.back().Inside() : stack.back().text;
}

}  // namespace frametap
