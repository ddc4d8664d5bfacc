// Size rules: the size of a result from the sizes of the arguments. ops.def names the rule of each op.
//   Z1  A rule is right for every call of the op that succeeds, or has no answer. A doubt (one of two operands may be
//       broadcast; a size follows from elements) has no answer.
//   Z2  The answer may use the ranks and dtypes in the graph's types, which every guard holds, and the node's
//       constants. The sizes in the types belong to one run. A rule may use them only to choose between answers
//       that are all right.
//   Z3  An op that writes to its first argument and returns it needs no row, unless it changes that argument's metadata
//       (sizes_follow/M1). The result has that argument's sizes.
// Not here: sizes of inputs, and what a graph does with the answer (frame_eval).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
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
  int64_t number = 0;
  ValueId value;
  BuiltinOp op = BuiltinOp::kNone;
  std::vector<SizeExpr> operands;

  static SizeExpr Const(int64_t number);
  static SizeExpr SizeOf(ValueId tensor, int64_t dim);
  static SizeExpr Value(ValueId value);
  static SizeExpr Of(BuiltinOp op, SizeExpr a, SizeExpr b);  // may be simpler than it says, and equal

  friend bool operator==(const SizeExpr& a, const SizeExpr& b);
};

// Size `dim` (0 <= dim < rank) of `value`, which a node of the graph defines, in terms of that node's arguments.
// `naturals` are numbers of the graph that are known to be never negative, beside those that their nodes show to be
// so.
std::optional<SizeExpr> SizeOf(const Graph& graph, ValueId value, int64_t dim,
                               const absl::flat_hash_set<ValueId>& naturals = {});
// … of all its dimensions, or nothing.
std::vector<std::optional<SizeExpr>> SizesOf(const Graph& graph, ValueId value,
                                             const absl::flat_hash_set<ValueId>& naturals = {});

// Whether the op has a rule at all.
bool HasSizeRule(const c10::OperatorHandle& op);

// Returns the ops of ATen that have one, as "aten::add.Tensor".
std::vector<std::string> OpsWithSizeRules();

}  // namespace frametap
