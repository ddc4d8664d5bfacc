#include "backends/quant/statistics.h"

#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "backends/quant/extremes.h"
#include "backends/quant/wide_loop.h"

namespace frametap::quant {
namespace {

constexpr int kBins = 2048;
constexpr int64_t kBlock = 1024;  // elements whose bins are kept in the cache

// Ranges below 1e-35 have no bins: the inverse of their width is not a finite float. Their extremes alone count.
float BinsPerUnit(double lo, double hi) {
  const double exact = hi > lo ? kBins / (hi - lo) : 0.0;
  return exact <= std::numeric_limits<float>::max() ? static_cast<float>(exact) : 0.0f;
}

// The bin of each element. Zeros are counted in one bin more, after the others (S1).
FRAMETAP_WIDE_LOOP
void PlacesOf(const float* __restrict x, int32_t* __restrict places, int64_t n, float start, float inverse) {
  for (int64_t i = 0; i < n; ++i) {
    float place = (x[i] - start) * inverse;
    place = place > 0.0f ? place : 0.0f;
    place = place < static_cast<float>(kBins - 1) ? place : static_cast<float>(kBins - 1);
    places[i] = x[i] == 0 ? kBins : static_cast<int32_t>(place);
  }
}

// Consecutive elements are counted in different tables: equal ones do not wait for each other.
using Counts = std::array<std::array<uint32_t, kBins + 1>, 4>;

void Count(const int32_t* places, int64_t n, Counts* counts) {
  int64_t i = 0;
  auto& [a, b, c, d] = *counts;
  for (; i + 4 <= n; i += 4) {
    ++a[places[i]];
    ++b[places[i + 1]];
    ++c[places[i + 2]];
    ++d[places[i + 3]];
  }
  for (; i < n; ++i) ++(*counts)[0][places[i]];
}

struct Moments {
  float sum = 0, squares = 0;
};

// Lanes are apart because compilers do not reorder sums of floats.
FRAMETAP_WIDE_LOOP
Moments MomentsOf(const float* __restrict x, int64_t n) {
  Lanes sum = {}, squares = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Lanes v;
    Load(x + i, &v);
    sum += v;
    squares += v * v;
  }
  Moments found;
  for (; i < n; ++i) {
    found.sum += x[i];
    found.squares += x[i] * x[i];
  }
  for (int64_t k = 0; k < kLanes; ++k) {
    found.sum += sum[k];
    found.squares += squares[k];
  }
  return found;
}

// Adds the sum of each channel, whose elements lie `size` by `size`, and the sum of all squares.
void AddPlanes(const float* x, int64_t n, int64_t channels, int64_t size, double* sums, double* squares) {
  for (int64_t plane = 0; plane * size < n; ++plane) {
    for (int64_t i = 0; i < size; i += kBlock) {
      const Moments found = MomentsOf(x + plane * size + i, std::min(kBlock, size - i));
      sums[plane % channels] += found.sum;
      *squares += found.squares;
    }
  }
}

}  // namespace

void Statistics::Cover(double lo, double hi) {
  if (histogram_.bins.empty()) {
    histogram_ = {lo, hi, std::vector<double>(kBins, 0.0)};
  } else if (lo < histogram_.lo || hi > histogram_.hi) {
    const Histogram old = std::exchange(
        histogram_, {std::min(lo, histogram_.lo), std::max(hi, histogram_.hi), std::vector<double>(kBins, 0.0)});
    Spread(old);
  }
}

