#include "backends/quant/planes.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "backends/quant/wide_loop.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace frametap::quant {
namespace {

constexpr int64_t kBand = 16;   // channels that are copied together: a cache line of each pixel
constexpr int64_t kFewest = 4;  // channels; torch's copy is as quick for fewer

// Four pixels of four channels.
[[gnu::always_inline]] inline void TransposeBlock(const float* from, int64_t channels, float* to, int64_t pixels) {
#if defined(__SSE2__)
  __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + channels);
  __m128 c = _mm_loadu_ps(from + 2 * channels), d = _mm_loadu_ps(from + 3 * channels);
  _MM_TRANSPOSE4_PS(a, b, c, d);
  _mm_storeu_ps(to, a);
  _mm_storeu_ps(to + pixels, b);
  _mm_storeu_ps(to + 2 * pixels, c);
  _mm_storeu_ps(to + 3 * pixels, d);
#else
  for (int64_t c = 0; c < 4; ++c) {
    for (int64_t p = 0; p < 4; ++p) to[c * pixels + p] = from[p * channels + c];
  }
#endif
}

void TransposeBand(const float* from, int64_t pixels, int64_t channels, int64_t band, float* to) {
  const int64_t whole = pixels / 4 * 4;
  for (int64_t p = 0; p < whole; p += 4) {
    int64_t c = 0;
    for (; c + 4 <= band; c += 4) TransposeBlock(from + p * channels + c, channels, to + c * pixels + p, pixels);
    for (; c < band; ++c) {
      for (int64_t i = p; i < p + 4; ++i) to[c * pixels + i] = from[i * channels + c];
    }
  }
  for (int64_t p = whole; p < pixels; ++p) {
    for (int64_t c = 0; c < band; ++c) to[c * pixels + p] = from[p * channels + c];
  }
}

}  // namespace

at::Tensor Planes(const at::Tensor& images) {
  const bool is_transposed = images.dim() > 2 && images.size(1) >= kFewest && images.scalar_type() == at::kFloat &&
                             images.device().is_cpu() && !images.is_contiguous() &&
                             images.movedim(1, -1).is_contiguous();
  if (!is_transposed) return images.contiguous();
  at::Tensor to = at::detail::empty_cpu(images.sizes(), at::kFloat);
  const int64_t channels = images.size(1);
  const int64_t pixels = images.numel() / (images.size(0) * channels);
  const int64_t bands = (channels + kBand - 1) / kBand;
  const float* const f = images.const_data_ptr<float>();
  float* const t = to.mutable_data_ptr<float>();
  const int64_t grain = std::max<int64_t>(1, kGrain / (kBand * pixels));
  at::parallel_for(0, images.size(0) * bands, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t image = i / bands * channels * pixels, first = i % bands * kBand;
      TransposeBand(f + image + first, pixels, channels, std::min(kBand, channels - first), t + image + first * pixels);
    }
  });
  return to;
}

}  // namespace frametap::quant
