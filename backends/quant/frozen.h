// FrozenWeights: tensors that are made of weights once and used by every graph with these weights. They are folded,
// quantized or packed.
//   Z1  A weight is known by its storage and its place in it; it is held, so that its storage is never another's. The memory
//       of the storage may be moved (offload.h).
//   Z2  These tensors do not change; later changes of the weight do not show (quantize/Q1).
// Not here: how weights are folded, quantized or packed.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <mutex>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"

namespace frametap::quant {

// Tells tensors of different storages, offsets, sizes, strides or dtypes apart; "-" for an undefined one.
std::string IdentityOf(const at::Tensor& tensor);

// Tensors that inputs of a graph are found among (Z1).
class WeightSet {
 public:
  void Add(const at::Tensor& weight) { weights_.emplace(IdentityOf(weight), weight); }
  bool contains(const at::Tensor& tensor) const { return weights_.contains(IdentityOf(tensor)); }
  // Beside the inputs: the weight that an input is, or an undefined tensor. `count`: of the inputs of the graph.
  std::vector<at::Tensor> Among(const std::vector<c10::IValue>& inputs, size_t count) const;
  void AddTo(std::vector<at::Tensor>* all) const;

 private:
  absl::flat_hash_map<std::string, at::Tensor> weights_;  // by IdentityOf
};

class FrozenWeights {
 public:
  using Tensors = std::vector<at::Tensor>;

  // The result of `make`, which is called the first time only. `what`: how it is made, with all numbers that count.
  // `made` may be null: nothing is kept then.
  static Tensors Of(FrozenWeights* made, const std::string& what, const Tensors& from,
                    absl::FunctionRef<Tensors()> make);

  // Whether something was made of the tensor, or of another one in its memory.
  bool HasUsed(const at::Tensor& weight);

  void AddTo(std::vector<at::Tensor>* all);  // weights, and what is made of them

 private:
  struct Entry {
    Tensors from;  // Z1
    Tensors result;
  };
  std::mutex mutex_;
  absl::flat_hash_map<std::string, Entry> entries_;
  absl::flat_hash_set<const void*> used_;  // memory
};

}  // namespace frametap::quant
