// Curve chains: a function of each element that a program spells out as several ops becomes the one op that computes it, such
// as aten.gelu. That op is computed inside of the layer before it.
//   G1  A chain reads one float32 tensor and numbers. No other op reads the values inside of the chain.
//   G2  Chain and op give the same results, to the rounding of float32, on NaN and on points of all magnitudes. The ops of a
//       chain are smooth, so that a difference between the points cannot hide. Infinity does not count:
//       torch's own gelu gives NaN there, or not, by the number of elements.
// Not here: which curves are part of a layer (curves.h).
#pragma once

#include <vector>

#include "backends/quant/normalise.h"

namespace frametap::quant {

// `written`: by value of `graph`, whether an op may write its memory.
Step NameCurves(const Graph& graph, const std::vector<ValueId>& origin, const std::vector<bool>& written);

}  // namespace frametap::quant
