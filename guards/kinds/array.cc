#include "guards/kinds/array.h"

#include "guards/objects/array_view.h"

namespace frametap {

namespace {

class ArrayGuard : public Guard {
 public:
  explicit ArrayGuard(PyObject* array) : Guard(Kind::kLayout), facts_(ArrayFacts::Of(array)) {}

  Scope scope() const override { return Scope::kContent; }  // its shape can be assigned
  bool Holds(const Reached& at) const override { return at.object != nullptr && facts_.Hold(at.object); }
  Predicate Want() const override { return Says(facts_); }
  std::string Got(const Reached& at) const override {
    return at.object != nullptr && IsArray(at.object) ? ToString(Says(ArrayFacts::Of(at.object))) : Guard::Got(at);
  }
  std::string Why(const Reached& at) const override {
    if (at.object == nullptr || !IsArray(at.object)) return "it is not an array of NumPy that torch could share";
    const ArrayFacts got = ArrayFacts::Of(at.object);
    if (got.dtype != facts_.dtype) return "another dtype";
    if (got.sizes != facts_.sizes) return "other sizes";
    return got.strides != facts_.strides ? "other strides" : "other flags";
  }

 private:
  static Predicate Says(const ArrayFacts& facts) { return {Predicate::Form::kArray, facts.Text()}; }

  ArrayFacts facts_;
};

}  // namespace

std::unique_ptr<Guard> MakeArrayGuard(PyObject* array) { return std::make_unique<ArrayGuard>(array); }

}  // namespace frametap
