// Value: equal type and value (value.h), or an equal number where the source has no object.
#include <vector>

#include "absl/strings/str_cat.h"
#include "guards/kinds/array.h"
#include "guards/kinds/guard.h"
#include "guards/kinds/needs_python.h"
#include "guards/objects/array_view.h"
#include "guards/objects/value.h"
#include "guards/throw_if_null.h"

namespace frametap {

namespace {

class ValueGuard : public Guard {
 public:
  explicit ValueGuard(PyObject* object) : Guard(Kind::kValue), object_(Ref<>::New(object)) {}

  Scope scope() const override { return Scope::kBinding; }
  bool Holds(const Reached& at) const override { return at.object != nullptr && SameValue(at.object, object_.get()); }
  Predicate Want() const override { return {Predicate::Form::kEqual, ShortRepr(object_.get())}; }
  std::string Why(const Reached& at) const override {
    return absl::StrCat("is ", Got(at), ", was ", ShortRepr(object_.get()));
  }
  std::optional<Fact> fact() const override { return Fact::Of(Fact::Kind::kValue, Reached::Object(object_.get())); }
  int Traverse(visitproc visit, void* arg) const override {
    Py_VISIT(object_.get());
    return 0;
  }

 private:
  Ref<> object_;
};

// `set of 2`: the elements of a set of plain values, in the order of iteration, which the program sees. The set may change
// inside.
class SetGuard : public Guard {
 public:
  explicit SetGuard(PyObject* set) : Guard(Kind::kElements), elements_(Must(PySequence_Tuple(set))) {}

  Scope scope() const override { return Scope::kContent; }
  bool Holds(const Reached& at) const override {
    if (at.object == nullptr || !PySet_CheckExact(at.object)) return false;
    if (PySet_GET_SIZE(at.object) != PyTuple_GET_SIZE(elements_.get())) return false;
    Py_ssize_t position = 0, i = 0;
    PyObject* element;
    Py_hash_t hash;
    while (_PySet_NextEntry(at.object, &position, &element, &hash)) {
      if (!SameValue(element, PyTuple_GET_ITEM(elements_.get(), i++))) return false;  // True is not 1 here
    }
    return true;
  }
  Predicate Want() const override { return {Predicate::Form::kElements, int64_t{PyTuple_GET_SIZE(elements_.get())}}; }
  std::string Why(const Reached& at) const override { return "the elements of the set, or their order, have changed"; }
  int Traverse(visitproc visit, void* arg) const override {
    Py_VISIT(elements_.get());
    return 0;
  }

 private:
  Ref<> elements_;
};

// The positions of the elements in the table of a set. The order of a copy or of additions depends on them, and the
// element that pop() takes. Two sets of equal elements in one order may differ there, by earlier elements.
class SetLayoutGuard : public Guard {
 public:
  explicit SetLayoutGuard(PyObject* set) : Guard(Kind::kLayout), first_(FirstOf(set)) {
    for (Py_ssize_t i = 0; i < SlotsOf(set); ++i) slots_.push_back(StateOf(set, i));
  }

  Scope scope() const override { return Scope::kContent; }
  bool Holds(const Reached& at) const override {
    if (at.object == nullptr || !PyAnySet_Check(at.object)) return false;
    const auto count = static_cast<Py_ssize_t>(slots_.size());
    if (SlotsOf(at.object) != count || FirstOf(at.object) != first_) return false;
    for (Py_ssize_t i = 0; i < count; ++i) {
      if (StateOf(at.object, i) != slots_[static_cast<size_t>(i)]) return false;
    }
    return true;
  }
  Predicate Want() const override { return {Predicate::Form::kSetLayout, {}}; }
  std::string Why(const Reached& at) const override { return "other elements have been in the set"; }

 private:
  enum class Slot : char { kFree, kTaken, kLeft };

