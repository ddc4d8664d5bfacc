#include "backends/quant/concatenate.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "backends/quant/wide_loop.h"

namespace frametap::quant {
namespace {

constexpr int64_t kBytes = 65536;  // that are worth a thread
constexpr int64_t kBlock = 16384;  // bytes of a result that are written at once, part by part

// Copies `count` pieces of at least `size` bytes. The end of a piece is copied with the last whole `size` bytes of it.
template <size_t size>
[[gnu::always_inline]] inline void CopyPieces(const char* from, size_t piece, char* to, size_t step, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    for (size_t at = 0; at + size <= piece; at += size) std::memcpy(to + at, from + at, size);
    std::memcpy(to + piece - size, from + piece - size, size);
    from += piece;
    to += step;
  }
}

FRAMETAP_WIDE_LOOP
void CopyLong(const char* __restrict from, size_t piece, char* __restrict to, size_t step, int64_t count) {
  CopyPieces<64>(from, piece, to, step, count);
}
FRAMETAP_WIDE_LOOP
void CopyShort(const char* __restrict from, size_t piece, char* __restrict to, size_t step, int64_t count) {
  CopyPieces<16>(from, piece, to, step, count);
}

// Copies pieces that are dense to every `step` bytes.
void Copy(const char* from, size_t piece, char* to, size_t step, int64_t count) {
  if (piece >= 64 && piece < 1024) return CopyLong(from, piece, to, step, count);
  if (piece >= 16 && piece < 64) return CopyShort(from, piece, to, step, count);
  for (int64_t i = 0; i < count; ++i)
    std::memcpy(to + static_cast<size_t>(i) * step, from + static_cast<size_t>(i) * piece, piece);
}

// Whether all have the sizes of the first, except along `dim`, and its type.
bool FitEachOther(at::TensorList tensors, int64_t dim) {
  const at::Tensor& first = tensors[0];
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& x) {
    if (x.dim() != first.dim() || x.scalar_type() != first.scalar_type() || !x.device().is_cpu()) return false;
    for (int64_t i = 0; i < x.dim(); ++i) {
      if (i != dim && x.size(i) != first.size(i)) return false;
    }
    return true;
  });
}

std::optional<at::MemoryFormat> LayoutOfAll(at::TensorList tensors) {
  constexpr std::array<at::MemoryFormat, 2> kLayouts{at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast};
  for (const at::MemoryFormat layout : kLayouts) {
    if (std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& x) { return x.is_contiguous(layout); })) {
      return layout;
    }
  }
  return std::nullopt;
}

}  // namespace

at::Tensor Concatenate(at::TensorList tensors, int64_t given) {
  if (tensors.empty() || tensors[0].dim() == 0) return at::cat(tensors, given);
  const int64_t rank = tensors[0].dim(), dim = at::maybe_wrap_dim(given, rank);
  const auto layout = LayoutOfAll(tensors);
  if (!layout || !FitEachOther(tensors, dim)) return at::cat(tensors, given);
  const bool is_by_pixel = *layout == at::MemoryFormat::ChannelsLast;
  c10::DimVector sizes(tensors[0].sizes().begin(), tensors[0].sizes().end());
  sizes[dim] = 0;
  for (const at::Tensor& x : tensors) sizes[dim] += x.size(dim);
  at::Tensor result = at::detail::empty_cpu(sizes, tensors[0].scalar_type(), false, *layout);
  if (result.numel() == 0) return result;
  // The dimensions in their order in memory.
  std::vector<int64_t> order{0, 2, 3, 1};
  if (!is_by_pixel) {
    order.resize(static_cast<size_t>(rank));
    std::iota(order.begin(), order.end(), 0);
  }
  const auto place = std::find(order.begin(), order.end(), dim);
  int64_t rows = 1;
  auto inner = static_cast<int64_t>(result.element_size());
  for (auto i = order.begin(); i != place; ++i) rows *= sizes[*i];
  for (auto i = place + 1; i != order.end(); ++i) inner *= sizes[*i];
  const int64_t row = inner * sizes[dim];
  auto* const to = static_cast<char*>(result.mutable_data_ptr());
  at::parallel_for(0, rows, std::max<int64_t>(1, kBytes / row), [&](int64_t begin, int64_t end) {
    const int64_t block = std::max<int64_t>(1, kBlock / row);
    for (int64_t first = begin; first < end; first += block) {
      const int64_t count = std::min(block, end - first);
      char* here = to + first * row;
      for (const at::Tensor& x : tensors) {
        const int64_t piece = inner * x.size(dim);
        if (piece == 0) continue;
        const auto* const from = static_cast<const char*>(x.const_data_ptr()) + first * piece;
        Copy(from, static_cast<size_t>(piece), here, static_cast<size_t>(row), count);
        here += piece;
      }
    }
  });
  return result;
}

}  // namespace frametap::quant
