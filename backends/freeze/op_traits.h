// Op traits: how an op of torch that stays one treats types of its arguments, and their order in memory.
// Not here: layouts (../quant/layouts.h); layers, which become kernels (freeze.cc).
#pragma once

#include "backends/freeze/freeze.h"
#include "ir/graph/graph.h"

namespace frametap::freeze {

bool IsConvolution(const Node& node);

// Whether torch's op computes in bfloat16 as in float32, except that its result is rounded. Attention is apart.
bool TakesBfloat16(const Node& node);

// Whether `v` is the mask of attention. The least number of float32 in it would become minus infinity in bfloat16.
bool IsMask(const Node& node, ValueId v);

// Whether attention multiplies bfloat16. `gives_bfloat16`: it reads and gives it.
bool AttendsInBfloat16(const Graph& graph, const Node& node, const Config& config, bool gives_bfloat16);

// An op whose result depends on the order in which its input lies in memory; null if there is none.
const Node* OrderReader(const Graph& graph);

}  // namespace frametap::freeze
