#include "backends/quant/resample.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/native/UpSample.h>
#include <ATen/ops/upsample_bilinear2d.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "backends/quant/wide_loop.h"

namespace frametap::quant {
namespace {

// The two elements of an axis that a result lies between, and the weight of the second one.
struct Between {
  int64_t first, second;
  float weight;
};

std::vector<Between> AxisOf(int64_t inputs, int64_t outputs, bool align_corners, std::optional<double> factor) {
  const float scale = at::native::area_pixel_compute_scale<float>(inputs, outputs, align_corners, factor);
  std::vector<Between> axis(static_cast<size_t>(outputs));
  for (int64_t i = 0; i < outputs; ++i) {
    const float place = at::native::area_pixel_compute_source_index<float>(scale, i, align_corners, /*cubic=*/false);
    const int64_t first = std::min(static_cast<int64_t>(place), inputs - 1);
    axis[static_cast<size_t>(i)] = {first, std::min(first + 1, inputs - 1),
                                    std::clamp(place - static_cast<float>(first), 0.0f, 1.0f)};
  }
  return axis;
}

// A result of bytes lies between bytes, and is only rounded.
[[gnu::always_inline]] inline void Put(float x, uint8_t* to) { *to = static_cast<uint8_t>(Rounded(x)); }
template <class T>
[[gnu::always_inline]] inline void Put(float x, T* to) {
  Store(x, to);
}

template <class T>
[[gnu::always_inline]] inline void MixRowsOf(const T* __restrict upper, const T* __restrict lower, float* __restrict to,
                                             int64_t n, float below) {
  for (int64_t i = 0; i < n; ++i) to[i] = ToFloat(upper[i]) * (1 - below) + ToFloat(lower[i]) * below;
}

// Mixes whole pixels of `row`.
template <class T>
[[gnu::always_inline]] inline void MixColumnsOf(const float* row, const Between* columns, int64_t pixels,
                                                int64_t channels, T* to) {
  for (int64_t p = 0; p < pixels; ++p) {
    const float* __restrict left = row + columns[p].first * channels;
    const float* __restrict right = row + columns[p].second * channels;
    T* __restrict mixed = to + p * channels;
    const float b = columns[p].weight, a = 1 - b;
    for (int64_t i = 0; i < channels; ++i) Put(left[i] * a + right[i] * b, mixed + i);
  }
}

// A wide loop cannot be a template.
#define FRAMETAP_MIXES(T)                                                                              \
  FRAMETAP_WIDE_LOOP                                                                                   \
  void MixRows(const T* upper, const T* lower, float* to, int64_t n, float below) {                    \
    MixRowsOf(upper, lower, to, n, below);                                                             \
  }                                                                                                    \
  FRAMETAP_WIDE_LOOP                                                                                   \
  void MixColumns(const float* row, const Between* columns, int64_t pixels, int64_t channels, T* to) { \
    MixColumnsOf(row, columns, pixels, channels, to);                                                  \
  }
FRAMETAP_MIXES(uint8_t)
FRAMETAP_MIXES(float)
FRAMETAP_MIXES(c10::BFloat16)
#undef FRAMETAP_MIXES

// The axes of a result.
struct Axes {
  std::vector<Between> rows, columns;
};

template <class T>
void Resample(const at::Tensor& x, const Axes& axes, const at::Tensor& y) {
  const int64_t c = x.size(1), h = x.size(2), w = x.size(3), oh = y.size(2), ow = y.size(3);
  const T* const from = x.const_data_ptr<T>();
  T* const to = y.mutable_data_ptr<T>();
  at::parallel_for(0, x.size(0) * oh, std::max<int64_t>(1, kGrain / (ow * c)), [&](int64_t begin, int64_t end) {
    std::vector<float> mixed(static_cast<size_t>(w * c));
    for (int64_t line = begin; line < end; ++line) {
      const Between& row = axes.rows[static_cast<size_t>(line % oh)];
      const T* const image = from + line / oh * h * w * c;
      MixRows(image + row.first * w * c, image + row.second * w * c, mixed.data(), w * c, row.weight);
      MixColumns(mixed.data(), axes.columns.data(), ow, c, to + line * ow * c);
    }
  });
}

}  // namespace

at::Tensor UpsampleBilinear(const at::Tensor& x, at::OptionalIntArrayRef output_size, bool align_corners,
                            std::optional<at::ArrayRef<double>> scale_factors) {
  const at::ScalarType type = x.scalar_type();
  const bool is_ours = type == at::kByte || ((type == at::kFloat || type == at::kBFloat16) &&
                                             x.is_contiguous(at::MemoryFormat::ChannelsLast));
  if (!is_ours || x.dim() != 4 || x.numel() == 0) {
    return at::upsample_bilinear2d(x, output_size, align_corners, scale_factors);  // raises where nothing is right
  }
  const auto sizes = at::native::upsample::compute_output_size(x.sizes(), output_size, scale_factors);
  TORCH_CHECK(sizes[0] > 0 && sizes[1] > 0, "Input and output sizes should be greater than 0, but got ", x.sizes(),
              " and ", at::IntArrayRef(sizes));
  const at::Tensor images = x.contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor y =
      at::detail::empty_cpu({x.size(0), x.size(1), sizes[0], sizes[1]}, type, false, at::MemoryFormat::ChannelsLast);
  const auto axis = [&](size_t i) {
    return AxisOf(x.size(2 + static_cast<int64_t>(i)), sizes[i], align_corners,
                  at::native::upsample::get_scale_value(scale_factors, i));
  };
  const Axes axes{axis(0), axis(1)};
  switch (type) {
    case at::kByte:
      Resample<uint8_t>(images, axes, y);
      break;
    case at::kFloat:
      Resample<float>(images, axes, y);
      break;
    default:
      Resample<c10::BFloat16>(images, axes, y);
  }
  return y;
}

}  // namespace frametap::quant
