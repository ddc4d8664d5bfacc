// Attention: softmax(q k^T * scale + mask) v (Vaswani et al., 2017, "Attention Is All You Need", 3.2.1). It is a kernel of our own
// for float32 (wide_attention.h), and for bfloat16 with AMX (tiled_attention.h). For other bfloat16 it is three primitives of
// oneDNN.
//   A1  Sums and the softmax are of float32. If the factors are of bfloat16, probabilities are rounded to it.
//   A2  The result lies position by position, with the heads of a position beside each other, as torch's kernel leaves it.
//   A3  A thread keeps the primitives of the kMaxAttentions sizes that it used last.
//   A4  A mask is added. One of bool counts as 0 and minus infinity. A query that sees no key gives zeros, as with torch's
//       kernel, or NaN, as a softmax does.
// Not here: dropout, gradients.
#pragma once

#include <ATen/core/Tensor.h>

namespace frametap::onednn {

inline constexpr size_t kMaxAttentions = 8;

// Our own kernels pack the keys, which is not worth few queries. Packing float32 is worth as many as there are keys.
inline constexpr int64_t kFewestQueries = 2, kFewestFloatQueries = 16, kMostKeys = 4096;

// Returns whether Attend takes these, and less time than torch's kernel does. They are [batch, heads, positions, features] of
// float32 or of bfloat16. `mask`: undefined, or of float32 or bool, and may be broadcast to [batch, heads, queries, keys]. With
// our own kernels, several heads of queries may share a head of keys and values; else there is one number of heads. Our own
// kernels need AVX-512, or AMX for bfloat16. oneDNN's need products of bfloat16, and their scores take at most 8 MB.
bool CanAttend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask = {});

struct AttentionOptions {
  double scale = 1;
  bool is_causal = false;      // a query sees the keys up to its own position
  bool mask_replaces = false;  // an element of a float32 mask that is not zero takes the place of the scaled score
  bool gives_nan = false;      // A4
};

// Requires CanAttend.
at::Tensor Attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask,
                  const AttentionOptions& options);

}  // namespace frametap::onednn
