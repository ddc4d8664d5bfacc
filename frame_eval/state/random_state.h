// The random numbers of torch's generator for the CPU, of which a process has one: where they stand, and back there.
#pragma once

#include <ATen/core/Tensor.h>

namespace frametap {

at::Tensor RandomState();
void SetRandomState(const at::Tensor& state);

}  // namespace frametap
