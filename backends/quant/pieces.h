// Pieces: an element of the list that a split makes, as an op of its own.
//   E1  split, split_with_sizes, unbind and chunk become slices, selections and frametap::chunk_piece: views of the same
//       memory. How many pieces there are is the guards' matter, as before.
//   E2  A list that anything else reads stays.
#pragma once

#include "backends/quant/normalise.h"

namespace frametap::quant {

Step TakePieces(const Graph& graph);

}  // namespace frametap::quant