void Statistics::Spread(const Histogram& from) {
  const auto& [lo, hi, ignored] = histogram_;
  std::vector<double>& bins = histogram_.bins;
  if (from.lo == lo && from.hi == hi) {
    for (int i = 0; i < kBins; ++i) bins[i] += from.bins[i];
    return;
  }
  const double step = (hi - lo) / kBins;
  const double from_step = (from.hi - from.lo) / kBins;
  const auto bin_of = [&](double x) {
    return step > 0 ? std::clamp(static_cast<int>((x - lo) / step), 0, kBins - 1) : 0;
  };
  for (int i = 0; i < kBins; ++i) {
    const double count = from.bins[i];
    if (count == 0) continue;
    const double a = from.lo + i * from_step;
    const double b = a + from_step;
    const int first = bin_of(a);
    const int last = bin_of(b);
    if (first == last || from_step <= 0) {
      bins[first] += count;
      continue;
    }
    double left = count;
    for (int j = first; j < last; ++j) {
      const double part =
          std::min(left, std::max(0.0, count * (lo + (j + 1) * step - std::max(a, lo + j * step)) / from_step));
      bins[j] += part;
      left -= part;
    }
    bins[last] += left;
  }
}

// Memory is read once, block by block. Only the first tensor is read for its extremes before that.
void Statistics::Add(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return;
  const at::Tensor t = tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous();
  const float* x = t.const_data_ptr<float>();
  const int64_t n = t.numel();
  elements_ += n;
  if (histogram_.bins.empty()) {
    const Extremes all = ExtremesOf(x, n, x[0]);
    if (!all.finite()) {
      finite_ = false;
      return;
    }
    min_ = all.lo;
    max_ = all.hi;
    Cover(all.lo, all.hi);
  }
  Counts counts{};
  const auto take_counts = [&] {
    for (auto& table : counts) {
      for (int i = 0; i < kBins; ++i) histogram_.bins[i] += table[i];
      zeros_ += table[kBins];
      table.fill(0);
    }
  };
  std::array<int32_t, kBlock> places;
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t many = std::min(kBlock, n - i);
    const Extremes found = ExtremesOf(x + i, many, x[i]);
    if (!found.finite()) {
      finite_ = false;
      break;
    }
    if (found.lo < min_ || found.hi > max_) {
      min_ = std::min<double>(min_, found.lo);
      max_ = std::max<double>(max_, found.hi);
      take_counts();
      Cover(min_, max_);
    }
    PlacesOf(x + i, places.data(), many, static_cast<float>(histogram_.lo), BinsPerUnit(histogram_.lo, histogram_.hi));
    Count(places.data(), many, &counts);
  }
  take_counts();
}

std::optional<Statistics::Channels> Statistics::ChannelsOf(const at::Tensor& tensor, int64_t dim) {
  if (tensor.numel() == 0 || -dim > tensor.dim()) return std::nullopt;
  const int64_t kept = tensor.dim() + dim;
  std::vector<int64_t> summed;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (d != kept) summed.push_back(d);
  }
  const int64_t channels = tensor.size(kept);
  const auto rows = static_cast<double>(tensor.numel() / channels);
  int64_t size = 1;  // the stride of a dimension of one element may be any number
  for (int64_t d = kept + 1; d < tensor.dim(); ++d) size *= tensor.size(d);
  if (tensor.is_contiguous() && size > 1) {
    const at::Tensor sums = at::zeros({channels}, at::kDouble);
    double squares = 0;
    AddPlanes(tensor.const_data_ptr<float>(), tensor.numel(), channels, size, sums.data_ptr<double>(), &squares);
    return Channels{dim, rows, squares, sums};
  }
  const at::Tensor sums = summed.empty() ? tensor : at::sum(tensor, summed);
  const at::Tensor flat = tensor.reshape({-1});
  return Channels{dim, rows, at::dot(flat, flat).item<double>(), sums.to(at::kDouble)};
}

void Statistics::AddTo(std::vector<Channels>* all, const std::optional<Channels>& more) {
  if (!more) return;
  const auto same = std::find_if(all->begin(), all->end(), [&](const Channels& c) { return c.dim == more->dim; });
  if (same == all->end()) {
    all->push_back(*more);
    return;
  }
  same->rows += more->rows;
  same->squares += more->squares;
  const bool fits = same->sums.defined() && more->sums.defined() && same->sums.sizes() == more->sums.sizes();
  same->sums = fits ? at::add(same->sums, more->sums) : at::Tensor();  // another tensor: copies share the old one
}

