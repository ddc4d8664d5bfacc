#include "frame_eval/segment/changes.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"
#include "frame_eval/segment/segment.h"
#include "ir/graph/builtin_op.h"
#include "ir/graph/element_numbers.h"
#include "ir/ops/op_facts.h"

namespace frametap {
namespace {

// Autograd's conditions for writing to a tensor, beside the facts that every guard holds: leaves and some views
// refuse.
uint64_t HistoryOf(uint64_t hash, const at::Tensor& tensor) {
  const torch::autograd::AutogradMeta* meta = torch::autograd::impl::get_autograd_meta(tensor);
  hash = absl::HashOf(hash, meta != nullptr && meta->requires_grad_);
  const auto* view = torch::autograd::impl::get_view_autograd_meta(tensor);
  if (view == nullptr || !view->has_bw_view()) return hash;
  meta = torch::autograd::impl::get_autograd_meta(view->get_backward_view().base_);
  return absl::HashOf(hash, static_cast<int>(view->get_creation_meta()), meta != nullptr && meta->requires_grad_);
}

// The inputs that share memory, and the distance between their beginnings: torch refuses to write to some memory that
// it reads.
uint64_t SharingOf(uint64_t hash, const std::vector<c10::IValue>& inputs) {
  std::vector<std::pair<const c10::StorageImpl*, size_t>> storages;
  storages.reserve(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].isTensor() || !inputs[i].toTensor().has_storage()) continue;
    storages.emplace_back(inputs[i].toTensor().storage().unsafeGetStorageImpl(), i);
  }
  std::sort(storages.begin(), storages.end());
  uint64_t pairs = 0;  // their sum: the order of addresses says nothing
  for (size_t k = 1; k < storages.size(); ++k) {
    const auto& [storage, i] = storages[k - 1];
    const auto& [other, j] = storages[k];
    if (storage != other) continue;
    const int64_t apart = inputs[j].toTensor().storage_offset() - inputs[i].toTensor().storage_offset();
    pairs += absl::HashOf(i, j, apart);
  }
  return absl::HashOf(hash, pairs);
}

}  // namespace

uint64_t SizesOf(const Segment& segment, const std::vector<c10::IValue>& inputs) {
  uint64_t hash = inputs.size();
  for (const c10::IValue& input : inputs) {
    if (input.isInt()) hash = absl::HashOf(hash, input.toInt());
    if (input.isDouble()) hash = absl::HashOf(hash, input.toDouble());
    if (input.isBool()) hash = absl::HashOf(hash, input.toBool());
    if (!input.isTensor()) continue;
    const at::Tensor& tensor = input.toTensor();
    hash = absl::HashOf(hash, tensor.dim());
    for (const int64_t size : tensor.sizes()) hash = absl::HashOf(hash, size);
    if (tensor.layout() != c10::kStrided) continue;
    if (tensor.has_storage()) hash = absl::HashOf(hash, tensor.storage_offset(), tensor.storage().nbytes());
    for (const int64_t stride : tensor.strides()) hash = absl::HashOf(hash, stride);
  }
  for (const uint32_t i : segment.written_inputs) hash = HistoryOf(hash, inputs[i].toTensor());
  return SharingOf(hash, inputs);
}

void DescribeChanges(Segment& segment, const absl::flat_hash_set<c10::StorageImpl*>* written) {
  if (written == nullptr) return;
  // Those that share memory with others that are written to are among them.
  std::vector<uint32_t>& all = segment.written_inputs;
  for (size_t i = 0; i < segment.examples.values.size(); ++i) {
    const c10::IValue& example = segment.examples.values[i];
    if (!example.isTensor() || !example.toTensor().has_storage()) continue;
    if (written->contains(example.toTensor().storage().unsafeGetStorageImpl())) all.push_back(static_cast<uint32_t>(i));
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  for (const uint32_t i : all) {
    if (segment.examples.values[i].toTensor().layout() != c10::kStrided) return;
  }
  segment.undoable = true;
  bool changed = segment.uses_random, sizes_from_elements = false;
  ElementNumbers numbers;
  for (const Node& node : segment.ir.graph.nodes) {
    numbers.Add(segment.ir.graph, node);
    // An assumption that is checked after a change must be checked before it.
    segment.raises_on_elements |= changed && (node.builtin_op == BuiltinOp::kContiguous || numbers.MayFail(node));
    if (!node.op) continue;
    const OpFacts& facts = FactsOf(*node.op);
    changed = changed || facts.changes_what_was();
    segment.uses_random = segment.uses_random || facts.random;
    sizes_from_elements = sizes_from_elements || facts.data_dependent_size || facts.scalar_from_data;
    segment.raises_on_elements =
        segment.raises_on_elements || (changed && (facts.raises_on_elements || sizes_from_elements));
  }
  segment.sizes_that_ran.insert(SizesOf(segment, segment.examples.values));
}

}  // namespace frametap
