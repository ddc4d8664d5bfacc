#include "frame_eval/segment/weak_tensor.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/TensorImpl.h>

#include <utility>

namespace frametap {
namespace {

// A dense tensor says all of itself by sizes, strides and offset.
bool IsUsual(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage() && !tensor.is_quantized() &&
         !tensor.key_set().has(c10::DispatchKey::Python);
}

}  // namespace

WeakTensor::WeakTensor(const at::Tensor& tensor) {
  if (!IsUsual(tensor)) return;
  view_.emplace(View{tensor.storage().getWeakStorageImpl(), Sizes(tensor.sizes().begin(), tensor.sizes().end()),
                     Sizes(tensor.strides().begin(), tensor.strides().end()), tensor.storage_offset(), tensor.key_set(),
                     tensor.dtype()});
}

at::Tensor WeakTensor::Get() const {
  if (!view_) return at::Tensor();
  c10::Storage storage(view_->storage.lock());
  const size_t needed =
      at::detail::computeStorageNbytes(view_->sizes, view_->strides, view_->dtype.itemsize(), view_->offset);
  if (!storage || storage.nbytes() < needed) return at::Tensor();  // or its memory was resized
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), view_->keys, view_->dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(view_->sizes, view_->strides, view_->offset);
  return tensor;
}

}  // namespace frametap
