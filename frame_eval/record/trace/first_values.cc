#include "frame_eval/record/trace/first_values.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include <cstring>

namespace frametap {
namespace {

at::Tensor Over(const at::Storage& storage, const at::Tensor& like) {
  at::Tensor out = at::detail::make_tensor<c10::TensorImpl>(at::Storage(storage), like.key_set(), like.dtype());
  out.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return out;
}

}  // namespace

void FirstValues::Before(const at::Tensor& written) {
  if (!written.has_storage()) return;
  const at::Storage& storage = written.storage();
  if (copies_.contains(storage.unsafeGetStorageImpl())) return;
  const auto size = static_cast<int64_t>(storage.nbytes());
  at::AutoDispatchBelowADInplaceOrView below;
  at::Tensor bytes = at::empty({size}, at::TensorOptions().dtype(at::kByte));
  if (size > 0) std::memcpy(bytes.mutable_data_ptr(), storage.data(), storage.nbytes());
  copies_.emplace(storage.unsafeGetStorageImpl(), Copy{written, std::move(bytes)});
}

at::Tensor FirstValues::Of(const at::Tensor& tensor) const {
  if (copies_.empty() || !tensor.has_storage()) return tensor;
  const auto found = copies_.find(tensor.storage().unsafeGetStorageImpl());
  return found == copies_.end() ? tensor : Over(found->second.bytes.storage(), tensor);
}

}  // namespace frametap