  static PySetObject* Of(PyObject* set) { return reinterpret_cast<PySetObject*>(set); }
  static Py_ssize_t SlotsOf(PyObject* set) { return Of(set)->mask + 1; }
  static Py_ssize_t FirstOf(PyObject* set) { return Of(set)->finger & Of(set)->mask; }  // … that pop() looks at
  static Slot StateOf(PyObject* set, Py_ssize_t i) {
    const setentry& entry = Of(set)->table[i];
    if (entry.key == nullptr) return Slot::kFree;
    return entry.hash == -1 ? Slot::kLeft : Slot::kTaken;  // no object has that hash
  }

  std::vector<Slot> slots_;
  Py_ssize_t first_;
};

// `has torch.nn.Linear`, `lacks 'x'`: one element of a set is there, or is not.
class MemberGuard : public Guard {
 public:
  MemberGuard(PyObject* set, PyObject* item)
      : Guard(Kind::kMember),
        item_(Ref<>::New(item)),
        hash_(PyObject_Hash(item)),
        present_(SetHas(set, item, hash_) == Found::kYes) {}

  Scope scope() const override { return Scope::kContent; }
  bool Holds(const Reached& at) const override {
    return at.object != nullptr && PyAnySet_CheckExact(at.object) &&
           SetHas(at.object, item_.get(), hash_) == (present_ ? Found::kYes : Found::kNo);
  }
  Predicate Want() const override {
    return {present_ ? Predicate::Form::kHas : Predicate::Form::kLacks, ShortRepr(item_.get())};
  }
  std::string Why(const Reached& at) const override {
    const std::string item = ShortRepr(item_.get());
    if (at.object != nullptr && PyAnySet_CheckExact(at.object) &&
        SetHas(at.object, item_.get(), hash_) == Found::kDoubt) {
      return absl::StrCat("element ", item, kNeedsPython);
    }
    return absl::StrCat("element ", item, present_ ? " is missing" : " was added");
  }
  int Traverse(visitproc visit, void* arg) const override {
    Py_VISIT(item_.get());
    return 0;
  }

 private:
  Ref<> item_;
  Py_hash_t hash_;
  bool present_;
};

class NumberGuard : public Guard {
 public:
  explicit NumberGuard(int64_t number) : Guard(Kind::kValue), number_(number) {}

  Scope scope() const override { return Scope::kContent; }
  bool Holds(const Reached& at) const override { return at.object == nullptr && at.number == number_; }
  Predicate Want() const override { return {Predicate::Form::kEqual, absl::StrCat(number_)}; }
  std::string Why(const Reached& at) const override { return absl::StrCat(Got(at), " != ", number_); }
  std::optional<Fact> fact() const override { return Fact::Of(Fact::Kind::kValue, Reached::Number(number_)); }

 private:
  int64_t number_;
};

}  // namespace

std::string Guard::Got(const Reached& at) const {
  return at.object != nullptr ? ShortRepr(at.object) : absl::StrCat(at.number);
}

template <>
std::unique_ptr<Guard> MakeGuard<GuardKind::kElements>(PyObject* set) {
  return std::make_unique<SetGuard>(set);
}

template <>
std::unique_ptr<Guard> MakeGuard<GuardKind::kLayout>(PyObject* object) {
  if (IsArray(object)) return MakeArrayGuard(object);
  return std::make_unique<SetLayoutGuard>(object);
}

// `item` is a plain value or a class with type's own hash, so that the test runs no code of a user.
template <>
std::unique_ptr<Guard> MakeGuard<GuardKind::kMember>(PyObject* set, PyObject* item) {
  return std::make_unique<MemberGuard>(set, item);
}

std::unique_ptr<Guard> MakeValueGuard(const Reached& at) {
  if (at.object == nullptr) return std::make_unique<NumberGuard>(at.number);
  if (!IsPlainValue(at.object)) return MakeIdentityGuard(at.object, "");
  return std::make_unique<ValueGuard>(at.object);
}

}  // namespace frametap
