#include "frame_eval/metadata_before.h"

#include <utility>

#include "absl/container/flat_hash_map.h"

namespace frametap {
namespace {

thread_local absl::flat_hash_map<const c10::TensorImpl*, at::Tensor> kept;

}  // namespace

void MetadataBefore::Keep(const at::Tensor& tensor, at::Tensor before) {
  kept.emplace(tensor.unsafeGetTensorImpl(), std::move(before));
}

at::Tensor MetadataBefore::Of(const at::Tensor& tensor) {
  const auto found = kept.find(tensor.unsafeGetTensorImpl());
  return found == kept.end() ? tensor : found->second;
}

void MetadataBefore::Forget() { kept.clear(); }

}  // namespace frametap
