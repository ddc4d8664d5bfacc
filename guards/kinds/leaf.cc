// Leaf: whether a tensor is a leaf of autograd's graph.
#include "guards/kinds/guard.h"
#include "guards/objects/torch_tensor.h"

namespace frametap {

namespace {

class LeafGuard : public Guard {
 public:
  explicit LeafGuard(PyObject* tensor) : Guard(Kind::kLeaf), is_leaf_(TensorOf(tensor).is_leaf()) {}

  Scope scope() const override { return Scope::kContent; }
  bool Holds(const Reached& at) const override {
    return at.object != nullptr && IsTensor(at.object) && TensorOf(at.object).is_leaf() == is_leaf_;
  }
  Predicate Want() const override { return Says(is_leaf_); }
  std::string Got(const Reached&) const override { return ToString(Says(!is_leaf_)); }
  std::string Why(const Reached&) const override { return is_leaf_ ? "an op has made it" : "no op has made it"; }

 private:
  static Predicate Says(bool is_leaf) { return {is_leaf ? Predicate::Form::kLeaf : Predicate::Form::kNotLeaf, {}}; }

  bool is_leaf_;
};

}  // namespace

template <>
std::unique_ptr<Guard> MakeGuard<GuardKind::kLeaf>(PyObject* tensor) {
  return std::make_unique<LeafGuard>(tensor);
}

}  // namespace frametap
