// Vectors of AVX-512: the common parts of our own kernels. A file that includes this compiles for x86-64 alone.
// Not here: kernels that compilers make vectors of (backends/quant/wide_loop.h).
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

// GCC's own header of AVX-512 reads registers that it did not set, on purpose.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define FRAMETAP_WIDE_VECTORS __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma")))

namespace frametap::onednn {
namespace {

constexpr int64_t kLanes = 16;  // floats of a vector
constexpr float kLog2E = 1.44269504F;

inline __mmask16 FirstFloats(int64_t n) {
  return static_cast<__mmask16>(n >= kLanes ? 0xFFFF : n <= 0 ? 0 : (1u << n) - 1);
}

// Transposes 16 rows of 16 elements of 32 bits.
FRAMETAP_WIDE_VECTORS inline void Transpose(__m512i (&r)[kLanes]) {
  __m512i t[kLanes];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // Lane L of r[4 i + j] has column 4 L + j of rows 4 i to 4 i + 3.
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i even = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88), odd = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xDD);
    const __m512i even_too = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88);
    const __m512i odd_too = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xDD);
    t[j] = _mm512_shuffle_i32x4(even, even_too, 0x88);
    t[8 + j] = _mm512_shuffle_i32x4(even, even_too, 0xDD);
    t[4 + j] = _mm512_shuffle_i32x4(odd, odd_too, 0x88);
    t[12 + j] = _mm512_shuffle_i32x4(odd, odd_too, 0xDD);
  }
  std::memcpy(r, t, sizeof(r));
}

// A polynomial of PowerOfTwo. Its greatest error is 7.5e-8 of the result.
constexpr float kPowersOfTwo[] = {0.001327642663F, 0.009675529247F, 0.05550713294F,
                                  0.2402211995F,   0.6931469671F,   1.000000072F};

// Returns 2 to the power of x, which is at most 0. `polynomial`: of 2^x on [-0.5, 0.5], from the highest power on.
template <size_t n>
FRAMETAP_WIDE_VECTORS inline __m512 PowerOfTwo(__m512 x, const float (&polynomial)[n]) {
  x = _mm512_max_ps(_mm512_set1_ps(-200), x);  // a NaN stays
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 rest = _mm512_sub_ps(x, whole);
  __m512 y = _mm512_set1_ps(polynomial[0]);
#pragma GCC unroll 8
  for (size_t i = 1; i < n; ++i) y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(polynomial[i]));
  return _mm512_scalef_ps(y, whole);
}

}  // namespace
}  // namespace frametap::onednn
