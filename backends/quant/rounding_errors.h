// Rounding errors: by how much the channels of the values that layers read in 8 bits differ from the float graph's, on average.
// Biases take it back.
//   R1  The errors come from runs of the whole reference graph on inputs that calibration has kept. A layer's bias is
//       corrected before its result is computed, so that no error is taken back twice. (The paper of bias_correction/C1
//       describes such an empirical correction.)
//   R2  Runs with much data are left out, except the first one.
// Not here: means and their chance (statistics.h), biases (bias_correction.h).
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "backends/quant/annotate.h"
#include "backends/quant/normalise.h"
#include "backends/quant/statistics.h"

namespace frametap::quant {

class Converter;

// A value that an int8 layer reads in 8 bits.
struct ByteRead {
  NodeId layer;
  ValueId value;
  int64_t dim = -1;          // of the channels, counted from the last
  bool is_residual = false;  // added to the products
};

std::vector<ByteRead> ByteReads(const NormalizedGraph& normal, const Annotation& annotation);

// Adds the errors to the statistics of the values, which are by value of the graph that `normal` was made of. Values that
// have no statistics get none. `converter`: has made the reference graph, with a bias for each layer. `runs`: inputs.
void AddErrors(const NormalizedGraph& normal, const std::vector<ByteRead>& reads, Converter* converter,
               const std::vector<std::vector<c10::IValue>>& runs, std::vector<Statistics>* statistics);

}  // namespace frametap::quant
