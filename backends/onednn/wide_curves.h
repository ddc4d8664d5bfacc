// The curves of layers on vectors of floats.
//   V1  They are torch's functions: an infinite x gives the same, and a NaN stays one. GELU of infinity is NaN in both.
//   V2  The error is below 5e-7 of the larger of |x| and the result's size.
#pragma once

#include "backends/onednn/layer.h"
#include "backends/onednn/wide_vectors.h"

namespace frametap::onednn {
namespace {

// Returns 1 / x for x from 1 to 1e38, and NaN for infinity.
FRAMETAP_WIDE_VECTORS inline __m512 Inverse(__m512 x) {
  const __m512 y = _mm512_rcp14_ps(x);
  return _mm512_fmadd_ps(y, _mm512_fnmadd_ps(x, y, _mm512_set1_ps(1)), y);
}

// In this order a NaN in `x` stays.
FRAMETAP_WIDE_VECTORS inline __m512 Clamped(__m512 x, float low, float high) {
  return _mm512_min_ps(_mm512_set1_ps(high), _mm512_max_ps(_mm512_set1_ps(low), x));
}

FRAMETAP_WIDE_VECTORS inline __mmask16 IsNegative(__m512 x) {
  return _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
}

FRAMETAP_WIDE_VECTORS inline __m512 Sigmoid(__m512 x) {
  const __m512 power = PowerOfTwo(_mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(-kLog2E)), kPowersOfTwo);
  const __m512 inverse = Inverse(_mm512_add_ps(power, _mm512_set1_ps(1)));
  return _mm512_mask_mul_ps(inverse, IsNegative(x), inverse, power);
}

// The distribution of the standard normal. Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
FRAMETAP_WIDE_VECTORS inline __m512 NormalDistribution(__m512 x) {
  constexpr float kSqrtHalf = 0.707106781F;
  constexpr float kTail[] = {1.061405429F, -1.453152027F, 1.421413741F, -0.284496736F, 0.254829592F};
  const __m512 z = _mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(kSqrtHalf));
  const __m512 t = Inverse(_mm512_fmadd_ps(z, _mm512_set1_ps(0.3275911F), _mm512_set1_ps(1)));
  __m512 y = _mm512_set1_ps(kTail[0]);
#pragma GCC unroll 4
  for (size_t i = 1; i < std::size(kTail); ++i) y = _mm512_fmadd_ps(y, t, _mm512_set1_ps(kTail[i]));
  const __m512 power = PowerOfTwo(_mm512_mul_ps(_mm512_mul_ps(z, z), _mm512_set1_ps(-kLog2E)), kPowersOfTwo);
  const __m512 tail = _mm512_mul_ps(_mm512_mul_ps(_mm512_mul_ps(y, t), _mm512_set1_ps(0.5F)), power);
  return _mm512_mask_sub_ps(tail, static_cast<__mmask16>(~IsNegative(x)), _mm512_set1_ps(1), tail);
}

FRAMETAP_WIDE_VECTORS inline __m512 Tanh(__m512 x) {
  // The other formula loses digits near 0.
  constexpr float kLeast = 0.2F;
  constexpr float kSmall[] = {0.0218694885F, -0.0539682540F, 0.1333333333F, -0.3333333333F};  // Taylor's series
  const __m512 size = _mm512_abs_ps(x), square = _mm512_mul_ps(x, x);
  __m512 y = _mm512_set1_ps(kSmall[0]);
#pragma GCC unroll 4
  for (size_t i = 1; i < std::size(kSmall); ++i) y = _mm512_fmadd_ps(y, square, _mm512_set1_ps(kSmall[i]));
  const __m512 small = _mm512_fmadd_ps(_mm512_mul_ps(y, square), size, size);
  const __m512 power = PowerOfTwo(_mm512_mul_ps(size, _mm512_set1_ps(-2 * kLog2E)), kPowersOfTwo);
  const __m512 one = _mm512_set1_ps(1);
  const __m512 large = _mm512_mul_ps(_mm512_sub_ps(one, power), Inverse(_mm512_add_ps(one, power)));
  const __mmask16 is_small = _mm512_cmp_ps_mask(size, _mm512_set1_ps(kLeast), _CMP_LT_OQ);
  const __m512 sign = _mm512_and_ps(x, _mm512_set1_ps(-0.0F));
  return _mm512_or_ps(_mm512_mask_mov_ps(large, is_small, small), sign);
}

// `low`, `high`: as in Layer.
template <Curve curve>
FRAMETAP_WIDE_VECTORS inline __m512 Curved(__m512 x, float low, float high) {
  constexpr float kSixth = 1.0F / 6.0F;
  if constexpr (curve == Curve::kRelu) return _mm512_max_ps(_mm512_setzero_ps(), x);
  if constexpr (curve == Curve::kClamp) return Clamped(x, low, high);
  if constexpr (curve == Curve::kLeakyRelu) return _mm512_mask_mul_ps(x, IsNegative(x), x, _mm512_set1_ps(low));
  if constexpr (curve == Curve::kHardsigmoid || curve == Curve::kHardswish) {
    const __m512 y = Clamped(_mm512_fmadd_ps(x, _mm512_set1_ps(kSixth), _mm512_set1_ps(0.5F)), 0, 1);
    return curve == Curve::kHardsigmoid ? y : _mm512_mul_ps(x, y);
  }
  if constexpr (curve == Curve::kSigmoid) return Sigmoid(x);
  if constexpr (curve == Curve::kSwish) return _mm512_mul_ps(x, Sigmoid(x));
  if constexpr (curve == Curve::kGelu) return _mm512_mul_ps(x, NormalDistribution(x));
  if constexpr (curve == Curve::kGeluTanh) {
    // 1 + tanh(u) is twice the sigmoid of 2 u.
    constexpr float kTwice = 1.595769122F;  // 2 sqrt(2 / pi)
    const __m512 cube = _mm512_fmadd_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(0.044715F), _mm512_set1_ps(1));
    return _mm512_mul_ps(x, Sigmoid(_mm512_mul_ps(_mm512_mul_ps(x, _mm512_set1_ps(kTwice)), cube)));
  }
  if constexpr (curve == Curve::kTanh) return Tanh(x);
  return x;
}

}  // namespace
}  // namespace frametap::onednn
