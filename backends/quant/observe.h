// ObservationView: what the passes read of an Observation, under its lock.
#pragma once

#include <vector>

#include "backends/quant/quantize.h"

namespace frametap::quant {

struct ObservationView {
  int64_t runs = 0;
  std::vector<Statistics> statistics;
  std::vector<std::vector<c10::IValue>> kept;

  static ObservationView Of(const Observation& observation);
};

}  // namespace frametap::quant
