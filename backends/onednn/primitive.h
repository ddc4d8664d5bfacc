// Primitive: what oneDNN makes for one layer and one size of its input.
// Not here: weights that are packed, sizes that are remembered, runs (layer_kernel.h).
#pragma once

#include "backends/onednn/handles.h"
#include "backends/onednn/layer.h"

namespace frametap::onednn {

// The weights as they lie in `layer.weight`.
MemoryDesc PlainWeights(const Layer& layer);
MemoryDesc BiasOf(const Layer& layer);  // null: there is none

// Throws c10::Error where oneDNN has no kernel.
PrimitiveDesc Describe(const Layer& layer, const Extent& x);

}  // namespace frametap::onednn
