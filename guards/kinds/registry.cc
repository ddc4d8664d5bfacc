// Registry: the counter of registrations with abstract base classes. It is what CPython itself compares before it
// relies on what it remembers of isinstance and issubclass.
#include "guards/guard.h"
#include "guards/ref.h"

namespace frametap {

namespace {

// Calls the C function behind abc.get_cache_token, which makes an int and runs no Python code. -1: no memory for it.
long long TokenOf(PyObject* function) {
  ErrScope keep;
  Ref<> token = Ref<>::Steal(PyObject_CallNoArgs(function));
  const long long value = token ? PyLong_AsLongLong(token.get()) : -1;
  if (value == -1) PyErr_Clear();
  return value;
}

class RegistryGuard : public Guard {
 public:
  explicit RegistryGuard(PyObject* function) : Guard(Kind::kRegistry), token_(TokenOf(function)) {}

  Scope scope() const override { return Scope::kContent; }
  bool Holds(const Reached& at) const override {
    return at.object != nullptr && token_ != -1 && TokenOf(at.object) == token_;
  }
  std::string Want() const override { return "registrations as recorded"; }
  std::string Got(const Reached&) const override { return "a new registration"; }
  std::string Why(const Reached&) const override { return "a class was registered with an abstract base class"; }

 private:
  long long token_;
};

}  // namespace

std::unique_ptr<Guard> MakeRegistryGuard(PyObject* function) { return std::make_unique<RegistryGuard>(function); }

}  // namespace frametap
