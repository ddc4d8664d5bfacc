// Bit: an int whose bit of this number is as it was.
#include "guards/kinds/guard.h"

namespace frametap {
namespace {

class BitGuard : public Guard {
 public:
  BitGuard(PyObject* number, int64_t bit) : Guard(Kind::kBit), bit_(bit), is_set_(Has(number)) {}

  Scope scope() const override { return Scope::kBinding; }
  bool Holds(const Reached& at) const override {
    return at.object != nullptr && PyLong_CheckExact(at.object) && Has(at.object) == is_set_;
  }
  Predicate Want() const override { return {is_set_ ? Predicate::Form::kBitSet : Predicate::Form::kBitClear, bit_}; }
  std::string Why(const Reached& at) const override { return Got(at) + (is_set_ ? " lacks the bit" : " has the bit"); }

 private:
  bool Has(PyObject* number) const { return (PyLong_AsUnsignedLongLongMask(number) >> bit_ & 1) != 0; }

  int64_t bit_;
  bool is_set_;
};

}  // namespace

template <>
std::unique_ptr<Guard> MakeGuard<GuardKind::kBit>(PyObject* number, int64_t bit) {
  return std::make_unique<BitGuard>(number, bit);
}

}  // namespace frametap
