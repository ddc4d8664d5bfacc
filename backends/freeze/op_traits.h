// Op traits: how an op of torch that stays one treats types of its arguments.
// Not here: layouts (../quant/layouts.h); layers, which become kernels (freeze.cc).
#pragma once

#include "ir/graph/graph.h"

namespace frametap::freeze {

// Whether torch's op computes in bfloat16 as in float32, except that its result is rounded.
bool TakesBfloat16(const Node& node);

}  // namespace frametap::freeze
