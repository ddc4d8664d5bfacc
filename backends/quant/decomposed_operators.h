// The operators of quantized_decomposed that have kernels here, under the same names and schemas in a namespace of ours.
// Graphs of torchao's PT2E and of torch.ao are made of them. torch registers kernels in Python, and only once torch.ao is
// imported.
//   Y1  Values equal the values of torch's kernels, bit by bit. An AssertionError of torch is a RuntimeError here. Scales of
//       another number than the channels are refused, where torch would broadcast.
// Not here: the exchange in graphs of torch.fx (python/frametap/_decomposed.py), how they become int8 kernels
// (decomposed.h).
#pragma once

namespace frametap::quant {

constexpr const char* kDecomposed = "frametap_decomposed";

void RegisterDecomposedOperators();  // once for the process, by RegisterOperators of operators.h

}  // namespace frametap::quant
