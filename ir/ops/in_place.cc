#include "ir/ops/in_place.h"

#include <algorithm>

#include "ir/ops/below_autograd.h"
#include "ir/ops/op_rows.h"

namespace frametap {
namespace {

bool IsFloat(c10::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 || dtype == at::kHalf;
}

// Strides as in a new tensor of these sizes, also for dimensions of one element, which mean nothing else.
bool HasStridesOfNew(const c10::TensorImpl& tensor) {
  int64_t stride = 1;
  for (int64_t dim = tensor.dim() - 1; dim >= 0; --dim) {
    if (tensor.strides()[static_cast<size_t>(dim)] != stride) return false;
    stride *= std::max<int64_t>(tensor.sizes()[static_cast<size_t>(dim)], 1);
  }
  return true;
}

// TensorIterator gives the result of `self` and a smaller operand the strides of a new tensor. The exception is a
// dimension of one element with the stride of the one before it: their order is another then.
bool IsBroadcastTo(const c10::TensorImpl& other, const c10::TensorImpl& self) {
  const c10::IntArrayRef from = other.sizes(), to = self.sizes();
  if (from == to) return HasStridesOfNew(other);
  if (from.size() > to.size() || to.empty() || std::find(to.begin() + 1, to.end(), 1) != to.end()) return false;
  const size_t missing = to.size() - from.size();
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] != 1 && from[i] != to[missing + i]) return false;
  }
  return true;
}

}  // namespace

std::optional<c10::OperatorHandle> InPlaceForm(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  if (!OpRowOf(name).Has(ops::kOverwrites)) return std::nullopt;
  const std::optional<c10::OperatorHandle> form =
      c10::Dispatcher::singleton().findSchema({name.name + "_", name.overload_name});
  return form && HasTorchsKernelOnCpu(op) && HasTorchsKernelOnCpu(*form) ? form : std::nullopt;
}

bool MayOverwrite(const std::vector<c10::IValue>& stack) {
  if (!stack[0].isTensor()) return false;
  c10::TensorImpl& self = *stack[0].toTensor().unsafeGetTensorImpl();
  if (stack[0].use_count() != 1 || !IsFloat(c10::typeMetaToScalarType(self.dtype())) || self.numel() == 0 ||
      self.is_wrapped_number() || self.is_inference() || self.autograd_meta() != nullptr ||
      self.version_counter().current_version() != 0 ||  // of a new one it is 0
      self.storage_offset() != 0 || !HasStridesOfNew(self)) {
    return false;
  }
  const c10::Storage& storage = self.unsafe_storage();
  if (storage.use_count() != 1 || storage.allocator() == nullptr ||
      storage.nbytes() != static_cast<size_t>(self.numel()) * self.itemsize())
    return false;
  if (stack.size() < 2 || !stack[1].isTensor()) return true;
  const c10::TensorImpl& other = *stack[1].toTensor().unsafeGetTensorImpl();
  const bool keeps_dtype = other.is_wrapped_number() ? !c10::isComplexType(c10::typeMetaToScalarType(other.dtype()))
                                                     : other.dtype() == self.dtype();
  return keeps_dtype && IsBroadcastTo(other, self);
}

std::vector<std::string> OpsWithInPlaceForm() { return OpsWith(ops::kOverwrites); }

}  // namespace frametap
