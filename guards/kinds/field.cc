// Field: the very object in a field of a C struct for which Python has no name. Followed only after the object itself
// is found to be the recorded one, whose layout is known.
#include "guards/kinds/guard.h"
#include "guards/ref.h"

namespace frametap {

namespace {

class FieldGuard : public Guard {
 public:
  FieldGuard(PyObject* object, int64_t offset)
      : Guard(Kind::kField), object_(Ref<>::New(object)), offset_(offset), value_(Ref<>::New(At(object))) {}

  Scope scope() const override { return Scope::kContent; }
  bool Holds(const Reached& at) const override { return at.object == object_.get() && At(at.object) == value_.get(); }
  Predicate Want() const override { return {Predicate::Form::kField, {}}; }
  std::string Got(const Reached&) const override { return "changed inside"; }
  std::string Why(const Reached&) const override { return "it holds another object"; }

  int Traverse(visitproc visit, void* arg) const override {
    Py_VISIT(object_.get());
    Py_VISIT(value_.get());
    return 0;
  }

 private:
  PyObject* At(PyObject* object) const {
    return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset_);
  }

  Ref<> object_;
  int64_t offset_;
  Ref<> value_;
};

}  // namespace

template <>
std::unique_ptr<Guard> MakeGuard<GuardKind::kField>(PyObject* object, int64_t offset) {
  return std::make_unique<FieldGuard>(object, offset);
}

}  // namespace frametap
