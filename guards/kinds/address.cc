// Address: an object of that address, whatever it is. Facts that follow from addresses (default hashes, identities)
// follow for any others that lie there, so that nothing has to be kept alive.
#include "guards/kinds/guard.h"
#include "guards/objects/dict_read.h"
#include "guards/throw_if_null.h"

namespace frametap {

namespace {

class AddressGuard : public Guard {
 public:
  explicit AddressGuard(PyObject* object) : Guard(Kind::kAddress), address_(reinterpret_cast<uintptr_t>(object)) {}

  Scope scope() const override { return Scope::kBinding; }
  bool Holds(const Reached& at) const override { return reinterpret_cast<uintptr_t>(at.object) == address_; }
  Predicate Want() const override { return {Predicate::Form::kAddress, {}}; }
  std::string Got(const Reached&) const override { return "at another address"; }
  std::string Why(const Reached&) const override { return "another object"; }

 private:
  uintptr_t address_;
};

// Whether a set holds an object that is hashed by its address, as tensors are. Nothing is kept alive, and no code of the
// program's is asked: an element of the same hash that lies elsewhere is a doubt, and so a miss.
class AddressInSetGuard : public Guard {
 public:
  AddressInSetGuard(PyObject* set, PyObject* item)
      : Guard(Kind::kAddressInSet),
        address_(item),
        hash_(PyObject_Hash(Must(PyLong_FromVoidPtr(item)).get())),
        present_(Look(set) == Found::kYes) {}

  Scope scope() const override { return Scope::kContent; }
  bool Holds(const Reached& at) const override {
    return at.object != nullptr && PyAnySet_CheckExact(at.object) &&
           Look(at.object) == (present_ ? Found::kYes : Found::kNo);
  }
  Predicate Want() const override { return Says(present_); }
  std::string Got(const Reached&) const override { return ToString(Says(!present_)); }
  std::string Why(const Reached&) const override { return present_ ? "it is missing" : "it was added"; }

 private:
  static Predicate Says(bool present) {
    return {present ? Predicate::Form::kHas : Predicate::Form::kLacks, "the object"};
  }
  Found Look(PyObject* set) const {
    Py_ssize_t at = 0;
    PyObject* element;
    Py_hash_t hash;
    Found answer = Found::kNo;
    while (_PySet_NextEntry(set, &at, &element, &hash)) {
      if (element == address_) return Found::kYes;
      if (hash == hash_) answer = Found::kDoubt;
    }
    return answer;
  }

  const void* address_;  // compared only, never read
  Py_hash_t hash_;
  bool present_;
};

}  // namespace

template <>
std::unique_ptr<Guard> MakeGuard<GuardKind::kAddressInSet>(PyObject* set, PyObject* item) {
  return std::make_unique<AddressInSetGuard>(set, item);
}

template <>
std::unique_ptr<Guard> MakeGuard<GuardKind::kAddress>(PyObject* object) {
  return std::make_unique<AddressGuard>(object);
}

}  // namespace frametap
