#include "ir/text/size_reader.h"

#include "absl/strings/str_cat.h"
#include "ir/graph/builtin_op.h"
#include "ir/graph/literal.h"

namespace frametap {
namespace {

class SizeReader {
 public:
  SizeReader(Lexer& lex, const SizeHints& hints) : lex_(lex), hints_(hints) {}

  std::optional<int64_t> Next() { return Operation(0); }

 private:
  struct Operator {
    int level;
    BuiltinOp op;
  };
  // `//` before operators that could be taken for a part of it.
  static constexpr Operator kOperators[] = {
      {0, BuiltinOp::kIntOr},     {1, BuiltinOp::kIntXor}, {2, BuiltinOp::kIntAnd}, {3, BuiltinOp::kIntLshift},
      {3, BuiltinOp::kIntRshift}, {4, BuiltinOp::kIntAdd}, {4, BuiltinOp::kIntSub}, {5, BuiltinOp::kIntFloorDiv},
      {5, BuiltinOp::kIntMod},    {5, BuiltinOp::kIntMul}, {6, BuiltinOp::kIntPow},
  };
  static constexpr int kUnary = 6;
  static constexpr int kDeepest = 32;

  std::optional<int64_t> Apply(BuiltinOp op, std::optional<int64_t> a, std::optional<int64_t> b, size_t at) const {
    if (!a || (RowOf(op).arity == 2 && !b)) return std::nullopt;
    const std::optional<int64_t> value = ComputeInts(op, *a, b.value_or(0));
    if (!value) lex_.FailAt(at, "this size has no value: a division by zero, or more than 64 bits");
    return value;
  }

  const Operator* AcceptOperator(int level) {
    for (const Operator& op : kOperators) {
      const std::string_view notation = RowOf(op.op).notation;  // between blanks
      if (op.level == level && lex_.AcceptToken(notation.substr(1, notation.size() - 2))) return &op;
    }
    return nullptr;
  }

  std::optional<int64_t> Operation(int level) {
    const size_t at = lex_.pos();
    if (level == kUnary) return Unary(at);
    std::optional<int64_t> left = Operation(level + 1);
    while (const Operator* op = AcceptOperator(level)) left = Apply(op->op, left, Operation(level + 1), at);
    return left;
  }

  std::optional<int64_t> Unary(size_t at) {
    if (lex_.AcceptToken("-")) return Apply(BuiltinOp::kIntNeg, Operation(kUnary), std::nullopt, at);
    if (lex_.AcceptToken("~")) return Apply(BuiltinOp::kIntInvert, Operation(kUnary), std::nullopt, at);
    const std::optional<int64_t> base = Operand();
    return AcceptOperator(kUnary) != nullptr ? Apply(BuiltinOp::kIntPow, base, Operation(kUnary), at) : base;
  }

  std::optional<int64_t> Operand() {
    lex_.Spaces();
    const size_t at = lex_.pos();
    if (lex_.Accept("(")) {
      if (++depth_ > kDeepest) lex_.FailAt(at, "nested too deeply");
      const std::optional<int64_t> inner = Next();
      --depth_;
      lex_.ExpectToken(")");
      return inner;
    }
    if (lex_.peek() >= '0' && lex_.peek() <= '9') return lex_.Int();
    if (lex_.Accept("%")) {
      while (IsWordChar(lex_.peek()) || lex_.peek() == '.') lex_.Seek(lex_.pos() + 1);
      return std::nullopt;
    }
    const std::string word = lex_.PeekWord();
    if (word.empty()) lex_.Fail("expected a size");
    lex_.Word();
    for (const BuiltinOp op : {BuiltinOp::kIntMin, BuiltinOp::kIntMax, BuiltinOp::kIntAbs, BuiltinOp::kIntBroadcast}) {
      if (word != RowOf(op).notation) continue;
      lex_.Expect("(");
      if (++depth_ > kDeepest) lex_.FailAt(at, "nested too deeply");
      const std::optional<int64_t> a = Next();
      std::optional<int64_t> b;
      if (RowOf(op).arity == 2) {
        lex_.ExpectToken(",");
        b = Next();
      }
      lex_.ExpectToken(")");
      --depth_;
      return Apply(op, a, b, at);
    }
    const auto it = hints_.find(word);
    if (it == hints_.end()) lex_.FailAt(at, absl::StrCat("there is no symbol '", word, "': the graph declares none"));
    return it->second;
  }

  Lexer& lex_;
  const SizeHints& hints_;
  int depth_ = 0;
};

}  // namespace

std::optional<int64_t> ReadSize(Lexer& lex, const SizeHints& hints) { return SizeReader(lex, hints).Next(); }

}  // namespace frametap
