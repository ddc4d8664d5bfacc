// Sizes of a graph's values in symbols, for its text: `f32[s0, 64, (s1 - 1)//2 + 1]`.
//   Y1  s0, s1 … are sizes of inputs (Graph::symbols). u0, u1 … are sizes without a formula in these. They follow
//       from elements, have no size rule, or their formula would be too long. `%n` is a number of the graph.
//   Y2  A constant is a size that the guards fix, a size of a parameter, or a size that follows from constants.
//   Y3  With the sizes of the recording, each formula comes to the size that was recorded; one that does not is not shown.
// Not here: which sizes are open (frame_eval), the rules (ops/size_rules.h), conditions of guards (number_expr.h).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph/graph.h"

namespace frametap {

struct SymbolicSizes {
  std::vector<std::pair<std::string, int64_t>> symbols;  // what each was in the recording: ("s0", 8)
  std::vector<std::vector<std::string>> sizes;           // by ValueId; none for a value that is not a tensor
  std::vector<NodeId> fresh;                             // nodes whose results have a size without a rule
};

// Sizes of a graph without symbols are those that were recorded.
SymbolicSizes SizesInSymbols(const Graph& graph);
// The sizes of the recording as numbers, without any symbol.
SymbolicSizes RecordedSizes(const Graph& graph);

}  // namespace frametap
