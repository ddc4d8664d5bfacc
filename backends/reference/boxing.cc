#include "backends/reference/boxing.h"

#include <ATen/ScalarOps.h>
#include <ATen/ops/clone.h>
#include <c10/util/Exception.h>

namespace frametap {
namespace {

at::Tensor Wrapped(at::Tensor tensor) {
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

const c10::Type& WithoutOptional(const c10::Type& type) {
  const c10::Type* t = &type;
  while (t->kind() == c10::TypeKind::OptionalType) t = t->castRaw<c10::OptionalType>()->getElementType().get();
  return *t;
}

}  // namespace

Boxing BoxingFor(const c10::Type& type) {
  const bool optional = type.kind() == c10::TypeKind::OptionalType;
  switch (WithoutOptional(type).kind()) {
    case c10::TypeKind::TensorType:
      return optional ? Boxing::kOptionalTensor : Boxing::kTensor;
    case c10::TypeKind::FloatType:
      return Boxing::kFloat;
    case c10::TypeKind::IntType:
      return Boxing::kInt;
    default:
      return Boxing::kAsIs;
  }
}

c10::IValue Box(c10::IValue value, Boxing boxing) {
  switch (boxing) {
    case Boxing::kAsIs:
      break;
    case Boxing::kTensor:
      if (value.isNone()) return at::Tensor();
      [[fallthrough]];
    case Boxing::kOptionalTensor:
      if (value.isScalar()) return Wrapped(c10::scalar_to_tensor(value.toScalar()));
      break;
    case Boxing::kFloat:
      if (value.isInt()) return static_cast<double>(value.toInt());
      if (value.isBool()) return value.toBool() ? 1.0 : 0.0;
      break;
    case Boxing::kInt:
      if (value.isBool()) return int64_t{value.toBool()};
      break;
  }
  return value;
}

at::Tensor WrappedFloat(float number) {
  return Wrapped(at::detail::scalar_tensor_static(number, at::kFloat, at::kCPU));
}

c10::TypePtr ElementType(const c10::Type& type) {
  const auto* list = WithoutOptional(type).castRaw<c10::ListType>();
  return list == nullptr ? nullptr : list->getElementType();
}

at::Tensor FreshCopy(const at::Tensor& constant) {
  TORCH_CHECK(constant.defined(), "a graph that was parsed from text has no data for its constants");
  // No op can write to one that has no memory, such as an int8 kernel.
  if (constant.layout() == at::kStrided && !constant.has_storage()) return constant;
  return at::clone(constant);
}

}  // namespace frametap
