// TensorState: a tensor that is about to be written to, as it is now: elements, version counter, gradient history.
//   T1  Several are put back in two steps: all elements first, since tensors may share memory, then what counts writes.
//       Both below autograd, with ops paused.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
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
  struct History;
  at::Tensor tensor_, copy_;
  int64_t version_;  // -1: it has none
  std::vector<History> histories_;
};

}  // namespace frametap
