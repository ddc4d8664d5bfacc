// Bits: an int whose magnitude has so many bits.
#include "guards/kinds/guard.h"
#include "absl/strings/str_cat.h"

namespace frametap {
namespace {

class BitsGuard : public Guard {
 public:
  explicit BitsGuard(PyObject* number) : Guard(Kind::kBits), bits_(_PyLong_NumBits(number)) {}

  Scope scope() const override { return Scope::kBinding; }
  bool Holds(const Reached& at) const override {
    return at.object != nullptr && PyLong_CheckExact(at.object) && _PyLong_NumBits(at.object) == bits_;
  }
  Predicate Want() const override { return {Predicate::Form::kBits, static_cast<int64_t>(bits_)}; }
  std::string Why(const Reached& at) const override { return absl::StrCat(Got(at), " has not ", bits_, " bits"); }

 private:
  size_t bits_;
};

}  // namespace

template <>
std::unique_ptr<Guard> MakeGuard<GuardKind::kBits>(PyObject* number) {
  return std::make_unique<BitsGuard>(number);
}

}  // namespace frametap
