// Attention block by block: the walk and the softmax of our own kernels of attention. The scores of a block of queries stay in the
// cache.
//   B1  Results are as Attend says (attention.h): A1, A2 and A4.
//   B2  Keys and values are packed once for each head and thread. Memory follows the keys, and not their square.
//   B3  Elements of a vector or tile that do not exist are zeros in the packed factors, and no scores are read for them.
// Not here: products (tiled_attention.cc, wide_attention.cc), the choice between kernels (attention.cc).
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

#include "backends/onednn/attention.h"
#include "backends/onednn/scratchpad.h"
#include "backends/onednn/wide_vectors.h"

namespace frametap::onednn {
namespace {

constexpr int64_t kBlock = 2 * kLanes;  // queries, keys or features that are taken at a time
constexpr int64_t kGrainOfAttention = int64_t{1} << 20;

int64_t RoundedUp(int64_t n) { return (n + kBlock - 1) / kBlock * kBlock; }

struct Sizes {
  int64_t batch, heads, queries, keys;
  int64_t width;  // features of a key
  int64_t depth;  // features of a value

  int64_t blocks() const { return (queries + kBlock - 1) / kBlock; }
};

// Memory of one thread, which begins at a page. Sizes are rounded up to blocks.
template <class T>
struct Memory {
  int64_t wide, deep, n;  // width, depth and keys
  T* keys;                // [n][wide] in the order of the kernel
  T* values;              // [n][deep] in the order of the kernel
  T* queries;             // [kBlock][wide]
  float* scores;          // [kBlock][n]
  T* probabilities;       // [kBlock][n]; the scores themselves, if these are of the same type
  float* sums;            // [kBlock][deep]
};

template <class T>
Memory<T> MemoryOfThread(const Sizes& e) {
  constexpr bool is_in_place = std::is_same_v<T, float>;
  Memory<T> m{};
  m.wide = RoundedUp(e.width), m.deep = RoundedUp(e.depth), m.n = RoundedUp(e.keys);
  constexpr int64_t kElement = sizeof(T), kFloat = sizeof(float);
  const int64_t bytes[] = {m.n * m.wide * kElement,
                           m.n * m.deep * kElement,
                           kBlock * m.wide * kElement,
                           kBlock * m.n * kFloat,
                           is_in_place ? 0 : kBlock * m.n * kElement,
                           kBlock * m.deep * kFloat};
  int64_t all = 0;
  for (const int64_t size : bytes) all += size;
  char* at = static_cast<char*>(Scratchpad<Memory<T>>::OfThread(static_cast<size_t>(all)));
  auto next = [&, i = 0]() mutable { return std::exchange(at, at + bytes[i++]); };
  m.keys = reinterpret_cast<T*>(next());
  m.values = reinterpret_cast<T*>(next());
  m.queries = reinterpret_cast<T*>(next());
  m.scores = reinterpret_cast<float*>(next());
  m.probabilities = reinterpret_cast<T*>(next());
  if constexpr (is_in_place) m.probabilities = m.scores;
  m.sums = reinterpret_cast<float*>(next());
  return m;
}

// The positions of one head.
template <class T>
struct Rows {
  const T* data;
  int64_t step;   // from a position to the next one
  int64_t count;  // positions
  int64_t width;  // features
};

template <class T>
Rows<T> RowsOf(const at::Tensor& x, int64_t head) {
  const int64_t batch = head / x.size(1);
  return {x.const_data_ptr<T>() + batch * x.stride(0) + head % x.size(1) * x.stride(1), x.stride(2), x.size(2),
          x.size(3)};
}

// A row of scores, which becomes probabilities times a number.
template <class T>
struct Scores {
  float* scores;
  const float* mask;  // null, or of `count` numbers
  float scale;
  int64_t count;
  T* to;
};

constexpr float kInfinity = std::numeric_limits<float>::infinity();

enum class MaskUse : uint8_t { kNone, kAdded, kReplaces };

// Returns the greatest score, with its scale and mask. With a mask, the row becomes such scores.
template <MaskUse use, class T>
FRAMETAP_WIDE_VECTORS float FindGreatest(const Scores<T>& s) {
  __m512 most[2] = {_mm512_set1_ps(-kInfinity), _mm512_set1_ps(-kInfinity)};
  for (int64_t i = 0; i < s.count; i += kBlock) {
#pragma GCC unroll 2
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t first = i + half * kLanes;
      const __mmask16 some = FirstFloats(s.count - first);
      __m512 x = _mm512_mul_ps(_mm512_load_ps(s.scores + first), _mm512_set1_ps(s.scale));
      if (use != MaskUse::kNone) {
        const __m512 mask = _mm512_maskz_loadu_ps(some, s.mask + first);
        x = use == MaskUse::kAdded
                ? _mm512_add_ps(x, mask)
                : _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(mask, _mm512_setzero_ps(), _CMP_NEQ_UQ), mask);
        _mm512_store_ps(s.scores + first, x);
      }
      most[half] = _mm512_mask_max_ps(most[half], some, most[half], x);
    }
  }
  return _mm512_reduce_max_ps(_mm512_max_ps(most[0], most[1]));
}

