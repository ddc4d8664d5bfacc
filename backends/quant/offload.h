// Offload: moves tensors to a file that the process maps. They take memory only as long as something reads them.
//   O1  A tensor keeps its storage and its elements. Writes stay in memory, and do not reach the file.
//   O2  Either all tensors are moved or none is.
// Not here: which tensors no run reads (python/bindings/offload.cc).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace frametap::quant {

// Tensors of fewer bytes stay where they are, because a mapping consists of whole pages.
constexpr size_t kLeastOffloaded = size_t{64} << 10;

// Returns the bytes that were moved. `file`: a descriptor that stays the caller's; its content from the beginning on is
// overwritten. Tensors that an earlier call has moved leave memory again, and do not count.
absl::StatusOr<int64_t> Offload(const std::vector<at::Tensor>& tensors, int file);

}  // namespace frametap::quant
