// Tensor: facts of a tensor, compared without dispatching.
//   N1  All facts are taken when the fact is made; `read` says which sizes and strides count.
//   N2  A tensor with symbolic sizes never holds.
#pragma once

#include <Python.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <string>

#include "guards/kinds/guard.h"
#include "guards/kinds/tensor_read.h"
#include "ir/graph/type.h"

namespace frametap {

class TensorGuard : public Guard {
 public:
  explicit TensorGuard(PyObject* tensor);  // requires IsTensor

  // The facts that always hold, packed: a tree keeps them side by side, as a model has many tensors.
  struct Basics {
    PyTypeObject* type;
    uint64_t keys;  // dispatch keys: layout, backend, subclass hooks, conjugate and negative bits, inference
    int32_t rank;
    int8_t dtype;
    int8_t device_type;
    int8_t device_index;
    bool requires_grad;

    bool Hold(PyObject* object) const;
    bool HoldOf(const c10::TensorImpl& impl) const {  // all but `type` and `requires_grad`
      if (impl.key_set().raw_repr() != keys || impl.has_symbolic_sizes_strides()) return false;
      const c10::Device device = impl.device();
      return static_cast<int8_t>(c10::typeMetaToScalarType(impl.dtype())) == dtype && impl.dim() == rank &&
             static_cast<int8_t>(device.type()) == device_type && device.index() == device_index;
    }
    uint64_t Key() const;
    friend bool operator==(const Basics&, const Basics&) = default;
  };
  static Basics BasicsOf(PyObject* tensor);
  static uint64_t SizesKey(PyObject* tensor);
  const Basics& basics() const { return facts_.basics; }
  bool reads_shape() const { return read_.sizes || read_.dims != 0; }
  size_t rank() const { return facts_.sizes.size(); }
  bool FixesSize(size_t dim) const { return read_.sizes || (dim < 64 && (read_.dims >> dim & 1) != 0); }
  bool ShapeHolds(PyObject* tensor) const;  // requires that the basics hold

  void Read(const TensorRead& read);  // adds to what is read
  uint64_t ReadKey() const { return read_.dims << 2 | (read_.sizes ? 2 : 0) | (read_.strides ? 1 : 0); }

  Scope scope() const override { return Scope::kContent; }
  bool Holds(const Reached& at) const override { return at.object != nullptr && Holds(at.object); }
  bool Holds(PyObject* object) const { return facts_.basics.Hold(object) && (!reads_shape() || ShapeHolds(object)); }
  Predicate Want() const override;                    // "tensor f32[*, 32]{32, 1} cpu grad"
  std::string Got(const Reached& at) const override;  // "tensor f64[4, 48] cpu"
  std::string Why(const Reached& at) const override;  // "dim 1: 48 != 32"
  std::optional<Fact> fact() const override;
  int Traverse(visitproc visit, void* arg) const override;

 private:
  struct Facts {
    Basics basics;
    bool offset;  // storage_offset() != 0
    Sizes sizes, strides;
  };
  static Facts FactsOf(PyObject* tensor);
  static Predicate Says(const Facts& facts, const TensorRead& shown);

  Ref<PyTypeObject> type_;
  Facts facts_;
  TensorRead read_;
};

}  // namespace frametap
