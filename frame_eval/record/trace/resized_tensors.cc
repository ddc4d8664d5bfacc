#include "frame_eval/record/trace/resized_tensors.h"

namespace frametap {

MetadataBefore::MetadataBefore(const at::Tensor& t) : tensor(t), sizes(t.sizes().vec()) {
  if (t.layout() != c10::kStrided || !t.has_storage()) return;
  strides = t.strides().vec();
  offset = t.storage_offset();
  storage = t.storage();
}

bool MetadataBefore::IsAsItWas() const {
  const MetadataBefore now(tensor);
  return now.sizes == sizes && now.strides == strides && now.offset == offset &&
         now.storage.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl();
}

at::Tensor MetadataBefore::Restored() const {
  at::Tensor out = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), tensor.key_set(), tensor.dtype());
  out.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return out.set_requires_grad(tensor.requires_grad());
}

NodeId ResizedTensors::ResizerOf(ValueId value) const {
  if (resizers_.empty()) return NodeId();
  const auto it = resizers_.find(value.raw());
  return it == resizers_.end() ? NodeId() : it->second;
}

at::Tensor ResizedTensors::AsAtEntry(const at::Tensor& tensor) const {
  const auto found = before_.find(tensor.unsafeGetTensorImpl());
  return found == before_.end() ? tensor : found->second;
}

void ResizedTensors::Rewind(size_t values, size_t nodes) {
  absl::erase_if(resizers_, [&](const auto& one) { return one.first >= values || one.second.raw() >= nodes; });
}

}  // namespace frametap
