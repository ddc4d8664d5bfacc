// Repeats: nodes that would work out what an earlier node has worked out (common subexpressions).
//   S1  A node repeats an earlier one under three conditions. Both are the same op, their constants are of the same
//       type and bits, and their other operands are the same values or repeats of the same. The op works on numbers,
//       or it is a plain function (ops/plain_function.h) that is the same below autograd, and both nodes run there. In
//       the second case no node between them may write to a tensor.
//   S2  The program cannot observe that a tensor is shared. The sharing values are given to plain functions below
//       autograd only, or their sizes are read. So the tensor is not written to, viewed or saved for backward. At most
//       one of them is an output, so that outputs are as many tensors as before.
//   S3  Nothing is kept for a repeat: the earlier result is still needed where the later is due, or no op runs between its
//       last use and there. The later one would have taken that memory at this very point.
// For numbers this holds in all runs. For tensors it holds in runs of which below_autograd/A2 is true, as long as the verdicts
// on the ops are what they were (below_autograd/A3).
//
// Here and not in a backend, since it needs nothing but graphs and facts about ops. Not here: running (backends/native/).
#pragma once

#include <vector>

#include "ir/graph/graph.h"

namespace frametap {

struct Repeats {
  bool numbers = false;  // there are repeats that are numbers
  bool tensors = false;  // … tensors
  // By value: the one to be used in its place, mostly itself. Empty if nothing is repeated.
  std::vector<ValueId> stands_for;
};

Repeats FindRepeats(const Graph& graph);

}  // namespace frametap
