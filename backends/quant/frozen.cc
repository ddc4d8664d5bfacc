#include "backends/quant/frozen.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace frametap::quant {
namespace {

// A view is of the same memory.
const void* MemoryOf(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  return tensor.has_storage() ? static_cast<const void*>(tensor.storage().unsafeGetStorageImpl())
                              : tensor.unsafeGetTensorImpl();
}

}  // namespace

std::string IdentityOf(const at::Tensor& tensor) {
  if (!tensor.defined()) return "-";
  if (tensor.layout() != at::kStrided || !tensor.has_storage()) {
    return absl::StrCat("impl ", reinterpret_cast<uintptr_t>(tensor.unsafeGetTensorImpl()));
  }
  return absl::StrCat(reinterpret_cast<uintptr_t>(MemoryOf(tensor)), "+", tensor.storage_offset(), ":",
                      static_cast<int>(tensor.scalar_type()), "[", absl::StrJoin(tensor.sizes(), ","), "/",
                      absl::StrJoin(tensor.strides(), ","), "]");
}

std::vector<at::Tensor> WeightSet::Among(const std::vector<c10::IValue>& inputs, size_t count) const {
  std::vector<at::Tensor> weights(count);
  for (size_t i = 0; i < inputs.size() && i < count; ++i) {
    if (!inputs[i].isTensor()) continue;
    const auto found = weights_.find(IdentityOf(inputs[i].toTensor()));
    if (found != weights_.end()) weights[i] = found->second;
  }
  return weights;
}

void WeightSet::AddTo(std::vector<at::Tensor>* all) const {
  for (const auto& [name, weight] : weights_) all->push_back(weight);
}

FrozenWeights::Tensors FrozenWeights::Of(FrozenWeights* made, const std::string& what, const Tensors& from,
                                         absl::FunctionRef<Tensors()> make) {
  if (made == nullptr) return make();
  std::string key = what;
  const std::lock_guard<std::mutex> lock(made->mutex_);
  for (const at::Tensor& tensor : from) {
    absl::StrAppend(&key, " ", IdentityOf(tensor));
    made->used_.insert(MemoryOf(tensor));
  }
  const auto found = made->entries_.find(key);
  if (found != made->entries_.end()) return found->second.result;
  return made->entries_.emplace(key, Entry{from, make()}).first->second.result;
}

bool FrozenWeights::HasUsed(const at::Tensor& weight) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return used_.contains(MemoryOf(weight));
}

void FrozenWeights::AddTo(std::vector<at::Tensor>* all) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [name, entry] : entries_) {
    all->insert(all->end(), entry.from.begin(), entry.from.end());
    all->insert(all->end(), entry.result.begin(), entry.result.end());
  }
}

}  // namespace frametap::quant
