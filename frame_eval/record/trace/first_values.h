// FirstValues: memory that a recording overwrites, as it was before.
//   V1  A storage is copied once, before the first write to it; memory that the trace itself has made is not.
// It is kept only for backends that ask for it (Backend::keeps_first_values): a copy costs as much as the write.
// Not here: taking writes back (undo.h, rollback.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "absl/container/flat_hash_map.h"

namespace frametap {

class FirstValues {
 public:
  void Before(const at::Tensor& written);  // the write has not happened yet
  // Returns a tensor with the elements that `tensor` had when the recording began; `tensor` itself if none was written.
  at::Tensor Of(const at::Tensor& tensor) const;

 private:
  struct Copy {
    at::Tensor written;  // so that its storage stays alive
    at::Tensor bytes;
  };
  absl::flat_hash_map<c10::StorageImpl*, Copy> copies_;
};

}  // namespace frametap
