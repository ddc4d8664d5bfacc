// Attention: softmax(q k^T * scale + mask) v on tensors of bfloat16 (Vaswani et al., 2017, "Attention Is All You Need", 3.2.1).
//   A1  Products are of bfloat16, and their sums and the softmax are of float32. Probabilities are rounded to bfloat16.
//   A2  The result lies position by position, with the heads of a position beside each other, as torch's kernel leaves it.
//   A3  A thread keeps the primitives of the kMaxAttentions sizes that it used last.
//   A4  A mask is added, or hides the keys where it is false. A query that sees no key gives zeros, as with torch's kernel.
// Not here: dropout, gradients.
#pragma once

#include <ATen/core/Tensor.h>

namespace frametap::onednn {

inline constexpr size_t kMaxAttentions = 8;

// Returns whether Attend takes these, and less time than torch's kernel does. They are [batch, heads, positions, features] of
// bfloat16, with one number of heads and at most 8 MB of scores. `mask`: undefined, or of float32 or bool, and may be
// broadcast to [batch, heads, queries, keys]. The processor has products of bfloat16 and no AMX.
bool CanAttend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask = {});

// Requires CanAttend. `is_causal`: a query sees the keys up to its own position.
at::Tensor Attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask, double scale,
                  bool is_causal);

}  // namespace frametap::onednn
