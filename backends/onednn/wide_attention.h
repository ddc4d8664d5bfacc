// Attention on float32 with the vectors of AVX-512, block by block (attention_blocks.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "backends/onednn/attention.h"

namespace frametap::onednn {

// As AttendInTiles, on float32. Requires HasWideVectors().
at::Tensor AttendWide(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask,
                      const AttentionOptions& options);

}  // namespace frametap::onednn
