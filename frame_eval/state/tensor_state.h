// TensorState: the sizes, elements, version counter and gradient history of a tensor that is about to be written to.
//   T1  Several are put back in two steps: all elements first, since tensors may share memory, then what counts writes.
//       Both below autograd, with ops paused.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace frametap {

class TensorState {
 public:
  explicit TensorState(at::Tensor tensor);  // throws where there is no memory for a copy
  ~TensorState();
  TensorState(TensorState&&) noexcept;
  TensorState& operator=(TensorState&&) noexcept;

  void RestoreElements() const;
  void RestoreHistory() const;

 private:
  void RestoreSizes() const;

  struct History;
  at::Tensor tensor_, copy_;
  c10::Storage storage_;  // of a dense tensor; an op that writes to it may give it other sizes and memory
  std::vector<int64_t> sizes_, strides_;
  int64_t offset_ = 0;
  int64_t version_;  // -1 if it has none
  std::vector<History> histories_;
};

}  // namespace frametap
