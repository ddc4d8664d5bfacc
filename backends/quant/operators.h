// Our own dispatcher operators, all on plain uint8 and int8 tensors (torch's quantized dtypes are not used).
//   O1  The reference graph uses four: frametap::quantize_per_tensor, dequantize_per_tensor, dequantize_per_channel, and
//       round_rows before a layer that quantizes each row at each call.
//   O2  The others are byte kernels of the lowered graph. A byte pool, relu or reshape keeps its input's parameters.
//   O3  Quantizing clamps before it rounds (the same for whole-numbered limits); NaN becomes qmin.
//       A few work on floats as well (QuickerOperator).
//   O4  quantize and dequantize give contiguous tensors; the channels_last form is for inputs of convolutions.
// Not here: the int8 convolution and matrix product (kernel_tensor.h).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

#include "ir/graph/graph.h"

namespace frametap::quant {

// Registers the operators, once for the process; every entry of this folder calls it.
void RegisterOperators();

// The operator `name` ("frametap::quantize_per_tensor"), which must be registered.
c10::OperatorHandle FindOperator(const char* name, const char* overload = "");

// The operator of ours that takes the arguments of the node's op, and less time: on images that are channels_last, and on
// rows of float32.
std::optional<c10::OperatorHandle> QuickerOperator(const Node& node);

}  // namespace frametap::quant
