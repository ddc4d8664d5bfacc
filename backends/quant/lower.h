// Lowering as a step of a chain, for graphs of which only a part is in bytes.
// Not here: lowering of whole reference graphs (Lower of quantize.h).
#pragma once

#include "backends/quant/frozen.h"
#include "backends/quant/normalise.h"

namespace frametap::quant {

// Puts int8 kernels where the reference graph has them, and leaves all other nodes as they are. oneDNN must be loaded.
// Throws c10::Error.
Step LowerNormal(const NormalizedGraph& reference, FrozenWeights* frozen);

}  // namespace frametap::quant
