// The common parts of the loops of our kernels: their compilation, and conversions of elements.
#pragma once

#include <c10/util/BFloat16.h>

#include <bit>
#include <cstdint>
#include <cstring>

// The wheel must run on any x86-64; the loops are worth their wide forms.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define FRAMETAP_WIDE_LOOP __attribute__((optimize("O3"), target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FRAMETAP_WIDE_LOOP
#endif

namespace frametap::quant {

// Elements that are worth a thread. Torch's own kernels take as many.
constexpr int64_t kGrain = 32768;

// Sixteen floats that a loop treats alike. GCC 12 makes scalars of arrays in their place.
constexpr int64_t kLanes = 16;
using Lanes [[gnu::vector_size(kLanes * sizeof(float))]] = float;

[[gnu::always_inline]] inline void Load(const float* x, Lanes* lanes) { std::memcpy(lanes, x, sizeof(Lanes)); }

// Bytes are `zero_point` plus a whole number from `lo` to `hi`.
struct ByteRange {
  float inverse;  // of the scale
  float lo, hi;
  int32_t zero_point;
};

inline ByteRange RangeOf(double scale, int64_t zero_point, int64_t qmin, int64_t qmax) {
  return {1.0f / static_cast<float>(scale), static_cast<float>(qmin - zero_point),
          static_cast<float>(qmax - zero_point), static_cast<int32_t>(zero_point)};
}

// Adding and subtracting 1.5 * 2^23 rounds a float of magnitude below 2^22 half to even, and vectorises where
// nearbyint does not.
constexpr float kRounder = 12582912.0f;

[[gnu::always_inline]] inline int32_t Rounded(float value) {
  return static_cast<int32_t>((value + kRounder) - kRounder);
}

// operators/O3.
[[gnu::always_inline]] inline uint8_t ToByte(float value, float inverse, float lo, float hi, int32_t zero_point) {
  float v = value * inverse;
  v = v > lo ? v : lo;  // NaN compares false
  v = v < hi ? v : hi;
  return static_cast<uint8_t>(Rounded(v) + zero_point);
}

[[gnu::always_inline]] inline float ToFloat(uint8_t byte) { return byte; }
[[gnu::always_inline]] inline float ToFloat(float x) { return x; }
// c10's conversions of bfloat16 keep a loop from becoming vectors.
[[gnu::always_inline]] inline float ToFloat(c10::BFloat16 half) {
  return std::bit_cast<float>(static_cast<uint32_t>(half.x) << 16);
}

// Rounds half to even.
[[gnu::always_inline]] inline c10::BFloat16 ToBfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  return {static_cast<uint16_t>(value == value ? rounded : 0x7FC0), c10::BFloat16::from_bits()};
}

[[gnu::always_inline]] inline void Store(float x, float* to) { *to = x; }
[[gnu::always_inline]] inline void Store(float x, c10::BFloat16* to) { *to = ToBfloat16(x); }

}  // namespace frametap::quant
