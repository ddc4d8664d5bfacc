#include "backends/quant/pixels.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "backends/quant/quantize_images.h"
#include "backends/quant/wide_loop.h"

namespace frametap::quant {
namespace {

constexpr int64_t kTile = 128;  // pixels

using Rows = std::array<const float*, kMostChannelsOfPixels>;

// Writes at most kTile pixels. A store of four elements reaches into the next pixels, which are written later, and not
// beyond the last one.
template <class T>
[[gnu::always_inline]] inline void WriteTile(const Rows& rows, int64_t channels, int64_t pixels, T* to) {
  alignas(64) T block[kTile][kMostChannelsOfPixels];
  const float* __restrict a = rows[0];
  const float* __restrict b = rows[1];
  const float* __restrict c = rows[2];
  const float* __restrict d = rows[3];
  for (int64_t p = 0; p < pixels; ++p) {
    Store(a[p], &block[p][0]);
    Store(b[p], &block[p][1]);
    Store(c[p], &block[p][2]);
    Store(d[p], &block[p][3]);
  }
  int64_t p = 0;
  for (; p * channels + kMostChannelsOfPixels <= pixels * channels; ++p) {
    std::memcpy(to + p * channels, block[p], sizeof(block[p]));
  }
  for (; p < pixels; ++p) std::memcpy(to + p * channels, block[p], static_cast<size_t>(channels) * sizeof(T));
}

FRAMETAP_WIDE_LOOP
void Write(const Rows& rows, int64_t channels, int64_t pixels, float* to) { WriteTile(rows, channels, pixels, to); }
FRAMETAP_WIDE_LOOP
void Write(const Rows& rows, int64_t channels, int64_t pixels, c10::BFloat16* to) {
  WriteTile(rows, channels, pixels, to);
}

template <class T>
void Copy(const at::Tensor& x, const at::Tensor& to) {
  const int64_t channels = x.size(1), width = x.size(3), height = x.size(2);
  const float* const from = x.const_data_ptr<float>();
  T* const pixels = to.mutable_data_ptr<T>();
  const int64_t grain = std::max<int64_t>(1, kGrain / (width * channels));
  at::parallel_for(0, x.size(0) * height, grain, [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      const float* const row = from + line / height * x.stride(0) + line % height * x.stride(2);
      for (int64_t first = 0; first < width; first += kTile) {
        Rows rows;
        for (int64_t c = 0; c < kMostChannelsOfPixels; ++c) {
          rows[static_cast<size_t>(c)] = row + std::min(c, channels - 1) * x.stride(1) + first;
        }
        Write(rows, channels, std::min(kTile, width - first), pixels + (line * width + first) * channels);
      }
    }
  });
}

}  // namespace

at::Tensor Pixels(const at::Tensor& images, at::ScalarType type) {
  const bool is_ours = images.scalar_type() == at::kFloat && HasDenseRows(images) && images.numel() > 0 &&
                       images.size(1) <= kMostChannelsOfPixels &&
                       (type == at::kBFloat16 || (type == at::kFloat && images.size(1) > 1));
  if (!is_ours) return images.to(type, false, false, at::MemoryFormat::ChannelsLast);
  at::Tensor to = at::detail::empty_cpu(images.sizes(), type, false, at::MemoryFormat::ChannelsLast);
  if (type == at::kFloat) {
    Copy<float>(images, to);
  } else {
    Copy<c10::BFloat16>(images, to);
  }
  return to;
}

}  // namespace frametap::quant
