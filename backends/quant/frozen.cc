#include "backends/quant/frozen.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace frametap::quant {

std::string IdentityOf(const at::Tensor& tensor) {
  if (!tensor.defined()) return "-";
  if (tensor.layout() != at::kStrided || !tensor.has_storage()) {
    return absl::StrCat("impl ", reinterpret_cast<uintptr_t>(tensor.unsafeGetTensorImpl()));
  }
  return absl::StrCat(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()), ":", static_cast<int>(tensor.scalar_type()),
                      "[", absl::StrJoin(tensor.sizes(), ","), "/", absl::StrJoin(tensor.strides(), ","), "]");
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

FrozenWeights::Tensors FrozenWeights::Of(FrozenWeights* made, const std::string& what, const Tensors& from,
                                         absl::FunctionRef<Tensors()> make) {
  if (made == nullptr) return make();
  std::string key = what;
  for (const at::Tensor& tensor : from) absl::StrAppend(&key, " ", IdentityOf(tensor));
  const std::lock_guard<std::mutex> lock(made->mutex_);
  const auto found = made->entries_.find(key);
  if (found != made->entries_.end()) return found->second.result;
  return made->entries_.emplace(key, Entry{from, make()}).first->second.result;
}

}  // namespace frametap::quant
