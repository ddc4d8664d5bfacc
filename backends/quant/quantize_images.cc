#include "backends/quant/quantize_images.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace frametap::quant {
namespace {

constexpr int64_t kPixels = 128;   // of a tile
constexpr int64_t kChannels = 64;  // of a tile
constexpr int64_t kBlock = 16;     // a side of the block that is transposed at once

// Row `c` of `tile` gets the bytes of channel `c`.
FRAMETAP_WIDE_LOOP
void QuantizeTile(const float* __restrict from, int64_t channel_stride, int64_t channels, int64_t pixels,
                  uint8_t* __restrict tile, float inverse, float lo, float hi, int32_t zero_point) {
  for (int64_t c = 0; c < channels; ++c) {
    const float* __restrict row = from + c * channel_stride;
    uint8_t* __restrict bytes = tile + c * kPixels;
    if (pixels == kPixels) {
      for (int64_t i = 0; i < kPixels; ++i) bytes[i] = ToByte(row[i], inverse, lo, hi, zero_point);
    } else {
      for (int64_t i = 0; i < pixels; ++i) bytes[i] = ToByte(row[i], inverse, lo, hi, zero_point);
    }
  }
}

// `to[p]` gets the bytes of pixel `p` in 16 rows of a tile.
[[gnu::always_inline]] inline void TransposeBlock(const uint8_t* from, uint8_t (*to)[kBlock]) {
#if defined(__SSE2__)
  __m128i a[kBlock], b[kBlock];
  for (int64_t i = 0; i < kBlock; ++i) a[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * kPixels));
  // Interleaving the upper half of the rows with the lower half, four times, exchanges rows and columns.
  const auto interleave = [](const __m128i* rows, __m128i* out) {
    for (int64_t i = 0; i < kBlock / 2; ++i) {
      out[2 * i] = _mm_unpacklo_epi8(rows[i], rows[i + kBlock / 2]);
      out[2 * i + 1] = _mm_unpackhi_epi8(rows[i], rows[i + kBlock / 2]);
    }
  };
  interleave(a, b);
  interleave(b, a);
  interleave(a, b);
  interleave(b, a);
  for (int64_t i = 0; i < kBlock; ++i) _mm_store_si128(reinterpret_cast<__m128i*>(to[i]), a[i]);
#else
  for (int64_t p = 0; p < kBlock; ++p) {
    for (int64_t c = 0; c < kBlock; ++c) to[p][c] = from[c * kPixels + p];
  }
#endif
}

// Writes `channels` bytes to each pixel; `pitch` is the distance of pixels. A store of `kWidth` bytes reaches into the
// next pixels, whose bytes are written later. Near `end` it writes no more than it has to.
template <int64_t kWidth>
[[gnu::always_inline]] inline void WritePixels(const uint8_t (*from)[kWidth], int64_t channels, int64_t pixels,
                                               uint8_t* to, int64_t pitch, const uint8_t* end) {
  int64_t p = 0;
  for (; p < pixels && end - to >= kWidth; ++p, to += pitch) std::memcpy(to, from[p], kWidth);
  for (; p < pixels; ++p, to += pitch) std::memcpy(to, from[p], static_cast<size_t>(channels));
}

FRAMETAP_WIDE_LOOP
void WriteSixteen(const uint8_t* tile, int64_t channels, int64_t pixels, uint8_t* to, int64_t pitch,
                  const uint8_t* end) {
  alignas(16) uint8_t block[kBlock][kBlock];
  for (int64_t p = 0; p < pixels; p += kBlock) {
    TransposeBlock(tile + p, block);
    WritePixels<kBlock>(block, channels, std::min(kBlock, pixels - p), to + p * pitch, pitch, end);
  }
}

// For images of one to four channels.
FRAMETAP_WIDE_LOOP
void WriteFour(const uint8_t* __restrict tile, int64_t channels, int64_t pixels, uint8_t* to, int64_t pitch,
               const uint8_t* end) {
  alignas(64) uint8_t block[kPixels][4];
  for (int64_t p = 0; p < kPixels; ++p) {
    for (int64_t c = 0; c < 4; ++c) block[p][c] = tile[c * kPixels + p];
  }
  WritePixels<4>(block, channels, pixels, to, pitch, end);
}

}  // namespace

bool HasDenseRows(const at::Tensor& x) { return x.dim() == 4 && x.stride(3) == 1 && x.stride(1) != 1; }

void QuantizeImages(const at::Tensor& x, const ByteRange& range, const at::Tensor& to) {
  if (x.numel() == 0) return;
  const int64_t channels = x.size(1);
  // Rows that follow each other are one long row.
  const bool flat = x.stride(2) == x.size(3) || x.size(2) == 1;
  const int64_t rows = flat ? 1 : x.size(2);
  const int64_t width = flat ? x.size(2) * x.size(3) : x.size(3);
  const int64_t tiles = (width + kPixels - 1) / kPixels;  // of a row
  const float* from = x.const_data_ptr<float>();
  uint8_t* bytes = to.mutable_data_ptr<uint8_t>();
  const int64_t grain = std::max<int64_t>(1, kGrain / (kPixels * channels));
  at::parallel_for(0, x.size(0) * rows * tiles, grain, [&](int64_t begin, int64_t end) {
    alignas(64) uint8_t tile[kChannels * kPixels] = {};
    for (int64_t i = begin; i < end; ++i) {
      const int64_t image = i / (rows * tiles), row = i / tiles % rows, x0 = i % tiles * kPixels;
      const int64_t pixels = std::min(kPixels, width - x0);
      const float* corner = from + image * x.stride(0) + row * x.stride(2) + x0;
      uint8_t* first = bytes + ((image * rows + row) * width + x0) * channels;
      // From the last channels to the first ones: what a store of the last ones writes into the next pixel is mended.
      for (int64_t c0 = (channels - 1) / kChannels * kChannels; c0 >= 0; c0 -= kChannels) {
        const int64_t now = std::min(kChannels, channels - c0);
        QuantizeTile(corner + c0 * x.stride(1), x.stride(1), now, pixels, tile, range.inverse, range.lo, range.hi,
                     range.zero_point);
        for (int64_t c = (now - 1) / kBlock * kBlock; c >= 0; c -= kBlock) {
          const int64_t few = std::min(kBlock, now - c);
          (few <= 4 ? WriteFour : WriteSixteen)(tile + c * kPixels, few, pixels, first + c0 + c, channels,
                                                first + pixels * channels);
        }
      }
    }
  });
}

}  // namespace frametap::quant
