#include "backends/onednn/wide_attention.h"

#if defined(__x86_64__)

#include "backends/onednn/attention_blocks.h"

namespace frametap::onednn {
namespace {

constexpr int64_t kRows = 8;  // of a product, whose sums are 16 of the 32 registers

// The product of two factors that lie row by row.
struct Product {
  const float* a;
  int64_t a_row;  // elements from a row to the next one
  const float* b;
  int64_t b_row;
  int64_t depth;  // elements of a row of `a`
  float* to;
  int64_t to_row;
};

// kRows rows of `vectors` vectors each.
template <int64_t vectors>
FRAMETAP_WIDE_VECTORS inline void MultiplyBlock(const Product& p) {
  __m512 sums[kRows][vectors];
#pragma GCC unroll 8
  for (auto& row : sums) {
#pragma GCC unroll 2
    for (__m512& sum : row) sum = _mm512_setzero_ps();
  }
  const float* b = p.b;
  for (int64_t i = 0; i < p.depth; ++i, b += p.b_row) {
    __m512 factors[vectors];
#pragma GCC unroll 2
    for (int64_t c = 0; c < vectors; ++c) factors[c] = _mm512_load_ps(b + c * kLanes);
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) {
      const __m512 a = _mm512_set1_ps(p.a[r * p.a_row + i]);
#pragma GCC unroll 2
      for (int64_t c = 0; c < vectors; ++c) sums[r][c] = _mm512_fmadd_ps(a, factors[c], sums[r][c]);
    }
  }
#pragma GCC unroll 8
  for (int64_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int64_t c = 0; c < vectors; ++c) _mm512_store_ps(p.to + r * p.to_row + c * kLanes, sums[r][c]);
  }
}

// Multiplies the first rows and columns. `b_block`: elements from kBlock columns of the second factor to the next ones.
FRAMETAP_WIDE_VECTORS void Multiply(Product p, int64_t rows, int64_t columns, int64_t b_block) {
  const float* const a = p.a;
  float* const to = p.to;
  for (int64_t column = 0; column < columns; column += kBlock, p.b += b_block) {
    for (int64_t row = 0; row < rows; row += kRows) {
      p.a = a + row * p.a_row;
      p.to = to + row * p.to_row + column;
      columns - column > kLanes ? MultiplyBlock<2>(p) : MultiplyBlock<1>(p);
    }
  }
}

// The 16 features of `row` from `feature` on, with zeros after the last one and in rows that do not exist.
FRAMETAP_WIDE_VECTORS inline __m512 FeaturesAt(const Rows<float>& rows, int64_t row, int64_t feature) {
  if (row >= rows.count) return _mm512_setzero_ps();
  return _mm512_maskz_loadu_ps(FirstFloats(rows.width - feature), rows.data + row * rows.step + feature);
}

FRAMETAP_WIDE_VECTORS void Copy(const Rows<float>& rows, int64_t first, int64_t count, int64_t width, float* to) {
  for (int64_t i = 0; i < count; ++i, to += width) {
    for (int64_t feature = 0; feature < width; feature += kLanes) {
      _mm512_store_ps(to + feature, FeaturesAt(rows, first + i, feature));
    }
  }
}

struct Wide {
  using T = float;
  struct Session {
    Session() {}
  };

  // [block of 32 keys][feature][key of the block]
  FRAMETAP_WIDE_VECTORS static void PackKeys(const Rows<float>& keys, const Memory<float>& m) {
    for (int64_t first = 0; first < m.n; first += kLanes) {
      float* const to = m.keys + first / kBlock * kBlock * m.wide + first % kBlock;
      for (int64_t feature = 0; feature < m.wide; feature += kLanes) {
        __m512i rows[kLanes];
        for (int64_t i = 0; i < kLanes; ++i) rows[i] = _mm512_castps_si512(FeaturesAt(keys, first + i, feature));
        Transpose(rows);
        for (int64_t i = 0; i < kLanes; ++i) _mm512_store_si512(to + (feature + i) * kBlock, rows[i]);
      }
    }
  }

  static void PackValues(const Rows<float>& values, const Memory<float>& m) {
    Copy(values, 0, values.count, m.deep, m.values);
  }

  static void CopyQueries(const Rows<float>& queries, int64_t first, const Memory<float>& m) {
    Copy(queries, first, kBlock, m.wide, m.queries);
  }

  static void MultiplyKeys(const Memory<float>& m, int64_t rows, int64_t keys) {
    Multiply({m.queries, m.wide, m.keys, kBlock, m.wide, m.scores, m.n}, rows, keys, kBlock * m.wide);
  }

  static void MultiplyValues(const Memory<float>& m, int64_t rows, int64_t keys) {
    Multiply({m.probabilities, m.n, m.values, m.deep, keys, m.sums, m.deep}, rows, m.deep, kBlock);
  }

  template <bool has_mask>
  FRAMETAP_WIDE_VECTORS static float Exponentiate(const Scores<float>& s, float greatest, int64_t padded) {
    Powers sums{{_mm512_setzero_ps(), _mm512_setzero_ps()}}, powers;
    for (int64_t i = 0; i < padded; i += kBlock) {
      PowersOf<has_mask>(s, i, greatest, kPowersOfTwo, &powers, &sums);
      _mm512_store_ps(s.to + i, powers.x[0]);
      _mm512_store_ps(s.to + i + kLanes, powers.x[1]);
    }
    return SumOf(sums);
  }

  FRAMETAP_WIDE_VECTORS static void Store(const float* from, float factor, int64_t count, float* to) {
    for (int64_t i = 0; i < count; i += kLanes) {
      _mm512_mask_storeu_ps(to + i, FirstFloats(count - i),
                            _mm512_mul_ps(_mm512_load_ps(from + i), _mm512_set1_ps(factor)));
    }
  }
};

}  // namespace

at::Tensor AttendWide(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask,
                      const AttentionOptions& options) {
  return AttendInBlocks<Wide>(q, k, v, mask, options);
}

}  // namespace frametap::onednn

#else

namespace frametap::onednn {

at::Tensor AttendWide(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                      const AttentionOptions&) {
  TORCH_CHECK(false, "attention: this processor has no AVX-512");
}

}  // namespace frametap::onednn

#endif
