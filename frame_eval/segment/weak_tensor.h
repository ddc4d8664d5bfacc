// WeakTensor: a tensor that is not kept alive, to be had again as long as its memory is there.
//   W1  Neither the tensor nor its Python object is referred to, not even weakly. torch.utils.swap_tensors, by which
//       modules exchange their parameters, refuses a tensor with other references. The memory is held, weakly.
//   W2  The tensor that it gives shares that memory: the values are the present ones. It is not the Python object that
//      the program has.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <optional>

#include "ir/graph/type.h"

namespace frametap {

class WeakTensor {
 public:
  WeakTensor() = default;  // of no tensor
  explicit WeakTensor(const at::Tensor& tensor);

  bool is_known() const { return view_.has_value(); }  // false, too, of one that is not dense
  at::Tensor Get() const;                              // undefined: not known, or gone

 private:
  struct View {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    Sizes sizes, strides;
    int64_t offset;
    c10::DispatchKeySet keys;
    caffe2::TypeMeta dtype;
  };
  std::optional<View> view_;
};

}  // namespace frametap
