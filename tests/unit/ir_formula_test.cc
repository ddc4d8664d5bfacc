// Formulas against what the operations they are made of come to, over many trees of operations.
#include "ir/symbols/formula.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "ir/graph/builtin_op.h"
#include "ir/text/size_reader.h"

namespace frametap {
namespace {

Formula Symbol(const char* name) { return Formula::Symbol(name, true); }

Formula Make(BuiltinOp op, const Formula& a, const Formula& b = Formula::Constant(0)) {
  const std::optional<Formula> out = Formula::Of(op, a, b);
  EXPECT_TRUE(out.has_value());
  return out.value_or(Formula::Constant(0));
}

Formula Add(const Formula& a, int64_t b) { return Make(BuiltinOp::kIntAdd, a, Formula::Constant(b)); }
Formula Times(const Formula& a, int64_t b) { return Make(BuiltinOp::kIntMul, a, Formula::Constant(b)); }
Formula Half(const Formula& a) { return Make(BuiltinOp::kIntFloorDiv, a, Formula::Constant(2)); }
Formula Mod(const Formula& a, int64_t b) { return Make(BuiltinOp::kIntMod, a, Formula::Constant(b)); }

TEST(Formula, IsCanonical) {
  const Formula a = Symbol("a"), b = Symbol("b");
  EXPECT_EQ(Make(BuiltinOp::kIntAdd, a, a).Text(), "2*a");
  EXPECT_EQ(Make(BuiltinOp::kIntSub, a, a).Text(), "0");
  EXPECT_EQ(Make(BuiltinOp::kIntMul, b, a).Text(), "a*b");
  EXPECT_EQ(Make(BuiltinOp::kIntSub, Formula::Constant(8), a).Text(), "8 - a");
  EXPECT_EQ(Add(Half(Add(a, -1)), 1).Text(), "(a + 1)//2");
  EXPECT_EQ(Add(Half(a), 1).Text(), "a//2 + 1");
  EXPECT_EQ(Half(Add(Times(a, 2), 3)).Text(), "a + 1");
  EXPECT_EQ(Half(Half(Add(a, -1))).Text(), "(a - 1)//4");
  EXPECT_EQ(Half(Add(Times(a, 4), 6)).Text(), "2*a + 3");
  EXPECT_EQ(Half(Times(a, 3)).Text(), "(3*a)//2");
  EXPECT_EQ(Make(BuiltinOp::kIntFloorDiv, Make(BuiltinOp::kIntMul, a, b), b).Text(), "a");
  EXPECT_EQ(Make(BuiltinOp::kIntFloorDiv, Make(BuiltinOp::kIntMul, Add(a, 1), b), Times(b, 8)).Text(), "(a + 1)//8");
  EXPECT_EQ(Make(BuiltinOp::kIntFloorDiv, Add(Times(a, 6), 4), Formula::Constant(8)).Text(), "(3*a + 2)//4");
  EXPECT_EQ(Mod(Make(BuiltinOp::kIntSub, Formula::Constant(8), Mod(a, 8)), 8).Text(), "(-a) % 8");
  EXPECT_EQ(Make(BuiltinOp::kIntNeg, Mod(a, 8)).Text(), "-(a % 8)");
  EXPECT_EQ(Mod(Add(Times(a, 8), 3), 8).Text(), "3");
  EXPECT_EQ(Times(Half(a), 2).Text(), "2*(a//2)");
  EXPECT_EQ(Make(BuiltinOp::kIntMin, a, Half(a)).Text(), "a//2");
  EXPECT_EQ(Make(BuiltinOp::kIntMax, a, Formula::Constant(0)).Text(), "a");
  EXPECT_EQ(Make(BuiltinOp::kIntMax, Add(a, 1), a).Text(), "a + 1");
  EXPECT_EQ(Make(BuiltinOp::kIntMin, a, b).Text(), "min(a, b)");
  EXPECT_EQ(Make(BuiltinOp::kIntBroadcast, a, Formula::Constant(64)).Text(), "64");
  EXPECT_EQ(Make(BuiltinOp::kIntBroadcast, b, a).Text(), "broadcast(a, b)");
  EXPECT_EQ(Make(BuiltinOp::kIntMul, Add(a, 1), Add(a, -1)).Text(), "a*a - 1");
}

TEST(Formula, GivesUpWhereThereIsNoValue) {
  const Formula a = Symbol("a");
  EXPECT_FALSE(Formula::Of(BuiltinOp::kIntFloorDiv, a, Formula::Constant(0)));
  EXPECT_FALSE(Formula::Of(BuiltinOp::kIntMod, a, Formula::Constant(0)));
  EXPECT_FALSE(Formula::Of(BuiltinOp::kIntMul, Formula::Constant(INT64_MAX), Formula::Constant(2)));
  EXPECT_FALSE(Formula::Of(BuiltinOp::kIntNeg, Formula::Constant(INT64_MIN), Formula::Constant(0)));
  EXPECT_FALSE(Formula::Of(BuiltinOp::kIntMul, Times(a, INT64_MAX), Formula::Constant(2)));
  EXPECT_FALSE(Formula::Of(BuiltinOp::kFloatAdd, a, a));
}

TEST(Formula, CountsTheNodesOfItsText) {
  const Formula a = Symbol("a"), b = Symbol("b");
  EXPECT_EQ(Formula::Constant(0).nodes(), 1u);
  EXPECT_EQ(Formula::Constant(1000000).nodes(), 1u);
  EXPECT_EQ(a.nodes(), 1u);
  EXPECT_EQ(Add(a, 1).nodes(), 3u);
  EXPECT_EQ(Make(BuiltinOp::kIntSub, Times(a, 2), b).nodes(), 5u);
  EXPECT_EQ(Make(BuiltinOp::kIntMul, a, b).nodes(), 3u);
  EXPECT_EQ(Add(Half(Add(a, 1)), 2).nodes(), 5u) << "(a + 5)//2";
  EXPECT_EQ(Make(BuiltinOp::kIntMin, a, Add(b, 1)).nodes(), 5u);
  EXPECT_EQ(Make(BuiltinOp::kIntInvert, a).nodes(), 2u);
}

// A tree of operations: what it comes to, step by step, and as a formula.
class Trees {
 public:
  explicit Trees(uint64_t seed) : random_(seed) {
    for (const char* name : {"a", "b", "c"}) {
      const bool natural = Chance(2) == 0;
      symbols_.push_back({name, natural, static_cast<int64_t>(Chance(9)) - (natural ? 0 : 4)});
      hints_[name] = symbols_.back().value;
    }
  }

