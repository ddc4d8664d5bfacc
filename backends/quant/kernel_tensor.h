// KernelTensor: a kernel of oneDNN as a constant of a graph, and the operators that run it.
//   T1  It is a tensor with the weight's sizes and no memory, so that graphs print, hold and share it as any constant.
//   T2  Only qlinear, qconv and qconv_add (bytes), packed_linear and packed_conv (floats) take it; other operators raise.
//   T3  It is made where the graph is lowered, and never saved: a file holds the reference graph (Q3 of quantize.h).
// Not here: the kernel itself (backends/onednn/layer_kernel.h), which ops become one (lower.cc).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "backends/onednn/layer_kernel.h"
#include "ir/graph.h"

namespace frametap::quant {

at::Tensor MakeKernelTensor(onednn::Layer layer);

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
