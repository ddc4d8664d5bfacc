#include "frame_eval/state/tensor_state.h"

#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "frame_eval/state/unexpanded.h"

namespace frametap {

// The gradient history of a tensor, as a write in place changes it.
struct TensorState::History {
  at::Tensor tensor;
  bool has_meta = false;
  bool requires_grad = false;
  decltype(torch::autograd::AutogradMeta::grad_fn_) grad_fn;
  uint32_t output_nr = 0;

  explicit History(at::Tensor t) : tensor(std::move(t)) {
    const torch::autograd::AutogradMeta* meta = torch::autograd::impl::get_autograd_meta(tensor);
    if (meta == nullptr) return;
    has_meta = true;
    requires_grad = meta->requires_grad_;
    grad_fn = meta->grad_fn_;
    output_nr = meta->output_nr_;
  }
  void Restore() const {
    torch::autograd::AutogradMeta* meta = torch::autograd::impl::get_autograd_meta(tensor);
    if (meta == nullptr) return;
    if (!has_meta) {
      tensor.unsafeGetTensorImpl()->set_autograd_meta(nullptr);
      return;
    }
    meta->requires_grad_ = requires_grad;
    meta->grad_fn_ = grad_fn;
    meta->output_nr_ = output_nr;
  }
};

TensorState::TensorState(at::Tensor tensor)
    : tensor_(std::move(tensor)),
      copy_(Unexpanded(tensor_).clone()),
      version_(tensor_.is_inference() ? -1 : tensor_.unsafeGetTensorImpl()->version_counter().current_version()) {
  if (tensor_.layout() == c10::kStrided && tensor_.has_storage()) {
    storage_ = tensor_.storage();
    sizes_ = tensor_.sizes().vec();
    strides_ = tensor_.strides().vec();
    offset_ = tensor_.storage_offset();
  }
  histories_.emplace_back(tensor_);
  if (auto* view = torch::autograd::impl::get_view_autograd_meta(tensor_); view != nullptr && view->has_bw_view()) {
    histories_.emplace_back(view->get_backward_view().base_);
  }
}

TensorState::~TensorState() = default;
TensorState::TensorState(TensorState&&) noexcept = default;
TensorState& TensorState::operator=(TensorState&&) noexcept = default;

void TensorState::RestoreElements() const {
  RestoreSizes();
  Unexpanded(tensor_).copy_(copy_);
}

void TensorState::RestoreSizes() const {
  if (!storage_) return;
  c10::TensorImpl* const impl = tensor_.unsafeGetTensorImpl();
  if (impl->storage().unsafeGetStorageImpl() != storage_.unsafeGetStorageImpl()) {
    impl->set_storage_keep_dtype(storage_);
  }
  if (impl->sizes() == sizes_ && impl->strides() == strides_ && impl->storage_offset() == offset_) return;
  impl->set_sizes_and_strides(sizes_, strides_, offset_);
}

void TensorState::RestoreHistory() const {
  c10::VariableVersion version = tensor_.unsafeGetTensorImpl()->version_counter();  // shared, not copied
  if (version_ >= 0) version.set_version(version_);
  for (const History& history : histories_) history.Restore();
}

}  // namespace frametap
