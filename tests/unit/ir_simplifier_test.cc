// Expressions of many operations, against the values that the operations have one by one.
// Laws: simplifier/S1, simplifier/S2
#include "ir/symbols/simplifier.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ir/symbols/size_expr.h"

namespace frametap {
namespace {

constexpr auto kAdd = BuiltinOp::kIntAdd, kSub = BuiltinOp::kIntSub, kMul = BuiltinOp::kIntMul,
               kDiv = BuiltinOp::kIntFloorDiv, kMod = BuiltinOp::kIntMod, kMin = BuiltinOp::kIntMin,
               kMax = BuiltinOp::kIntMax, kBroadcast = BuiltinOp::kIntBroadcast;

// Numbers that are arguments of a node: value n of the graph is `values[n]`, natural if n is even.
struct Arguments {
  std::vector<int64_t> values;

  static SizeExpr Number(uint32_t n) { return SizeExpr::Value(ValueId(n), n % 2 == 0); }

  std::optional<int64_t> ValueOf(const SizeExpr& e) const {
    if (e.kind == SizeExpr::Kind::kConst) return e.number;
    if (e.kind == SizeExpr::Kind::kValue) return values[e.value.raw()];
    const std::optional<int64_t> a = ValueOf(e.operands->first), b = ValueOf(e.operands->second);
    return a && b ? ComputeInts(e.op, *a, *b) : std::nullopt;
  }
};

std::string Text(const SizeExpr& e) {
  if (e.kind == SizeExpr::Kind::kConst) return absl::StrCat(e.number);
  if (e.kind == SizeExpr::Kind::kValue) return std::string(1, static_cast<char>('a' + e.value.raw()));
  return absl::StrCat(RowOf(e.op).name, "(", Text(e.operands->first), ", ", Text(e.operands->second), ")");
}

// An expression that is being made, or none.
struct Made {
  std::optional<SizeExpr> expr;
  Made(int64_t n) : expr(SizeExpr::Const(n)) {}
  Made(std::optional<SizeExpr> e) : expr(std::move(e)) {}
  std::string text() const { return expr ? Text(*expr) : "none"; }
};

Made Of(BuiltinOp op, const Made& a, const Made& b) {
  return a.expr && b.expr ? Made(SizeExpr::Of(op, *a.expr, *b.expr)) : Made(std::nullopt);
}

TEST(SimplifierTest, S1_AppliesTheIdentities) {
  const Made a(Arguments::Number(0)), b(Arguments::Number(1)), c(Arguments::Number(2));
  EXPECT_EQ(Of(kDiv, 7, -2).text(), "-4");
  EXPECT_EQ(Of(kDiv, 7, 0).text(), "none");
  EXPECT_EQ(Of(kAdd, INT64_MAX, 1).text(), "none");
  EXPECT_EQ(Of(kAdd, 0, b).text(), "b");
  EXPECT_EQ(Of(kAdd, Of(kSub, a, b), b).text(), "a");
  EXPECT_EQ(Of(kAdd, Of(kAdd, b, 2), 3).text(), "int.add(b, 5)");
  EXPECT_EQ(Of(kAdd, Of(kAdd, 2, b), -2).text(), "b");
  EXPECT_EQ(Of(kAdd, Of(kDiv, b, 2), 3).text(), "int.floordiv(int.add(b, 6), 2)");
  EXPECT_EQ(Of(kSub, b, 0).text(), "b");
  EXPECT_EQ(Of(kSub, b, b).text(), "0");
  EXPECT_EQ(Of(kSub, b, 3).text(), "int.add(b, -3)");
  EXPECT_EQ(Of(kSub, 3, b).text(), "int.sub(3, b)");
  EXPECT_EQ(Of(kSub, Of(kAdd, a, b), b).text(), "a");
  EXPECT_EQ(Of(kSub, Of(kAdd, a, b), a).text(), "b");
  EXPECT_EQ(Of(kSub, b, INT64_MIN).text(), absl::StrCat("int.sub(b, ", INT64_MIN, ")"));
  EXPECT_EQ(Of(kMul, 1, b).text(), "b");
  EXPECT_EQ(Of(kMul, b, 0).text(), "0");
  EXPECT_EQ(Of(kMul, Of(kMul, b, 2), 3).text(), "int.mul(b, 6)");
  EXPECT_EQ(Of(kMul, Of(kAdd, b, 2), 3).text(), "int.add(int.mul(b, 3), 6)");
  EXPECT_EQ(Of(kDiv, b, 1).text(), "b");
  EXPECT_EQ(Of(kDiv, Of(kMul, b, -3), -3).text(), "b");
  EXPECT_EQ(Of(kDiv, Of(kMul, b, 6), 3).text(), "int.mul(b, 2)");
  EXPECT_EQ(Of(kDiv, Of(kDiv, b, 2), 3).text(), "int.floordiv(b, 6)");
  EXPECT_EQ(Of(kDiv, Of(kDiv, b, -2), 3).text(), "int.floordiv(b, -6)");
  EXPECT_EQ(Of(kDiv, Of(kDiv, b, 2), -3).text(), "int.floordiv(int.floordiv(b, 2), -3)");
  EXPECT_EQ(Of(kMod, b, 1).text(), "0");
  EXPECT_EQ(Of(kMod, b, -1).text(), "int.mod(b, -1)");
  EXPECT_EQ(Of(kMax, 0, a).text(), "a");
  EXPECT_EQ(Of(kMax, 0, b).text(), "int.max(b, 0)");
  EXPECT_EQ(Of(kMin, a, -2).text(), "-2");
  EXPECT_EQ(Of(kMin, b, b).text(), "b");
  EXPECT_EQ(Of(kMin, Of(kMin, Of(kMin, a, b), c), b).text(), "int.min(int.min(a, b), c)");
  EXPECT_EQ(Of(kMax, c, Of(kMax, a, c)).text(), "int.max(a, c)");
  EXPECT_EQ(Of(kBroadcast, 1, a).text(), "a");
  EXPECT_EQ(Of(kBroadcast, a, 64).text(), "64");
  EXPECT_EQ(Of(kBroadcast, a, a).text(), "a");
  EXPECT_EQ(Of(kBroadcast, Of(kBroadcast, a, c), a).text(), "int.broadcast(a, c)");
}

// Random expressions of numbers up to `largest`.
class Random {
 public:
  Random(uint64_t seed, int64_t largest) : random_(seed), largest_(largest) {
    for (uint32_t n = 0; n < 4; ++n) arguments.values.push_back(n % 2 == 0 ? std::abs(Int()) : Int());
  }

