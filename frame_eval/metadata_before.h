// MetadataBefore: tensors as they were before an op that gave them other sizes, strides or memory.
//   B1  Such an op ends its recording, and has run by then. Descriptions of the entry that are made afterwards ask here.
//   B2  Kept by thread, from that op until the recording is over.
// Not here: elements as they were before (first_values.h).
#pragma once

#include <ATen/core/Tensor.h>

namespace frametap {

class MetadataBefore {
 public:
  static void Keep(const at::Tensor& tensor, at::Tensor before);
  // Returns `tensor` itself if its metadata is as it was.
  static at::Tensor Of(const at::Tensor& tensor);
  static void Forget();
};

}  // namespace frametap
