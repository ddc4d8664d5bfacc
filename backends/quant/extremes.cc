#include "backends/quant/extremes.h"

#include <algorithm>

#include "backends/quant/wide_loop.h"

namespace frametap::quant {
namespace {

// Lanes are apart because compilers do not reorder comparisons of floats.
FRAMETAP_WIDE_LOOP
Extremes Found(const float* __restrict x, int64_t n, float start) {
  Lanes lo, hi, zero = {};
  for (int64_t k = 0; k < kLanes; ++k) lo[k] = hi[k] = start;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Lanes v;
    Load(x + i, &v);
    lo = v < lo ? v : lo;
    hi = v > hi ? v : hi;
    zero += v * 0.0f;
  }
  Extremes found{start, start};
  for (; i < n; ++i) {
    found.lo = std::min(found.lo, x[i]);
    found.hi = std::max(found.hi, x[i]);
    found.zero += x[i] * 0.0f;
  }
  for (int64_t k = 0; k < kLanes; ++k) {
    found.lo = std::min(found.lo, lo[k]);
    found.hi = std::max(found.hi, hi[k]);
    found.zero += zero[k];
  }
  return found;
}

}  // namespace

Extremes ExtremesOf(const float* x, int64_t n, float start) { return Found(x, n, start); }

}  // namespace frametap::quant