// The logarithms of probabilities of a vector of scores, to base 2, up to a sum.
template <bool has_mask>
FRAMETAP_WIDE_VECTORS inline __m512 Exponents(__m512 score, float scale, float greatest) {
  // With a mask the difference comes first: the least number would overflow.
  if (has_mask) return _mm512_mul_ps(_mm512_sub_ps(score, _mm512_set1_ps(greatest)), _mm512_set1_ps(kLog2E));
  return _mm512_fmadd_ps(score, _mm512_set1_ps(scale * kLog2E), _mm512_set1_ps(-greatest * kLog2E));
}

// The powers of a block of scores from `first` on, with zeros from `count` on.
struct Powers {
  __m512 x[2];
};

template <bool has_mask, size_t n, class T>
FRAMETAP_WIDE_VECTORS inline void PowersOf(const Scores<T>& s, int64_t first, float greatest,
                                           const float (&polynomial)[n], Powers* to, Powers* sums) {
#pragma GCC unroll 2
  for (int64_t half = 0; half < 2; ++half) {
    const int64_t place = first + half * kLanes;
    const __m512 power =
        PowerOfTwo(Exponents<has_mask>(_mm512_load_ps(s.scores + place), s.scale, greatest), polynomial);
    to->x[half] = _mm512_maskz_mov_ps(FirstFloats(s.count - place), power);
    sums->x[half] = _mm512_add_ps(sums->x[half], to->x[half]);
  }
}

FRAMETAP_WIDE_VECTORS inline float SumOf(const Powers& powers) {
  return _mm512_reduce_add_ps(_mm512_add_ps(powers.x[0], powers.x[1]));
}

// Sets `to` to the probabilities times the number that is returned, and to zero from `count` to `padded`. Kernel::Exponentiate
// does so for whole vectors.
template <class Kernel, MaskUse use, class T>
float Softmax(const Scores<T>& s, int64_t padded) {
  constexpr bool has_mask = use != MaskUse::kNone;
  float greatest = FindGreatest<use>(s);
  if (has_mask && greatest == -kInfinity) greatest = 0;  // attention/A4
  return Kernel::template Exponentiate<has_mask>(s, greatest, padded);
}

// Returns [batch, queries, heads, features]. `mask`: undefined, or of float32 with dense keys.
// A Kernel has an element type T and a Session, which a thread keeps while it works. Its functions pack the keys and values of a
// head, copy a block of queries, multiply the first rows of a block, and round a row of sums.
template <class Kernel>
at::Tensor AttendInBlocks(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask,
                          const AttentionOptions& options) {
  using T = typename Kernel::T;
  const Sizes e{q.size(0), q.size(1), q.size(2), k.size(2), q.size(3), v.size(3)};
  const at::Tensor added = mask.defined() ? mask.expand({e.batch, e.heads, e.queries, e.keys}) : at::Tensor();
  at::Tensor result = at::detail::empty_cpu({e.batch, e.queries, e.heads, e.depth}, q.scalar_type());
  T* const to = result.mutable_data_ptr<T>();
  const auto factor = static_cast<float>(options.scale);
  const float of_nothing = options.gives_nan ? std::numeric_limits<float>::quiet_NaN() : 0;
  const int64_t work = kBlock * e.keys * (e.width + e.depth), tasks = e.batch * e.heads * e.blocks();
  at::parallel_for(0, tasks, std::max<int64_t>(1, kGrainOfAttention / work), [&](int64_t begin, int64_t end) {
    const Memory<T> m = MemoryOfThread<T>(e);
    const typename Kernel::Session session;
    int64_t packed = -1;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t head = task / e.blocks(), first = task % e.blocks() * kBlock;
      const int64_t batch = head / e.heads, head_of_batch = head % e.heads;
      const int64_t shared = head / (e.heads / k.size(1));  // by batches, as `head`
      if (shared != packed) {
        Kernel::PackKeys(RowsOf<T>(k, shared), m);
        Kernel::PackValues(RowsOf<T>(v, shared), m);
        packed = shared;
      }
      Kernel::CopyQueries(RowsOf<T>(q, head), first, m);
      const int64_t rows = std::min(kBlock, e.queries - first);
      const int64_t seen = options.is_causal ? std::min(first + rows, e.keys) : e.keys;
      Kernel::MultiplyKeys(m, rows, seen);
      float inverse[kBlock];
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t query = first + i;
        Scores<T> row{m.scores + i * m.n, nullptr, factor, options.is_causal ? std::min(query + 1, e.keys) : e.keys,
                      m.probabilities + i * m.n};
        if (added.defined()) {
          row.mask = added.const_data_ptr<float>() + batch * added.stride(0) + head_of_batch * added.stride(1) +
                     query * added.stride(2);
        }
        const auto softmax = row.mask == nullptr     ? Softmax<Kernel, MaskUse::kNone, T>
                             : options.mask_replaces ? Softmax<Kernel, MaskUse::kReplaces, T>
                                                     : Softmax<Kernel, MaskUse::kAdded, T>;
        const float sum = softmax(row, RoundedUp(seen));
        inverse[i] = sum == 0 ? of_nothing : 1 / sum;
      }
      Kernel::MultiplyValues(m, rows, seen);
      for (int64_t i = 0; i < rows; ++i) {
        T* const row = to + ((batch * e.queries + first + i) * e.heads + head_of_batch) * e.depth;
        Kernel::Store(m.sums + i * m.deep, inverse[i], e.depth, row);
      }
    }
  });
  return result;
}

}  // namespace
}  // namespace frametap::onednn
