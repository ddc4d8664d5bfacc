// Extremes: the smallest and the largest of many floats in one pass, and whether all are finite.
#pragma once

#include <cmath>
#include <cstdint>

namespace frametap::quant {

struct Extremes {
  float lo = 0, hi = 0;
  float zero = 0;  // NaN if an element is not finite
  bool finite() const { return !std::isnan(zero); }
};

// The extremes of the elements and of `start`.
Extremes ExtremesOf(const float* x, int64_t n, float start);

}  // namespace frametap::quant
