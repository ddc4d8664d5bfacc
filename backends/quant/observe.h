// ObservationView: what the passes read of an Observation, under its lock.
#pragma once

#include <vector>

#include "backends/quant/quantize.h"

namespace frametap::quant {

inline constexpr char kNotMet[] = "calibration did not meet it; add such a batch to the calibration data";

inline constexpr char kExtrapolated[] =
    "calibration did not meet this computation; the same layers have its ranges elsewhere, as in rounds of a loop";

struct ObservationView {
  int64_t runs = 0;
  std::vector<Statistics> statistics;
  std::vector<std::vector<c10::IValue>> kept;
  std::vector<bool> met;           // by value; empty: all of them
  std::vector<bool> extrapolated;  // by value: the statistics are of other rounds (conversions/K1)

  static ObservationView Of(const Observation& observation);
};

// Adds the errors of rounding in the runs that were kept to `statistics`, by value of `graph`. `seen`: as in ConvertSeen.
absl::Status AddRoundingErrors(const Graph& graph, const std::vector<at::Tensor>& weights, const ObservationView& seen,
                               const QuantConfig& config, FrozenWeights* frozen, std::vector<Statistics>* statistics);

// Convert with statistics by value of `graph` from wherever they are. `may_be_unseen`: ops that read a value without any
// stay float, with that reason; else that is kFailedPrecondition. `frozen`: see FrozenWeights; may be null.
absl::StatusOr<QuantizedGraph> ConvertSeen(const Graph& graph, const std::vector<at::Tensor>& weights,
                                           const ObservationView& seen, const QuantConfig& config,
                                           FrozenWeights* frozen, bool may_be_unseen);

}  // namespace frametap::quant
