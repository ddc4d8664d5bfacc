#include "backends/quant/pointwise.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "backends/quant/wide_loop.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

namespace frametap::quant {
namespace {

// Shorter rows of a broadcast operand are copied: a call for each would take longer.
constexpr int64_t kShortestRow = 16;

FRAMETAP_WIDE_LOOP
void AddLoop(const uint8_t* __restrict a, float a_scale, int32_t a_zero, const uint8_t* __restrict b, float b_scale,
             int32_t b_zero, uint8_t* __restrict to, int64_t n, float inverse, float lo, float hi, int32_t zero_point) {
  for (int64_t i = 0; i < n; ++i) {
    const float sum = static_cast<float>(static_cast<int32_t>(a[i]) - a_zero) * a_scale +
                      static_cast<float>(static_cast<int32_t>(b[i]) - b_zero) * b_scale;
    to[i] = ToByte(sum, inverse, lo, hi, zero_point);
  }
}

FRAMETAP_WIDE_LOOP
void MulLoop(const uint8_t* __restrict a, int32_t a_zero, const uint8_t* __restrict b, int32_t b_zero,
             uint8_t* __restrict to, int64_t n, float steps, float lo, float hi, int32_t zero_point) {
  for (int64_t i = 0; i < n; ++i) {
    const int32_t product = (static_cast<int32_t>(a[i]) - a_zero) * (static_cast<int32_t>(b[i]) - b_zero);
    to[i] = ToByte(static_cast<float>(product), steps, lo, hi, zero_point);
  }
}

void CheckBytes(const at::Tensor& q, const char* op) {
  TORCH_CHECK(q.scalar_type() == at::kByte && q.device().is_cpu(), op, ": expected a uint8 tensor on the CPU, got ",
              q.scalar_type(), " on ", q.device());
}

// Two operands over the result's sizes, in the order in which the result lies in memory.
class Pair {
 public:
  Pair(const at::Tensor& a, const at::Tensor& b, const char* op) {
    CheckBytes(a, op);
    CheckBytes(b, op);
    const c10::DimVector sizes = a.sizes().equals(b.sizes()) ? c10::DimVector(a.sizes()) : Broadcast(a, b);
    const at::Tensor& larger = a.numel() >= b.numel() ? a : b;
    const bool has_format = larger.dim() == static_cast<int64_t>(sizes.size());
    const at::MemoryFormat format = has_format ? larger.suggest_memory_format() : at::MemoryFormat::Contiguous;
    to = at::detail::empty_cpu(sizes, at::kByte, false, format);
    a_ = In(a, sizes, format);
    b_ = In(b, sizes, format);
    if (to.numel() == 0) return;
    row_ = DenseRow();
    if (row_ < kShortestRow && row_ < to.numel()) {
      a_ = a_.contiguous(format);
      b_ = b_.contiguous(format);
      row_ = DenseRow();
    }
  }

  // Calls `loop(a, b, to, n)` for parts of the memory.
  template <class F>
  void Run(F&& loop) const {
    if (to.numel() == 0) return;
    const uint8_t* const a = a_.const_data_ptr<uint8_t>();
    const uint8_t* const b = b_.const_data_ptr<uint8_t>();
    uint8_t* const t = to.mutable_data_ptr<uint8_t>();
    if (row_ == to.numel()) {
      at::parallel_for(0, row_, kGrain,
                       [&](int64_t begin, int64_t end) { loop(a + begin, b + begin, t + begin, end - begin); });
      return;
    }
    at::parallel_for(0, to.numel() / row_, std::max<int64_t>(1, kGrain / row_), [&](int64_t begin, int64_t end) {
      RowWalk walk(*this, begin);
      for (int64_t i = begin; i < end; ++i, walk.Next()) loop(a + walk.a, b + walk.b, t + i * row_, row_);
    });
  }

  at::Tensor to;

 private:
  static c10::DimVector Broadcast(const at::Tensor& a, const at::Tensor& b) {
    return at::infer_size_dimvector(a.sizes(), b.sizes());
  }

  // The operand in this format, with strides of 0 where it is broadcast.
  static at::Tensor In(const at::Tensor& q, at::IntArrayRef sizes, at::MemoryFormat format) {
    std::vector<int64_t> own(sizes.size(), 1);
    std::copy_backward(q.sizes().begin(), q.sizes().end(), own.end());
    const at::Tensor full = q.dim() == static_cast<int64_t>(sizes.size()) ? q : q.reshape(own);
    return full.contiguous(format).expand(sizes);
  }

  // The dimensions from the outermost in memory.
  void Order() {
    order_.resize(static_cast<size_t>(to.dim()));
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(), [&](int64_t x, int64_t y) { return to.stride(x) > to.stride(y); });
  }

  // The number of last elements that lie one after the other in both operands.
  int64_t DenseRow() {
    Order();
    int64_t row = 1;
    while (!order_.empty()) {
      const int64_t dim = order_.back();
      const bool is_dense = to.size(dim) == 1 || (a_.stride(dim) == row && b_.stride(dim) == row);
      if (!is_dense) break;
      row *= to.size(dim);
      order_.pop_back();
    }
    return row;
  }

