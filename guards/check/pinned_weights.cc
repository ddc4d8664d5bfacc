#include "guards/check/pinned_weights.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "guards/objects/torch_tensor.h"

namespace frametap {

namespace {

// As in torch, what a tensor keeps for autograd is always of this class.
const torch::autograd::AutogradMeta* MetaOf(const c10::TensorImpl& impl) {
  return static_cast<const torch::autograd::AutogradMeta*>(impl.autograd_meta());
}

// A parameter says so itself; of others grad_fn and the base of a view are asked.
bool RequiresGrad(const torch::autograd::AutogradMeta* meta) {
  return meta != nullptr && (meta->requires_grad_ || meta->requires_grad());
}

}  // namespace

void PinnedWeights::Add(PyObject* tensor, const TensorGuard::Basics& basics) {
  auto known = std::find(basics_.rbegin(), basics_.rend(), basics);
  if (known == basics_.rend()) {
    basics_.push_back(basics);
    known = basics_.rbegin();
  }
  const c10::TensorImpl* impl = TensorOf(tensor).unsafeGetTensorImpl();
  held_.push_back({tensor, impl, MetaOf(*impl), &*known});
}

void PinnedWeights::Clear() {
  held_.clear();
  basics_.clear();
}

bool PinnedWeights::Hold() const {
  for (const Held& held : held_) {
    const TensorGuard::Basics& basics = *held.basics;
    if (Py_TYPE(held.object) != basics.type || TensorOf(held.object).unsafeGetTensorImpl() != held.impl ||
        !basics.HoldOf(*held.impl) || MetaOf(*held.impl) != held.meta ||
        RequiresGrad(held.meta) != basics.requires_grad) [[unlikely]]
      return false;
  }
  return true;
}

}  // namespace frametap