  struct Tree {
    std::optional<SizeExpr> expr;
    std::optional<int64_t> value;  // of the operations, one by one
    std::string text;
  };

  Tree Next(int depth) {
    if (depth == 0 || Below(4) == 0) {
      const auto n = static_cast<uint32_t>(Below(arguments.values.size()));
      const SizeExpr leaf = Below(2) == 0 ? SizeExpr::Const(Int()) : Arguments::Number(n);
      return {leaf, arguments.ValueOf(leaf), Text(leaf)};
    }
    static constexpr BuiltinOp kOps[] = {kAdd, kAdd, kSub, kMul, kDiv, kDiv, kMod, kMin, kMax, kBroadcast};
    const BuiltinOp op = kOps[Below(std::size(kOps))];
    const Tree a = Next(depth - 1), b = Below(4) == 0 ? a : Next(depth - 1);
    Tree out{std::nullopt, std::nullopt, absl::StrCat(RowOf(op).name, "(", a.text, ", ", b.text, ")")};
    if (a.expr && b.expr) out.expr = SizeExpr::Of(op, *a.expr, *b.expr);
    const bool succeeds = op != kBroadcast || a.value == b.value || a.value == 1 || b.value == 1;
    if (a.value && b.value && succeeds) out.value = ComputeInts(op, *a.value, *b.value);
    return out;
  }

  Arguments arguments;

 private:
  size_t Below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }
  int64_t Int() {
    const int64_t small = static_cast<int64_t>(Below(9)) - 4;
    return Below(2) == 0 ? small : std::uniform_int_distribution<int64_t>(-largest_, largest_)(random_);
  }

  std::mt19937_64 random_;
  int64_t largest_;
};

TEST(SimplifierTest, S1_TheResultHasTheValueOfTheOperations) {
  int compared = 0, shorter = 0;
  for (uint64_t seed = 0; seed < 60000; ++seed) {
    Random random(seed, 9);
    const Random::Tree tree = random.Next(4);
    if (!tree.value) continue;
    ASSERT_TRUE(tree.expr) << "seed " << seed << ": " << tree.text;
    const std::string text = Text(*tree.expr);
    ++compared;
    shorter += text.size() < tree.text.size();
    ASSERT_EQ(random.arguments.ValueOf(*tree.expr), tree.value)
        << "seed " << seed << ": " << tree.text << " as " << text;
    ASSERT_TRUE(!tree.expr->natural || *tree.value >= 0) << "seed " << seed << ": " << text;
  }
  EXPECT_GT(compared, 30000);
  EXPECT_GT(shorter, compared / 3);
}

TEST(SimplifierTest, S1_AnOverflowOnTheWayLeavesNoOtherValue) {
  int compared = 0, overflows = 0;
  for (uint64_t seed = 0; seed < 60000; ++seed) {
    Random random(seed, std::numeric_limits<int64_t>::max() >> (seed % 48));
    const Random::Tree tree = random.Next(4);
    if (!tree.value || !tree.expr) continue;
    const std::optional<int64_t> value = random.arguments.ValueOf(*tree.expr);
    ++compared;
    overflows += !value;
    ASSERT_TRUE(!value || value == tree.value) << "seed " << seed << ": " << tree.text << " as " << Text(*tree.expr);
  }
  EXPECT_GT(compared, 20000);
  EXPECT_LT(overflows, compared / 100);
}

Made Again(const SizeExpr& e) {
  return e.kind == SizeExpr::Kind::kOp ? Of(e.op, Again(e.operands->first), Again(e.operands->second)) : Made(e);
}

TEST(SimplifierTest, S2_NoIdentityAppliesToAResult) {
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed, 9);
    const Random::Tree tree = random.Next(5);
    if (!tree.expr) continue;
    ASSERT_EQ(Again(*tree.expr).text(), Text(*tree.expr)) << "seed " << seed << ": " << tree.text;
  }
}

}  // namespace
}  // namespace frametap
