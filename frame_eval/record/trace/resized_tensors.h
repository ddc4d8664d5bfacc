// ResizedTensors: ops that give an existing tensor other sizes, strides or memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "ir/graph/ids.h"

namespace frametap {

// The metadata of an argument that an op may write to, from before the op.
struct MetadataBefore {
  explicit MetadataBefore(const at::Tensor& t);
  bool IsAsItWas() const;
  // Returns a tensor with the sizes, strides and memory from before. Its elements may have been written.
  at::Tensor Restored() const;

  at::Tensor tensor;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  c10::Storage storage;
};

class ResizedTensors {
 public:
  // The op at `node` may have given the value's tensor other sizes, and does not show which (it returns another tensor,
  // or none).
  void AddResizer(ValueId value, NodeId node) { resizers_[value.raw()] = node; }
  NodeId ResizerOf(ValueId value) const;  // invalid: there is none

  // An op that gives a tensor other metadata ends the recording, and has run by then.
  void KeepBefore(const MetadataBefore& before) {
    before_.emplace(before.tensor.unsafeGetTensorImpl(), before.Restored());
  }
  at::Tensor AsAtEntry(const at::Tensor& tensor) const;

  void Rewind(size_t values, size_t nodes);

 private:
  absl::flat_hash_map<uint32_t, NodeId> resizers_;  // by value
  absl::flat_hash_map<const c10::TensorImpl*, at::Tensor> before_;
};

}  // namespace frametap
