// Layouts: whether the float program's images are channels_last, that is, stored pixel by pixel. Kernels choose layouts of
// their own. Results, and images that other ops of torch read, lie as the program would have them.
//   U1  The result of a convolution is channels_last if its weight or its input is. An op that works on elements or
//       windows follows its first operand of the result's sizes. A concatenation is channels_last if all parts are.
//   U2  Layouts of inputs are read at each call, because no guard fixes their strides.
//   U3  An image has the strides that torch gives to a new tensor of the layout. A copy is made only if the memory differs.
// Not here: which values are images in a lowered graph (lower.cc, ../freeze/freeze.cc).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "backends/quant/normalise.h"
#include "backends/quant/rewrite.h"

namespace frametap::quant {

// Whether torch's op computes each element from elements at its place or around it, in any layout and floating type.
bool WorksAroundElements(const Node& node);

// Whether torch's op gives images of the layout of its arguments, whatever that is.
bool KeepsLayout(const Node& node);

// Returns, by value of the graph, the values that are channels_last where it is. An image without such values is always
// channels_last. A value with itself alone lies as its op leaves it.
std::vector<std::vector<ValueId>> LayoutsOf(const NormalizedGraph& normal);

bool LiesAsMade(ValueId v, const std::vector<ValueId>& like);

// Emits a copy of `images`, of the new graph, as U3 has it. `like`: from LayoutsOf.
ValueId LaidOut(ValueId images, const std::vector<ValueId>& like, const Node& reader, Rewrite* out);

at::Tensor LayOut(const at::Tensor& images, at::TensorList like);

}  // namespace frametap::quant
