#include "backends/quant/statistics.h"

#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace frametap::quant {
namespace {

constexpr int kBins = 2048;

// Ranges below 1e-35 have no bins: the inverse of their width is not a finite float. Their extremes alone count.
float BinsPerUnit(double lo, double hi) {
  const double exact = hi > lo ? kBins / (hi - lo) : 0.0;
  return exact <= std::numeric_limits<float>::max() ? static_cast<float>(exact) : 0.0f;
}

}  // namespace

void Statistics::Cover(double lo, double hi) {
  if (bins_.empty()) {
    bins_.assign(kBins, 0.0);
    lo_ = lo;
    hi_ = hi;
  } else if (lo < lo_ || hi > hi_) {
    Statistics old = *this;
    lo_ = std::min(lo, lo_);
    hi_ = std::max(hi, hi_);
    bins_.assign(kBins, 0.0);
    Spread(old);
  }
}

void Statistics::Spread(const Statistics& from) {
  const double step = (hi_ - lo_) / kBins;
  const double from_step = (from.hi_ - from.lo_) / kBins;
  const auto bin_of = [&](double x) {
    return step > 0 ? std::clamp(static_cast<int>((x - lo_) / step), 0, kBins - 1) : 0;
  };
  for (int i = 0; i < kBins; ++i) {
    const double count = from.bins_[i];
    if (count == 0) continue;
    const double a = from.lo_ + i * from_step;
    const double b = a + from_step;
    const int first = bin_of(a);
    const int last = bin_of(b);
    if (first == last || from_step <= 0) {
      bins_[first] += count;
      continue;
    }
    double left = count;
    for (int j = first; j < last; ++j) {
      const double part =
          std::min(left, std::max(0.0, count * (lo_ + (j + 1) * step - std::max(a, lo_ + j * step)) / from_step));
      bins_[j] += part;
      left -= part;
    }
    bins_[last] += left;
  }
}

void Statistics::Add(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return;
  const at::Tensor t = tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous();
  const float* x = t.const_data_ptr<float>();
  const int64_t n = t.numel();
  elements_ += n;
  float lo = std::numeric_limits<float>::infinity();
  float hi = -lo;
  float poison = 0;  // x - x is 0 for finite x, NaN otherwise
  for (int64_t i = 0; i < n; ++i) {
    lo = x[i] < lo ? x[i] : lo;
    hi = x[i] > hi ? x[i] : hi;
    poison += x[i] - x[i];
  }
  if (poison != 0 || std::isnan(poison)) {
    finite_ = false;
    return;
  }
  min_ = bins_.empty() ? lo : std::min<double>(min_, lo);
  max_ = bins_.empty() ? hi : std::max<double>(max_, hi);
  Cover(lo, hi);
  const float start = static_cast<float>(lo_);
  const float inverse = BinsPerUnit(lo_, hi_);
  // Two tables: consecutive equal values do not wait for each other.
  std::array<std::array<uint32_t, kBins>, 2> counts{};
  int64_t zeros = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] == 0) {
      ++zeros;
      continue;
    }
    const float place = std::clamp((x[i] - start) * inverse, 0.0f, static_cast<float>(kBins - 1));
    ++counts[i & 1][static_cast<int>(place)];
  }
  for (int i = 0; i < kBins; ++i) bins_[i] += static_cast<double>(counts[0][i]) + counts[1][i];
  zeros_ += static_cast<double>(zeros);
}

std::optional<Statistics::Channels> Statistics::ChannelsOf(const at::Tensor& tensor, int64_t dim) {
  if (tensor.numel() == 0 || -dim > tensor.dim()) return std::nullopt;
  const int64_t kept = tensor.dim() + dim;
  std::vector<int64_t> summed;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (d != kept) summed.push_back(d);
  }
  const at::Tensor sums = summed.empty() ? tensor : at::sum(tensor, summed);
  const at::Tensor flat = tensor.reshape({-1});
  return Channels{dim, static_cast<double>(tensor.numel() / tensor.size(kept)), at::dot(flat, flat).item<double>(),
                  sums.to(at::kDouble)};
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
  elements_ += other.elements_;
  finite_ = finite_ && other.finite_;
  if (other.bins_.empty()) return;
  min_ = bins_.empty() ? other.min_ : std::min(min_, other.min_);
  max_ = bins_.empty() ? other.max_ : std::max(max_, other.max_);
  Cover(other.lo_, other.hi_);
  Spread(other);
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
  if (bins_.empty() || BinsPerUnit(lo_, hi_) == 0) return MinMax();
  const double step = (hi_ - lo_) / kBins;
  // Sums of count, x and x^2 over the first i bins: each candidate then costs O(1).
  std::vector<std::array<double, 3>> sums(kBins + 1, {0, 0, 0});
  for (int i = 0; i < kBins; ++i) {
    const double x = lo_ + (i + 0.5) * step;
    sums[i + 1] = {sums[i][0] + bins_[i], sums[i][1] + bins_[i] * x, sums[i][2] + bins_[i] * x * x};
  }
  const auto clipped = [&](int from, int to, double at) {
    const double n = sums[to][0] - sums[from][0];
    const double s = sums[to][1] - sums[from][1];
    const double q = sums[to][2] - sums[from][2];
    return std::max(0.0, q - 2 * at * s + at * at * n);
  };
  const auto edge = [&](int i) { return lo_ + i * step; };
  // Bins [a, b) are kept. Zero is always kept (params/P2).
  const auto error = [&](int a, int b) {
    const double lo = std::min(edge(a), 0.0);
    const double hi = std::max(edge(b), 0.0);
    const double width = (hi - lo) / static_cast<double>(levels);
    return clipped(0, a, lo) + clipped(b, kBins, hi) + (sums[b][0] - sums[a][0]) * width * width / 12;
  };
  const int zero = std::clamp(static_cast<int>(std::floor((0 - lo_) / step)), 0, kBins);
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
