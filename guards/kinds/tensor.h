// Tensor: facts of a tensor, compared without dispatching.
//   N1  All facts are taken when the fact is made; `read` says which sizes and strides count.
//   N2  A tensor with symbolic sizes never holds.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>
#include <vector>

#include "guards/guard_recorder.h"
#include "guards/ref.h"

namespace c10 {
struct TensorImpl;
}

namespace frametap {

class TensorFact {
 public:
  explicit TensorFact(PyObject* tensor);  // requires IsTensor

  void Read(const TensorRead& read);
  bool Holds(PyObject* object) const;
  std::string Want() const;                      // "tensor f32[*, 32]{32, 1} cpu grad"
  std::string Why(PyObject* object) const;       // "dim 1: 48 != 32"; empty if it holds
  static std::string Got(PyObject* object);      // "tensor f64[4, 48]{48, 1} cpu"
  PyTypeObject* type() const { return type_.get(); }

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
  std::string Shape(const Facts& facts, const TensorRead& shown) const;
  bool BasicsHold(PyObject* object) const;

  Ref<PyTypeObject> type_;
  Facts facts_;
  TensorRead read_;
  bool reads_shape_ = false;
};

}  // namespace frametap
