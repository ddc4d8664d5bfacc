// Address: an object of that address, whatever it is. What follows from where objects lie (default hashes, which of
// them are the same one) follows for any others that lie there, so that nothing has to be kept alive.
#include "guards/guard.h"

namespace frametap {

namespace {

class AddressGuard : public Guard {
 public:
  explicit AddressGuard(PyObject* object) : Guard(Kind::kAddress), address_(reinterpret_cast<uintptr_t>(object)) {}

  Scope scope() const override { return Scope::kBinding; }
  bool Holds(const Reached& at) const override { return reinterpret_cast<uintptr_t>(at.object) == address_; }
  std::string Want() const override { return "at the same address"; }
  std::string Got(const Reached&) const override { return "at another address"; }
  std::string Why(const Reached&) const override { return "another object"; }

 private:
  uintptr_t address_;
};

}  // namespace

std::unique_ptr<Guard> MakeAddressGuard(PyObject* object) { return std::make_unique<AddressGuard>(object); }

}  // namespace frametap
