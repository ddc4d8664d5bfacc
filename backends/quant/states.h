// States: a name for each state of memory that a program writes to in place, so that layers around the write may be int8.
//   T1  A layer, or an op on bytes, that reads a value whose memory is written to later than the value is made reads
//       frametap::state of it. The result is made right before, and is not read after the next write. So it is quantized as
//       if nothing wrote to it.
//   T2  A state has statistics and a structure of its own. The value before the write is another one.
//   T3  Writes that become out-of-place ops (normalise/M1) need no states.
//   T4  Values of the graph keep their numbers, and states have no row in the report.
// Not here: the lowered graph, in which a state is its argument (lower.cc).
#pragma once

#include <vector>

#include "backends/quant/quantize.h"
#include "ir/graph/graph.h"

namespace frametap::quant {

bool IsState(const Node& node);

// Returns the graph with states, which all later passes take for the source graph.
Graph WithStates(const Graph& graph);

// Removes the rows of states from the report of such a graph.
void DropRowsOfStates(const Graph& graph, std::vector<OpReport>* report);

}  // namespace frametap::quant
