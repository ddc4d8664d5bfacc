#include "ir/ops/memory_overlap.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace frametap {

bool MayOverlap(c10::ArrayRef<at::Tensor> tensors) {
  std::vector<std::pair<const char*, const char*>> ranges;
  ranges.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) continue;
    const auto* const begin = static_cast<const char*>(tensor.const_data_ptr());
    int64_t last = 0;
    for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
    if (begin != nullptr) ranges.emplace_back(begin, begin + (last + 1) * static_cast<int64_t>(tensor.element_size()));
  }
  std::sort(ranges.begin(), ranges.end());
  const auto overlap = [](const auto& one, const auto& next) { return next.first < one.second; };
  return std::adjacent_find(ranges.begin(), ranges.end(), overlap) != ranges.end();
}

}  // namespace frametap
