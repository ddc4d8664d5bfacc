#include "backends/onednn/tiled_attention.h"

#include <c10/util/BFloat16.h>

#if defined(__x86_64__) && defined(__linux__)

#include <sys/syscall.h>
#include <unistd.h>

#include "backends/onednn/attention_blocks.h"

#define FRAMETAP_TILES __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")))

namespace frametap::onednn {
namespace {

using Half = c10::BFloat16;

// A tile has 16 rows of 64 bytes. The second factor of a product has pairs of its rows side by side.
constexpr int64_t kRowBytes = 64, kHalves = 32, kTile = 16 * kHalves;

// Palette 1 has eight tiles, here of 16 rows of 64 bytes each. A constant, since GCC 12 takes the instruction for one that
// reads eight bytes, and drops what it would write beyond them.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileConfig kTileConfig;

__mmask32 FirstHalves(int64_t n) { return n >= kHalves ? ~__mmask32{0} : (__mmask32{1} << n) - 1; }

// The 32 features of `row` from `feature` on, with zeros after the last one and in rows that do not exist.
FRAMETAP_TILES inline __m512i FeaturesAt(const Rows<Half>& rows, int64_t row, int64_t feature) {
  if (row >= rows.count) return _mm512_setzero_si512();
  return _mm512_maskz_loadu_epi16(FirstHalves(rows.width - feature), rows.data + row * rows.step + feature);
}

// The product of the first rows of a block and of a matrix in tiles.
struct Product {
  const Half* factor;
  int64_t row;    // elements of a row of `factor`
  int64_t depth;  // elements of it that are multiplied
  const Half* tiles;
  int64_t across, down;  // elements from a tile to the next one in a row, and in a column
  float* to;
  int64_t columns;  // of a row of `to`
};

template <bool has_two>  // rows of tiles
FRAMETAP_TILES void Multiply(const Product& p, int64_t columns) {
  asm volatile("" ::: "memory");  // GCC 12 does not know that a tile is loaded from memory
  const int64_t row = p.row * static_cast<int64_t>(sizeof(Half));
  const int64_t result = p.columns * static_cast<int64_t>(sizeof(float));
  for (int64_t column = 0; column < columns; column += kBlock) {
    _tile_zero(0);
    _tile_zero(1);
    if (has_two) {
      _tile_zero(2);
      _tile_zero(3);
    }
    const Half* tile = p.tiles + column / kLanes * p.across;
    for (int64_t i = 0; i < p.depth; i += kHalves, tile += p.down) {
      _tile_loadd(4, p.factor + i, row);
      _tile_loadd(6, tile, kRowBytes);
      _tile_loadd(7, tile + p.across, kRowBytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if (has_two) {
        _tile_loadd(5, p.factor + kLanes * p.row + i, row);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    float* const to = p.to + column;
    _tile_stored(0, to, result);
    _tile_stored(1, to + kLanes, result);
    if (has_two) {
      _tile_stored(2, to + kLanes * p.columns, result);
      _tile_stored(3, to + kLanes * p.columns + kLanes, result);
    }
  }
}

void MultiplyRows(const Product& p, int64_t rows, int64_t columns) {
  rows > kLanes ? Multiply<true>(p, columns) : Multiply<false>(p, columns);
}

struct Tiles {
  using T = Half;

  class Session {
   public:
    FRAMETAP_TILES Session() { _tile_loadconfig(&kTileConfig); }
    FRAMETAP_TILES ~Session() { _tile_release(); }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
  };

  // [block of 16 keys][block of 32 features] tiles, whose rows are pairs of features.
  FRAMETAP_TILES static void PackKeys(const Rows<Half>& keys, const Memory<Half>& m) {
    Half* to = m.keys;
    for (int64_t first = 0; first < m.n; first += kLanes) {
      for (int64_t feature = 0; feature < m.wide; feature += kHalves, to += kTile) {
        __m512i rows[kLanes];
        for (int64_t i = 0; i < kLanes; ++i) rows[i] = FeaturesAt(keys, first + i, feature);
        Transpose(rows);
        for (int64_t i = 0; i < kLanes; ++i) _mm512_store_si512(to + i * kHalves, rows[i]);
      }
    }
  }

  // [block of 32 keys][block of 16 features] tiles, whose rows are pairs of keys.
  FRAMETAP_TILES static void PackValues(const Rows<Half>& values, const Memory<Half>& m) {
    // Places of a vector of pairs: element i of the first row, then element i of the second row.
    alignas(64) int16_t places[kHalves];
    for (int16_t i = 0; i < kHalves; ++i) places[i] = static_cast<int16_t>(i / 2 + i % 2 * kHalves);
    const __m512i first = _mm512_load_si512(places), second = _mm512_add_epi16(first, _mm512_set1_epi16(kLanes));
    for (int64_t key = 0; key < m.n; key += 2) {
      Half* const to = m.values + key / kHalves * (m.deep / kLanes) * kTile + key % kHalves / 2 * kHalves;
      for (int64_t feature = 0; feature < m.deep; feature += kHalves) {
        const __m512i even = FeaturesAt(values, key, feature), odd = FeaturesAt(values, key + 1, feature);
        Half* const tile = to + feature / kLanes * kTile;
        _mm512_store_si512(tile, _mm512_permutex2var_epi16(even, first, odd));
        _mm512_store_si512(tile + kTile, _mm512_permutex2var_epi16(even, second, odd));
      }
    }
  }

  FRAMETAP_TILES static void CopyQueries(const Rows<Half>& queries, int64_t first, const Memory<Half>& m) {
    for (int64_t i = 0; i < kBlock; ++i) {
      for (int64_t feature = 0; feature < m.wide; feature += kHalves) {
        _mm512_store_si512(m.queries + i * m.wide + feature, FeaturesAt(queries, first + i, feature));
      }
    }
  }

  static void MultiplyKeys(const Memory<Half>& m, int64_t rows, int64_t keys) {
    MultiplyRows({m.queries, m.wide, m.wide, m.keys, m.wide / kHalves * kTile, kTile, m.scores, m.n}, rows,
                 RoundedUp(keys));
  }

  static void MultiplyValues(const Memory<Half>& m, int64_t rows, int64_t keys) {
    MultiplyRows({m.probabilities, m.n, RoundedUp(keys), m.values, kTile, m.deep / kLanes * kTile, m.sums, m.deep},
                 rows, m.deep);
  }

  template <bool has_mask>
  FRAMETAP_TILES static float Exponentiate(const Scores<Half>& s, float greatest, int64_t padded) {
    // Its greatest error is 7.5e-5 of the result, which is rounded to 8 bits.
    static constexpr float kPolynomial[] = {0.05517121F, 0.24261027F, 0.69326098F, 0.99992813F};
    Powers sums{{_mm512_setzero_ps(), _mm512_setzero_ps()}}, powers;
    for (int64_t i = 0; i < padded; i += kBlock) {
      PowersOf<has_mask>(s, i, greatest, kPolynomial, &powers, &sums);
      const __m512bh both = _mm512_cvtne2ps_pbh(powers.x[1], powers.x[0]);
      std::memcpy(s.to + i, &both, sizeof(both));
    }
    return SumOf(sums);
  }

  FRAMETAP_TILES static void Store(const float* from, float factor, int64_t count, Half* to) {
    for (int64_t i = 0; i < count; i += kLanes) {
      const __m256bh halves = _mm512_cvtneps_pbh(_mm512_mul_ps(_mm512_load_ps(from + i), _mm512_set1_ps(factor)));
      __m256i bits;
      std::memcpy(&bits, &halves, sizeof(bits));
      _mm256_mask_storeu_epi16(to + i, FirstFloats(count - i), bits);
    }
  }
};

// Asks Linux once for the memory that tiles take in a thread's state.
void AskForTiles() {
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool is_granted = syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  TORCH_CHECK(is_granted, "attention: Linux refused the use of AMX, which the processor has");
}

}  // namespace

at::Tensor AttendInTiles(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask,
                         const AttentionOptions& options) {
  AskForTiles();
  return AttendInBlocks<Tiles>(q, k, v, mask, options);
}

}  // namespace frametap::onednn

#else

namespace frametap::onednn {

at::Tensor AttendInTiles(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                         const AttentionOptions&) {
  TORCH_CHECK(false, "attention: this processor has no AMX");
}

}  // namespace frametap::onednn

#endif
