#include "ir/ops/sizes_follow.h"

#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <iterator>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "ir/ops/size_rules.h"

namespace frametap {
namespace {

constexpr absl::string_view kNames[] = {
#define NAME(op) #op,
#include "ir/ops/sizes_follow.def"
#undef NAME
};

bool IsListed(absl::string_view name) { return std::binary_search(std::begin(kNames), std::end(kNames), name); }

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

bool IsOfTorch(const c10::OperatorHandle& op) { return op.operator_name().getNamespace() == "aten"; }

// Its name without the namespace and without the mark of ops in place.
absl::string_view PlainName(const c10::OperatorHandle& op) {
  absl::string_view name = op.operator_name().name;
  absl::ConsumePrefix(&name, "aten::");
  if (!absl::EndsWith(name, "__")) absl::ConsumeSuffix(&name, "_");
  return name;
}

bool IsProven(const c10::OperatorHandle& op) {
  return HasTag(op, at::Tag::pointwise) || op.hasKernelForDispatchKey(c10::DispatchKey::Meta) ||
         IsListed(PlainName(op)) || HasSizeRule(op);
}

// The overload of which `op` is the one that writes to given tensors: `add.out`, `mean.names_out`.
bool IsOutOfProven(const c10::OperatorHandle& op) {
  absl::string_view overload = op.operator_name().overload_name;
  if (!absl::ConsumeSuffix(&overload, "out")) return false;
  absl::ConsumeSuffix(&overload, "_");
  const auto plain = c10::Dispatcher::singleton().findSchema({op.operator_name().name, std::string(overload)});
  return plain && IsProven(*plain);
}

}  // namespace

bool SizesFollowFromSizes(const c10::OperatorHandle& op) {
  if (!IsOfTorch(op)) return false;
  if (HasTag(op, at::Tag::dynamic_output_shape)) return false;
  if (!TakesTensor(op.schema())) return op.operator_name().name != "aten::from_file";
  return IsProven(op) || IsOutOfProven(op);
}

bool KeepsMetadata(const c10::OperatorHandle& op) {
  static const auto* const changing = new absl::flat_hash_set<absl::string_view>{"resize",
                                                                                 "resize_as",
                                                                                 "set",
                                                                                 "set_data",
                                                                                 "sparse_resize",
                                                                                 "sparse_resize_and_clear",
                                                                                 "resize_output",
                                                                                 "_resize_output",
                                                                                 "rename",
                                                                                 "_coalesced",
                                                                                 "resize_as_sparse",
                                                                                 "copy_sparse_to_sparse",
                                                                                 "_copy_from_and_resize",
                                                                                 "storage_resize"};
  if (!op.schema().is_mutable()) return true;
  if (op.operator_name().name == "aten::detach_") return true;  // it changes autograd's data, in spite of its tag
  if (!IsOfTorch(op) || HasTag(op, at::Tag::inplace_view) || changing->contains(PlainName(op))) return false;
  for (const c10::Argument& argument : op.schema().arguments()) {
    if (argument.is_out()) return false;
  }
  return IsProven(op);
}

}  // namespace frametap
