// PinnedWeights: the tensors that a model holds, and the facts of them that every guard compares. A model has a thousand
// of them, so their facts are compared where they lie, at places that are known beforehand. A processor fetches many
// of these at once.
//   - The caller knows that the objects are alive; nothing is held.
#pragma once

#include <Python.h>

#include <deque>
#include <vector>

#include "guards/kinds/tensor.h"

namespace torch::autograd {
struct AutogradMeta;
}

namespace frametap {

class PinnedWeights {
 public:
  // `basics` hold of it.
  void Add(PyObject* tensor, const TensorGuard::Basics& basics);
  void Clear();
  // Each object is still the same tensor, and its basics hold. False may be a doubt.
  bool Hold() const;

 private:
  struct Held {
    PyObject* object;
    const c10::TensorImpl* impl;
    const torch::autograd::AutogradMeta* meta;
    const TensorGuard::Basics* basics;
  };
  std::vector<Held> held_;
  std::deque<TensorGuard::Basics> basics_;  // they stay where they are; most tensors of a model have the same
};

}  // namespace frametap
