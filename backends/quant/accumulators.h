// Accumulators of lowered graphs: a convolution that computes the sum of a residual writes it over one of the addends.
//   B1  The addend is copied first if its memory is read afterwards, or belongs to the caller.
// Not here: which sums a convolution computes (patterns.h).
#pragma once

#include "backends/quant/normalise.h"

namespace frametap::quant {

// Adds the copies to the graph of the step.
void CopyLiveAccumulators(Step* step);

}  // namespace frametap::quant
