// TensorValues: the value of the graph that each tensor is now.
//   A1  Tensors are known by TensorImpl, held weakly: recording keeps no tensor alive (an address stays unique because
//       the weak reference keeps the TensorImpl's own memory).
// Not here: nodes (aten_recorder.h), Python objects.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "ir/block_pool.h"
#include "ir/graph/graph.h"

namespace frametap {

struct KnownTensor {
  // Takes the pointer in an at::Tensor as it is: a strong one made of it on the way would count at the Python
  // object, too.
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  Weak weak;
  ValueId value;    // invalid: known only by its source so far
  SourceId source;  // existed before
  bool metadata_read = false;
  bool strides_read = false;
  bool resized = false;  // or it may be, by the op that gave `value`: its sizes may differ from the entry
  bool grad_read = false;
  bool grad_set = false;  // by the trace: its `grad` is not the one at the entry
  bool data_set = false;  // by the trace (x.data = y): its elements are others, and no value stands for them

  // Returns whether its sizes, strides and rank are those that its source has at the entry.
  bool is_as_at_entry() const { return source.valid() && !(resized && value.valid()); }
};

class TensorValues {
 public:
  struct Mark {
    size_t inputs = 0, journal = 0;
  };

  explicit TensorValues(Graph* graph) : graph_(graph) {}
  void Reserve(size_t count);

  KnownTensor* Find(const at::Tensor& tensor);
  // Returns false if it is known already: it stays what it was.
  bool AddSource(const at::Tensor& tensor, SourceId source);
  // Returns the value of a known tensor, unless the trace has set its `data`. Makes a graph input of one that is known by its
  // source only.
  std::optional<ValueId> ValueOf(const at::Tensor& tensor);
  // Returns whether a known tensor is older than its value: an op has been given it, and has given it back.
  bool IsGivenBack(const at::Tensor& tensor);
  // Returns the value at a mark, of a tensor that had one then.
  ValueId ValueBefore(const at::Tensor& tensor, const Mark& mark);
  void Bind(const at::Tensor& tensor, ValueId value);               // that is its value from now on
  void Forget(c10::TensorImpl* tensor) { tensors_.erase(tensor); }  // after Rewind

  struct Use {
    SourceId source;
    bool set;
  };
  std::vector<Use> GradUses() const;  // of tensors that existed before, in the order of their sources
  std::vector<Use> DataUses() const;  // likewise, of `data` that is set, and of tensors that ops have used

  ValueId AddNumberInput(SourceId source, Type type);
  const std::vector<std::pair<SourceId, ValueId>>& inputs() const { return inputs_; }
  bool IsInput(ValueId id) const { return SourceOfInput(id).valid(); }
  SourceId SourceOfInput(ValueId id) const;  // invalid: it is not an input
  std::optional<at::Tensor> TensorOfInput(ValueId id);

  Mark Now() const { return {inputs_.size(), journal_.size()}; }
  void Rewind(const Mark& mark);

 private:
  template <typename IsUsed>
  std::vector<Use> UsesOf(IsUsed is_used, bool KnownTensor::*set) const;

  Graph* const graph_;
  using Tensors = absl::flat_hash_map<c10::TensorImpl*, KnownTensor, absl::Hash<c10::TensorImpl*>, std::equal_to<>,
                                      PoolAllocator<std::pair<c10::TensorImpl* const, KnownTensor>>>;
  Tensors tensors_;
  std::vector<std::pair<c10::TensorImpl*, ValueId>> journal_;  // value before a change
  std::vector<std::pair<SourceId, ValueId>> inputs_;           // parallel to the inputs of the graph, by value
};

}  // namespace frametap
