// Attention in graphs: torch's scaled_dot_product_attention, a chain of ops that computes it (attention_chains.h), and the
// forms of both with kernels of our own.
//   O1  A form takes the arguments of the op. The one that multiplies bfloat16 rounds the factors, and gives the query's dtype. A
//       mask stays as it is: the least number of float32 would become minus infinity.
//   O2  A query whose keys are all hidden gives what the op gives: zeros by torch's, and NaN by a chain.
// Not here: which form a graph has (annotate.h, freeze).
#pragma once

#include "ir/graph/graph.h"

namespace frametap::quant {

// Whether it is such an op, of float32.
bool IsAttention(const Node& node);
bool IsBfloat16Attention(const Node& node);

// These require IsAttention. A dropout that is not known counts as one.
bool HasDropout(const Node& node);
c10::OperatorHandle Float32Form(const Node& node);
c10::OperatorHandle Bfloat16Form(const Node& node);
inline constexpr const char* kOurAttention = "by oneDNN or a kernel of our own where that takes less time than torch's";

void RegisterAttention();

}  // namespace frametap::quant
