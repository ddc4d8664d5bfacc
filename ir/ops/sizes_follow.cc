#include "ir/ops/sizes_follow.h"

#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>

#include <algorithm>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace frametap {
namespace {

bool HasTag(const c10::OperatorHandle& op, at::Tag wanted) {
  const auto& tags = op.getTags();
  return std::find(tags.begin(), tags.end(), wanted) != tags.end();
}

bool HoldsTensor(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::TensorType) return true;
  for (const auto& inner : type.containedTypes()) {
    if (HoldsTensor(*inner)) return true;
  }
  return false;
}

bool TakesTensor(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  return std::any_of(arguments.begin(), arguments.end(), [](const auto& a) { return HoldsTensor(*a.type()); });
}

bool IsProven(const c10::OperatorHandle& op, const OpRow& row) {
  return row.Has(ops::kSizesFromSizes) || row.sizes != nullptr || HasTag(op, at::Tag::pointwise) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::Meta);
}

// The overload of which `op` is the one that writes to given tensors: `add.out`, `mean.names_out`.
bool IsOutOfProven(const c10::OperatorHandle& op) {
  absl::string_view overload = op.operator_name().overload_name;
  if (!absl::ConsumeSuffix(&overload, "out")) return false;
  absl::ConsumeSuffix(&overload, "_");
  const auto plain = c10::Dispatcher::singleton().findSchema({op.operator_name().name, std::string(overload)});
  return plain && IsProven(*plain, OpRowOf(*plain));
}

}  // namespace

bool SizesFollowFromSizes(const c10::OperatorHandle& op, const OpRow& row) {
  if (row.Has(ops::kSizesFromData) || HasTag(op, at::Tag::dynamic_output_shape)) return false;
  if (!IsOfTorch(op)) return row.Has(ops::kSizesFromSizes);
  return !TakesTensor(op.schema()) || IsProven(op, row) || IsOutOfProven(op);
}

bool KeepsMetadata(const c10::OperatorHandle& op, const OpRow& row) {
  if (!op.schema().is_mutable() || row.Has(ops::kKeepsMetadata)) return true;
  if (!IsOfTorch(op) || HasTag(op, at::Tag::inplace_view) || row.Has(ops::kChangesMetadata)) return false;
  for (const c10::Argument& argument : op.schema().arguments()) {
    if (argument.is_out()) return false;
  }
  return IsProven(op, row);
}

}  // namespace frametap
