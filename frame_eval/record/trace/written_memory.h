// WrittenMemory: the memory that the recording writes, and that a run of its graph may write. A write to memory that the
// trace has made itself can be done again. A write to memory that existed before cannot.
//   W1  Storages are those that the recording has written. Values are those that a run may write, which are more
//       (ir/passes/writes.h).
//   W2  A rewind forgets values. A write cannot be taken back, so storages and `writes_inputs` stay.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "ir/graph/graph.h"

namespace frametap {

class WrittenMemory {
 public:
  void Reserve(size_t count) { new_sources_.reserve(count); }

  void AddSource(const at::Tensor& tensor);  // it existed before
  bool IsSource(c10::StorageImpl* storage);

  void NoteTensors(const std::vector<at::Tensor>& written);
  // Records that a run writes to `value`, and so to the values that it may share memory with. `is_input` is asked for
  // each input of the graph among them.
  void NoteValue(const Graph& graph, ValueId value, absl::FunctionRef<bool(ValueId)> is_input);

  bool writes_inputs() const { return writes_inputs_; }
  // Returns the memory that existed before and was written; null: not all of it is known.
  const absl::flat_hash_set<c10::StorageImpl*>* storages() const { return is_unknown_ ? nullptr : &storages_; }
  size_t bytes() const { return bytes_; }  // of these storages, each as large as at its first write
  bool MayBeWritten(ValueId id) const { return id.raw() < values_.size() && values_[id.raw()]; }

  void Rewind(size_t values) {
    if (values_.size() > values) values_.resize(values);
  }

 private:
  // A set of the sources noted by the last time that somebody asked (few recordings do).
  absl::flat_hash_set<c10::StorageImpl*> sources_;
  std::vector<c10::StorageImpl*> new_sources_;
  absl::flat_hash_set<c10::StorageImpl*> storages_;  // of the sources
  size_t bytes_ = 0;
  std::vector<bool> values_;  // parallel to the values of the graph; may be shorter
  bool writes_inputs_ = false;
  bool is_unknown_ = false;
};

}  // namespace frametap
