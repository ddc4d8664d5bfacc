// Attention chains: attention that a program spells out, as products with a softmax between them, becomes one op. This includes
// nn.MultiheadAttention where it is asked for the weights.
//   H1  Scores are products of three or four dimensions, by matmul, bmm or einsum, times numbers, with at most one mask on top: a sum, or a masked_fill. No
//       other op that counts reads the values inside of the chain.
//   H2  The op computes the chain: a query whose keys are all hidden by minus infinity gives NaN (attention_ops/O2).
//   H3  Ops that read such a value, and whose results nothing reads, go away: the mean of weights, say, that were asked for and
//       dropped. This backend knows these ops, which do nothing else.
//   H4  The op stands at the last product. No op before it writes to memory that it reads there.
// Not here: in which dtype it multiplies (annotate/A8, freeze).
#pragma once

#include <vector>

#include "backends/quant/normalise.h"

namespace frametap::quant {

Step NameAttention(const Graph& graph, const std::vector<ValueId>& origin);

}  // namespace frametap::quant
