#include "backends/quant/resample.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/native/UpSample.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "backends/quant/wide_loop.h"

namespace frametap::quant {
namespace {

constexpr int64_t kGrain = 16384;

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

FRAMETAP_WIDE_LOOP
void MixRows(const uint8_t* __restrict upper, const uint8_t* __restrict lower, float* __restrict to, int64_t n,
             float below) {
  for (int64_t i = 0; i < n; ++i) {
    to[i] = static_cast<float>(upper[i]) * (1 - below) + static_cast<float>(lower[i]) * below;
  }
}

// Mixes whole pixels of `row`. The result lies between bytes, and is only rounded.
FRAMETAP_WIDE_LOOP
void MixColumns(const float* row, const Between* columns, int64_t pixels, int64_t channels, uint8_t* to) {
  for (int64_t p = 0; p < pixels; ++p) {
    const float* __restrict left = row + columns[p].first * channels;
    const float* __restrict right = row + columns[p].second * channels;
    uint8_t* __restrict mixed = to + p * channels;
    const float b = columns[p].weight, a = 1 - b;
    for (int64_t i = 0; i < channels; ++i) {
      mixed[i] = static_cast<uint8_t>(Rounded(left[i] * a + right[i] * b));
    }
  }
}

}  // namespace

at::Tensor UpsampleBilinearBytes(const at::Tensor& q, at::OptionalIntArrayRef output_size, bool align_corners,
                                 std::optional<at::ArrayRef<double>> scale_factors) {
  TORCH_CHECK(q.scalar_type() == at::kByte && q.device().is_cpu() && q.dim() == 4,
              "qupsample_bilinear2d: expected images of bytes on the CPU, got ", q.scalar_type(), " of sizes ",
              q.sizes());
  const auto sizes = at::native::upsample::compute_output_size(q.sizes(), output_size, scale_factors);
  const int64_t c = q.size(1), h = q.size(2), w = q.size(3), oh = sizes[0], ow = sizes[1];
  TORCH_CHECK(c > 0 && h > 0 && w > 0 && oh > 0 && ow > 0, "Input and output sizes should be greater than 0, but got ",
              q.sizes(), " and ", at::IntArrayRef(sizes));
  const at::Tensor x = q.contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor y = at::detail::empty_cpu({q.size(0), c, oh, ow}, at::kByte, false, at::MemoryFormat::ChannelsLast);
  const auto rows = AxisOf(h, oh, align_corners, at::native::upsample::get_scale_value(scale_factors, 0));
  const auto columns = AxisOf(w, ow, align_corners, at::native::upsample::get_scale_value(scale_factors, 1));
  const uint8_t* const from = x.const_data_ptr<uint8_t>();
  uint8_t* const to = y.mutable_data_ptr<uint8_t>();
  at::parallel_for(0, q.size(0) * oh, std::max<int64_t>(1, kGrain / (ow * c)), [&](int64_t begin, int64_t end) {
    std::vector<float> mixed(static_cast<size_t>(w * c));
    for (int64_t line = begin; line < end; ++line) {
      const Between& row = rows[static_cast<size_t>(line % oh)];
      const uint8_t* const image = from + line / oh * h * w * c;
      MixRows(image + row.first * w * c, image + row.second * w * c, mixed.data(), w * c, row.weight);
      MixColumns(mixed.data(), columns.data(), ow, c, to + line * ow * c);
    }
  });
  return y;
}

}  // namespace frametap::quant
