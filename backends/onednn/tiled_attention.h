// Attention on bfloat16 with AMX's products of tiles, block by block (attention_blocks.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "backends/onednn/attention.h"

namespace frametap::onednn {

// Requires HasTiles() and arguments that CanAttend takes, with dense features. `mask`: undefined, or of float32 with dense
// keys. Returns [batch, queries, heads, features].
at::Tensor AttendInTiles(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask,
                         const AttentionOptions& options);

}  // namespace frametap::onednn
