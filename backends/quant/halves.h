// Halves: floats of a reference graph that the lowered one keeps in bfloat16, because their readers round them to it.
//   H1  A result of an int8 linear layer is one if only attention in bfloat16 reads it, through any reshapes.
//   H2  A result of such attention is one if its query is, and only ops that quantize read it, through any reshapes. The
//       reference has rounded it.
// Not here: ops in bfloat16 (annotate/A8), which round any float.
#pragma once

#include <vector>

#include "backends/quant/patterns.h"

namespace frametap::quant {

// By value of the reference graph. None is a half where the processor has no products of bfloat16.
std::vector<bool> FindHalves(const Graph& reference, const Patterns& patterns);

}  // namespace frametap::quant
