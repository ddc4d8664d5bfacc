// FirstRows: the inputs of a run for a part of its batch.
//   F1  The graph's results on the rows equal these rows of the whole results, as a run shows. Where they do not, or where a
//       run would have effects, there are none.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/graph/graph.h"

namespace frametap::quant {

// The first dimension of the first tensor that is not a weight (weights[i] is defined); 0 if there is none.
int64_t BatchOf(const std::vector<c10::IValue>& inputs, const std::vector<at::Tensor>& weights);

// Copies of the inputs for the first `rows` of the batch; weights are shared. `outputs`: the results of the whole run.
std::optional<std::vector<c10::IValue>> FirstRows(const Graph& graph, const std::vector<at::Tensor>& weights,
                                                  const std::vector<c10::IValue>& inputs,
                                                  const std::vector<c10::IValue>& outputs, int64_t rows);

}  // namespace frametap::quant
