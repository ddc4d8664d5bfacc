#include "ir/symbols/size_expr.h"

#include "ir/symbols/simplifier.h"

namespace frametap {
namespace {

struct SizeTerms {
  using Term = SizeExpr;

  static SizeExpr Constant(int64_t number) { return SizeExpr::Const(number); }
  static std::optional<int64_t> ConstantOf(const SizeExpr& e) {
    return e.kind == SizeExpr::Kind::kConst ? std::optional(e.number) : std::nullopt;
  }
  static bool IsNatural(const SizeExpr& e) { return e.natural; }
  static const std::pair<SizeExpr, SizeExpr>* OperandsOf(BuiltinOp op, const SizeExpr& e) {
    return e.op == op ? e.operands.get() : nullptr;
  }
  static std::optional<SizeExpr> Make(BuiltinOp op, const SizeExpr& a, const SizeExpr& b) {
    return SizeExpr{SizeExpr::Kind::kOp, op, GivesNatural(op, a.natural, b.natural),
                    ValueId(),           0,  std::make_shared<const std::pair<SizeExpr, SizeExpr>>(a, b)};
  }
};

}  // namespace

SizeExpr SizeExpr::Const(int64_t number) {
  return {Kind::kConst, BuiltinOp::kNone, number >= 0, ValueId(), number, nullptr};
}
SizeExpr SizeExpr::SizeOf(ValueId tensor, int64_t dim) {
  return {Kind::kSizeOf, BuiltinOp::kNone, true, tensor, dim, nullptr};
}
SizeExpr SizeExpr::Value(ValueId value, bool natural) {
  return {Kind::kValue, BuiltinOp::kNone, natural, value, 0, nullptr};
}

std::optional<SizeExpr> SizeExpr::Of(BuiltinOp op, const SizeExpr& a, const SizeExpr& b) {
  SizeTerms terms;
  std::optional<SizeExpr> result = Simplifier(terms).Apply(op, a, b);
  if (result && GivesNatural(op, a.natural, b.natural)) result->natural = true;
  return result;
}

bool operator==(const SizeExpr& a, const SizeExpr& b) {
  return a.kind == b.kind && a.number == b.number && a.value == b.value && a.op == b.op &&
         (a.operands == b.operands || *a.operands == *b.operands);
}

}  // namespace frametap
