// Unexpanded: a tensor with each element once. torch copies nothing into an expanded tensor.
#pragma once

#include <ATen/core/Tensor.h>

namespace frametap {

inline at::Tensor Unexpanded(at::Tensor tensor) {
  for (int64_t d = 0; tensor.layout() == c10::kStrided && d < tensor.dim(); ++d) {
    if (tensor.stride(d) == 0 && tensor.size(d) > 1) tensor = tensor.narrow(d, 0, 1);
  }
  return tensor;
}

}  // namespace frametap