void Statistics::Add(const Statistics& other) {
  if (other.empty()) return;
  for (const Channels& more : other.channels_) AddTo(&channels_, more);
  for (const Channels& more : other.errors_) AddTo(&errors_, more);
  AddRange(other);
}

void Statistics::AddRange(const Statistics& other) {
  if (other.empty()) return;
  elements_ += other.elements_;
  finite_ = finite_ && other.finite_;
  if (other.histogram_.bins.empty()) return;
  min_ = histogram_.bins.empty() ? other.min_ : std::min(min_, other.min_);
  max_ = histogram_.bins.empty() ? other.max_ : std::max(max_, other.max_);
  Cover(other.histogram_.lo, other.histogram_.hi);
  Spread(other.histogram_);
  zeros_ += other.zeros_;
}

at::Tensor Statistics::MeansOf(const std::vector<Channels>& all, int64_t dim) const {
  for (const Channels& c : all) {
    if (c.dim != dim || !c.sums.defined() || !finite_ || c.rows < 2) continue;
    const at::Tensor means = at::div(c.sums, c.rows);
    const double power = at::dot(means, means).item<double>();
    const double chance = std::max(0.0, c.squares / c.rows - power) / (c.rows - 1);
    if (!(power > chance)) return at::Tensor();
    return at::mul(means, 1 - chance / power).to(at::kFloat);
  }
  return at::Tensor();
}

Range Statistics::LeastSquares(int64_t levels) const {
  const auto& [lowest, highest, bins] = histogram_;
  if (bins.empty() || BinsPerUnit(lowest, highest) == 0) return MinMax();
  const double step = (highest - lowest) / kBins;
  // Sums of count, x and x^2 over the first i bins: each candidate then costs O(1).
  std::vector<std::array<double, 3>> sums(kBins + 1, {0, 0, 0});
  for (int i = 0; i < kBins; ++i) {
    const double x = lowest + (i + 0.5) * step;
    sums[i + 1] = {sums[i][0] + bins[i], sums[i][1] + bins[i] * x, sums[i][2] + bins[i] * x * x};
  }
  const auto clipped = [&](int from, int to, double at) {
    const double n = sums[to][0] - sums[from][0];
    const double s = sums[to][1] - sums[from][1];
    const double q = sums[to][2] - sums[from][2];
    return std::max(0.0, q - 2 * at * s + at * at * n);
  };
  const auto edge = [&](int i) { return lowest + i * step; };
  // Bins [a, b) are kept. Zero is always kept (params/P2).
  const auto error = [&](int a, int b) {
    const double lo = std::min(edge(a), 0.0);
    const double hi = std::max(edge(b), 0.0);
    const double width = (hi - lo) / static_cast<double>(levels);
    return clipped(0, a, lo) + clipped(b, kBins, hi) + (sums[b][0] - sums[a][0]) * width * width / 12;
  };
  const int zero = std::clamp(static_cast<int>(std::floor((0 - lowest) / step)), 0, kBins);
  int best_a = 0;
  int best_b = kBins;
  double best = error(best_a, best_b);
  for (const int stride : {64, 8, 1}) {
    const int reach = stride == 64 ? kBins : stride * 8;
    const int a0 = best_a;
    const int b0 = best_b;
    for (int a = std::max(0, a0 - reach); a <= std::min(zero, a0 + reach); a += stride) {
      for (int b = std::max({a + 1, zero, b0 - reach}); b <= std::min(kBins, b0 + reach); b += stride) {
        const double e = error(a, b);
        if (e < best) {
          best = e;
          best_a = a;
          best_b = b;
        }
      }
    }
  }
  return {std::max(min_, edge(best_a)), std::min(max_, edge(best_b))};
}

}  // namespace frametap::quant