  struct Tree {
    Formula formula;
    std::optional<int64_t> value;  // none: Python raises
    std::string text;
  };

  std::optional<Tree> Next(int depth) {
    if (depth == 0 || Chance(4) == 0) {
      if (Chance(2) == 0) {
        const int64_t value = static_cast<int64_t>(Chance(9)) - 3;
        return Tree{Formula::Constant(value), value, std::to_string(value)};
      }
      const Known& symbol = symbols_[Chance(symbols_.size())];
      return Tree{Formula::Symbol(symbol.name, symbol.natural), symbol.value, symbol.name};
    }
    static constexpr BuiltinOp kOps[] = {
        BuiltinOp::kIntAdd,      BuiltinOp::kIntAdd, BuiltinOp::kIntSub, BuiltinOp::kIntMul, BuiltinOp::kIntFloorDiv,
        BuiltinOp::kIntFloorDiv, BuiltinOp::kIntMod, BuiltinOp::kIntMod, BuiltinOp::kIntMin, BuiltinOp::kIntMax,
        BuiltinOp::kIntNeg,      BuiltinOp::kIntAbs, BuiltinOp::kIntXor, BuiltinOp::kIntAnd, BuiltinOp::kIntInvert,
    };
    const BuiltinOp op = kOps[Chance(std::size(kOps))];
    const std::optional<Tree> a = Next(depth - 1), b = Next(depth - 1);
    if (!a || !b) return std::nullopt;
    const std::optional<Formula> formula = Formula::Of(op, a->formula, b->formula);
    if (!formula) return std::nullopt;
    Tree out{*formula, std::nullopt, std::string(RowOf(op).name) + "(" + a->text + ", " + b->text + ")"};
    Number result;
    if (a->value && b->value && Compute(op, Number::Int(*a->value), Number::Int(*b->value), &result)) {
      out.value = result.i;
    }
    return out;
  }

  std::optional<int64_t> Evaluate(const Formula& formula) const {
    return formula.Evaluate([&](const std::string& name) { return std::optional(hints_.at(name)); });
  }
  const SizeHints& hints() const { return hints_; }

 private:
  struct Known {
    std::string name;
    bool natural;
    int64_t value;
  };
  size_t Chance(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }

  std::mt19937_64 random_;
  std::vector<Known> symbols_;
  SizeHints hints_;
};

TEST(Formula, ComesToWhatItsOperationsComeTo) {
  int compared = 0;
  for (uint64_t seed = 0; seed < 40000; ++seed) {
    Trees trees(seed);
    const std::optional<Trees::Tree> tree = trees.Next(4);
    if (!tree || !tree->value) continue;
    ++compared;
    const std::string text = tree->formula.Text();
    ASSERT_EQ(trees.Evaluate(tree->formula), tree->value) << "seed " << seed << ": " << tree->text << " as " << text;
    ASSERT_TRUE(!tree->formula.natural() || *tree->value >= 0) << "seed " << seed << ": " << text;
    Lexer lex(text);
    ASSERT_EQ(ReadSize(lex, trees.hints()), tree->value) << "seed " << seed << ": " << text;
    ASSERT_TRUE(lex.at_end()) << text;
  }
  EXPECT_GT(compared, 20000);
}

}  // namespace
}  // namespace frametap
