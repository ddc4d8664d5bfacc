// SizeExpr: a size of a node's result in terms of the arguments of the node, as a size rule states it.
// Not here: the rules (ops/size_rules.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "ir/graph/graph.h"

namespace frametap {

struct SizeExpr {
  enum class Kind : uint8_t {
    kConst,   // `number`
    kSizeOf,  // size `number` of the tensor `value`, an argument of the node
    kValue,   // `value`, a number that is an argument of the node
    kOp,      // `op` of `operands`: int ops only
  };
  Kind kind = Kind::kConst;
  BuiltinOp op = BuiltinOp::kNone;
  bool natural = false;  // never negative in a call that succeeds
  ValueId value;
  int64_t number = 0;
  std::shared_ptr<const std::pair<SizeExpr, SizeExpr>> operands;

  static SizeExpr Const(int64_t number);
  static SizeExpr SizeOf(ValueId tensor, int64_t dim);
  static SizeExpr Value(ValueId value, bool natural);
  // May be simpler than it says, and equal. Returns none if constants have no result.
  static std::optional<SizeExpr> Of(BuiltinOp op, const SizeExpr& a, const SizeExpr& b);

  friend bool operator==(const SizeExpr& a, const SizeExpr& b);  // whatever is known of signs
};

}  // namespace frametap
