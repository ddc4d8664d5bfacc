// TensorRead: which facts of a tensor a recording has read.
#pragma once

#include <cstdint>

namespace frametap {

// Facts of a tensor; the basic ones (exact type, dtype, device, layout, key set, requires_grad, rank) always hold.
struct TensorRead {
  bool sizes = false;    // all sizes
  bool strides = false;  // all strides (implies sizes) and storage offset being zero or not
  uint64_t dims = 0;     // single sizes, bit i for dimension i (< 64)
};

}  // namespace frametap