  // The places of a row in both operands; `order_` has the dimensions outside of rows.
  struct RowWalk {
    RowWalk(const Pair& pair, int64_t row) : pair(pair), index(pair.order_.size()) {
      for (size_t k = index.size(); k-- > 0;) {
        const int64_t size = pair.to.size(pair.order_[k]);
        Move(k, row % size);
        row /= size;
      }
    }
    void Next() {
      for (size_t k = index.size(); k-- > 0;) {
        if (index[k] + 1 < pair.to.size(pair.order_[k])) return Move(k, 1);
        Move(k, -index[k]);
      }
    }
    void Move(size_t k, int64_t by) {
      index[k] += by;
      a += by * pair.a_.stride(pair.order_[k]);
      b += by * pair.b_.stride(pair.order_[k]);
    }

    const Pair& pair;
    c10::SmallVector<int64_t, 5> index;
    int64_t a = 0, b = 0;
  };

  at::Tensor a_, b_;
  std::vector<int64_t> order_;
  int64_t row_ = 1;
};

void LookUp(const uint8_t* __restrict from, const uint8_t* __restrict table, uint8_t* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = table[from[i]];
}

#if defined(__x86_64__) && defined(__GNUC__)
// Two look-ups among 128 bytes each; the highest bit of a byte picks one.
__attribute__((target("avx512f,avx512bw,avx512vbmi"))) void LookUpVbmi(const uint8_t* from, const uint8_t* table,
                                                                       uint8_t* to, int64_t n) {
  const __m512i t0 = _mm512_loadu_si512(table), t1 = _mm512_loadu_si512(table + 64);
  const __m512i t2 = _mm512_loadu_si512(table + 128), t3 = _mm512_loadu_si512(table + 192);
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const __m512i x = _mm512_loadu_si512(from + i);
    const __m512i low = _mm512_permutex2var_epi8(t0, x, t1), high = _mm512_permutex2var_epi8(t2, x, t3);
    _mm512_storeu_si512(to + i, _mm512_mask_blend_epi8(_mm512_movepi8_mask(x), low, high));
  }
  LookUp(from + i, table, to + i, n - i);
}

bool HasVbmi() {
  static const bool has = __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bw");
  return has;
}
#else
bool HasVbmi() { return false; }
void LookUpVbmi(const uint8_t* from, const uint8_t* table, uint8_t* to, int64_t n) { LookUp(from, table, to, n); }
#endif

}  // namespace

at::Tensor AddBytes(const at::Tensor& a, double a_scale, int64_t a_zero, const at::Tensor& b, double b_scale,
                    int64_t b_zero, double scale, int64_t zero_point, int64_t qmin, int64_t qmax, bool relu) {
  const Pair pair(a, b, "qadd");
  const float inverse = 1.0f / static_cast<float>(scale);
  const int64_t floor = relu ? std::max(qmin, zero_point) : qmin;
  pair.Run([&](const uint8_t* l, const uint8_t* r, uint8_t* t, int64_t n) {
    AddLoop(l, static_cast<float>(a_scale), static_cast<int32_t>(a_zero), r, static_cast<float>(b_scale),
            static_cast<int32_t>(b_zero), t, n, inverse, static_cast<float>(floor - zero_point),
            static_cast<float>(qmax - zero_point), static_cast<int32_t>(zero_point));
  });
  return pair.to;
}

at::Tensor MulBytes(const at::Tensor& a, int64_t a_zero, const at::Tensor& b, int64_t b_zero, double product_scale,
                    double scale, int64_t zero_point, int64_t qmin, int64_t qmax) {
  const Pair pair(a, b, "qmul");
  pair.Run([&](const uint8_t* l, const uint8_t* r, uint8_t* t, int64_t n) {
    MulLoop(l, static_cast<int32_t>(a_zero), r, static_cast<int32_t>(b_zero), t, n,
            static_cast<float>(product_scale / scale), static_cast<float>(qmin - zero_point),
            static_cast<float>(qmax - zero_point), static_cast<int32_t>(zero_point));
  });
  return pair.to;
}

at::Tensor LookUpBytes(const at::Tensor& q, const at::Tensor& table) {
  CheckBytes(q, "qcurve");
  TORCH_CHECK(table.scalar_type() == at::kByte && table.numel() == 256 && table.is_contiguous(),
              "qcurve: expected a table of 256 bytes");
  const at::MemoryFormat format = q.suggest_memory_format();
  const at::Tensor from = q.contiguous(format);
  at::Tensor to = at::detail::empty_cpu(q.sizes(), at::kByte, false, format);
  const uint8_t* const f = from.const_data_ptr<uint8_t>();
  const uint8_t* const bytes = table.const_data_ptr<uint8_t>();
  uint8_t* const t = to.mutable_data_ptr<uint8_t>();
  at::parallel_for(0, from.numel(), kGrain, [&](int64_t begin, int64_t end) {
    (HasVbmi() ? LookUpVbmi : LookUp)(f + begin, bytes, t + begin, end - begin);
  });
  return to;
}

}  // namespace frametap::quant
