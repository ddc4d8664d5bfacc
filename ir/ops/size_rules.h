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

#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "ir/graph/graph.h"
#include "ir/symbols/size_expr.h"

namespace frametap {

// The sizes of `value`, which a node of the graph defines, in terms of that node's arguments; nothing if no rule gives
// them. `naturals` are numbers of the graph that are known to be never negative, beside those that their nodes show to
// be so.
std::vector<std::optional<SizeExpr>> SizesOf(const Graph& graph, ValueId value,
                                             const absl::flat_hash_set<ValueId>& naturals = {});

// Whether the op has a rule at all.
bool HasSizeRule(const c10::OperatorHandle& op);

// Returns whether an index of this dtype chooses by its elements, so that sizes follow from them.
inline bool IsMask(c10::ScalarType dtype) { return dtype == c10::ScalarType::Bool || dtype == c10::ScalarType::Byte; }

// Returns the ops of ATen that have one, as "aten::add.Tensor".
std::vector<std::string> OpsWithSizeRules();

}  // namespace frametap
