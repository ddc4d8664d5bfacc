// KernelTensor: a kernel of oneDNN as a constant of a graph, and the operators that run it.
//   T1  It is a tensor with the weight's sizes and no memory, so that graphs print, hold and share it as any constant.
//   T2  Only qlinear, qconv and qconv_add (bytes), packed_linear and packed_conv (floats) take it; other operators raise.
//   T3  It is made where the graph is lowered, and never saved: a file holds the reference graph (quantize/Q3).
// Not here: the kernel itself (backends/onednn/layer_kernel.h), which ops become one (lower.cc).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/functional/function_ref.h"
#include "backends/onednn/layer_kernel.h"
#include "backends/quant/dynamic_linear.h"
#include "backends/quant/frozen.h"
#include "ir/graph/graph.h"

namespace frametap::quant {

at::Tensor MakeKernelTensor(onednn::Layer layer);

// Returns the kernel of a layer, ready for inputs of sizes `x`. Layers of equal tensors and numbers share one. `make`
// returns the layer that a new one is made of. `frozen`: where it is kept; may be null.
at::Tensor FrozenKernel(FrozenWeights* frozen, const onednn::Layer& layer, c10::IntArrayRef x,
                        absl::FunctionRef<onednn::Layer()> make);

// The kernel of a linear layer of floats that multiplies bytes (dynamic_linear.h). `layer`: its weight is float32, or int8
// with scales.
at::Tensor FrozenDynamicKernel(FrozenWeights* frozen, const onednn::Layer& layer, const DynamicLinear::Inputs& inputs,
                               c10::IntArrayRef x);

// `kernel`: of a linear layer that takes and gives floats, dynamic or not. `x`: dense rows of float32, whose products are
// written to `y`. Nothing is allocated once a size has been met.
void RunFloatRows(const at::Tensor& kernel, const float* x, int64_t rows, float* y);

// The kernel in a tensor; null for other tensors.
onednn::LayerKernel* KernelIn(const at::Tensor& tensor);

struct KernelTotals {
  int64_t kernels = 0;
  onednn::KernelCounts counts;
};

// For the kernels in these graphs; one that several share counts once.
KernelTotals CountKernels(const std::vector<const Graph*>& graphs);

void RegisterKernelOperators();  // once for the process, by RegisterOperators of operators.h

}  // namespace frametap::quant
