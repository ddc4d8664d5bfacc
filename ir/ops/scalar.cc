#include "ir/ops/scalar.h"

#include <c10/util/Exception.h>

#include <iterator>

namespace frametap {
namespace {

constexpr ScalarRow kRows[] = {
    {ScalarOp::kNone, "?", 0, Type::Kind::kNone},
    {ScalarOp::kIntAdd, "int.add", 2, Type::Kind::kInt},
    {ScalarOp::kIntSub, "int.sub", 2, Type::Kind::kInt},
    {ScalarOp::kIntMul, "int.mul", 2, Type::Kind::kInt},
    {ScalarOp::kIntNeg, "int.neg", 1, Type::Kind::kInt},
    {ScalarOp::kFloatAdd, "float.add", 2, Type::Kind::kFloat},
    {ScalarOp::kFloatSub, "float.sub", 2, Type::Kind::kFloat},
    {ScalarOp::kFloatMul, "float.mul", 2, Type::Kind::kFloat},
    {ScalarOp::kFloatDiv, "float.div", 2, Type::Kind::kFloat},
    {ScalarOp::kFloatNeg, "float.neg", 1, Type::Kind::kFloat},
    {ScalarOp::kListItem, "list.item", 2, Type::Kind::kNone},
};

constexpr bool RowsAreInOrder() {
  for (size_t i = 0; i < std::size(kRows); ++i) {
    if (static_cast<size_t>(kRows[i].op) != i) return false;
  }
  return true;
}
static_assert(RowsAreInOrder());
static_assert(std::size(kRows) == static_cast<size_t>(ScalarOp::kListItem) + 1);

int64_t Int(const c10::IValue& v) { return v.isBool() ? int64_t{v.toBool()} : v.toInt(); }

double Float(const c10::IValue& v) { return v.isDouble() ? v.toDouble() : static_cast<double>(Int(v)); }

template <class Checked>
int64_t Exact(Checked operation, int64_t a, int64_t b) {
  int64_t result = 0;
  if (operation(a, b, &result)) throw IntOverflow("the result of an integer operation does not fit 64 bits");
  return result;
}

}  // namespace

const ScalarRow& RowOf(ScalarOp op) { return kRows[static_cast<size_t>(op)]; }

std::optional<ScalarOp> ParseScalarOp(const std::string& name) {
  for (const ScalarRow& row : kRows) {
    if (row.op != ScalarOp::kNone && name == row.name) return row.op;
  }
  return std::nullopt;
}

c10::IValue Evaluate(ScalarOp op, const c10::IValue& a, const c10::IValue& b) {
  switch (op) {
    case ScalarOp::kIntAdd:
      return Exact([](int64_t x, int64_t y, int64_t* r) { return __builtin_add_overflow(x, y, r); }, Int(a), Int(b));
    case ScalarOp::kIntSub:
      return Exact([](int64_t x, int64_t y, int64_t* r) { return __builtin_sub_overflow(x, y, r); }, Int(a), Int(b));
    case ScalarOp::kIntMul:
      return Exact([](int64_t x, int64_t y, int64_t* r) { return __builtin_mul_overflow(x, y, r); }, Int(a), Int(b));
    case ScalarOp::kIntNeg:
      return Exact([](int64_t x, int64_t y, int64_t* r) { return __builtin_sub_overflow(x, y, r); }, 0, Int(a));
    case ScalarOp::kFloatAdd:
      return Float(a) + Float(b);
    case ScalarOp::kFloatSub:
      return Float(a) - Float(b);
    case ScalarOp::kFloatMul:
      return Float(a) * Float(b);
    case ScalarOp::kFloatDiv:
      if (Float(b) == 0)
        throw DivisionByZero(a.isDouble() || b.isDouble() ? "float division by zero" : "division by zero");
      // Python divides two ints with one rounding; beyond 2**53 two roundings could differ.
      if (!a.isDouble() && !b.isDouble() &&
          (static_cast<int64_t>(Float(a)) != Int(a) || static_cast<int64_t>(Float(b)) != Int(b))) {
        throw IntOverflow("the quotient of two large integers needs more than a float");
      }
      return Float(a) / Float(b);
    case ScalarOp::kFloatNeg:
      return -Float(a);
    case ScalarOp::kListItem: {
      const c10::ArrayRef<c10::IValue> items = a.toListRef();
      const int64_t index = Int(b);
      TORCH_CHECK(index >= 0 && index < static_cast<int64_t>(items.size()), "list.item: a list of ", items.size(),
                  " elements has no element ", index);
      return items[static_cast<size_t>(index)];
    }
    case ScalarOp::kNone:
      break;
  }
  TORCH_INTERNAL_ASSERT(false, "not a scalar op");
}

}  // namespace frametap
