// Tensor: facts of a tensor, compared without dispatching.
//   N1  All facts are taken when the fact is made; `read` says which sizes and strides count.
//   N2  A tensor with symbolic sizes never holds.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>
#include <vector>

#include "guards/guard.h"
#include "guards/guard_recorder.h"

namespace frametap {

class TensorGuard : public Guard {
 public:
  explicit TensorGuard(PyObject* tensor);  // requires IsTensor

  void Read(const TensorRead& read);  // adds to what is read

  Scope scope() const override { return Scope::kContent; }
  bool Holds(const Reached& at) const override { return at.object != nullptr && Holds(at.object); }
  bool Holds(PyObject* object) const;
  std::string Want() const override;                   // "tensor f32[*, 32]{32, 1} cpu grad"
  std::string Got(const Reached& at) const override;   // "tensor f64[4, 48] cpu"
  std::string Why(const Reached& at) const override;   // "dim 1: 48 != 32"
  int Traverse(visitproc visit, void* arg) const override;

 private:
  struct Facts {
    uint64_t keys;  // dispatch keys: layout, backend, subclass hooks, conjugate and negative bits, inference
    int32_t rank;
    int8_t dtype;
    int8_t device_type;
    int8_t device_index;
    bool requires_grad;
    bool offset;    // storage_offset() != 0
    std::vector<int64_t> sizes, strides;
  };
  static Facts FactsOf(PyObject* tensor);
  static std::string Text(const Facts& facts, const TensorRead& shown);
  bool BasicsHold(PyObject* object) const;

  Ref<PyTypeObject> type_;
  Facts facts_;
  TensorRead read_;
  bool reads_shape_ = false;
};

}  // namespace frametap
