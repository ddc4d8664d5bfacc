// Answer: the result of a C function about the process's state, called again at each check. One is the counter of
// registrations with abstract base classes. CPython itself compares it before it relies on its cache of isinstance and
// issubclass. Another is the present accelerator. The function runs no Python code.
#include "guards/kinds/guard.h"
#include "guards/objects/dict_read.h"
#include "guards/objects/value.h"
#include "guards/ref.h"

namespace frametap {

namespace {

// Empty if there was no memory for it, or an error.
Ref<> AnswerOf(PyObject* function) {
  ErrScope keep;
  Ref<> answer = Ref<>::Steal(PyObject_CallNoArgs(function));
  if (!answer) PyErr_Clear();
  return answer;
}

// Compares two answers. Lists are compared item by item.
bool IsSameAnswer(PyObject* a, PyObject* b) {
  if (!PyList_CheckExact(a) || !PyList_CheckExact(b)) return SameKey(a, b) == Found::kYes;
  bool same = PyList_GET_SIZE(a) == PyList_GET_SIZE(b);
  for (Py_ssize_t i = 0; same && i < PyList_GET_SIZE(a); ++i) {
    same = SameKey(PyList_GET_ITEM(a, i), PyList_GET_ITEM(b, i)) == Found::kYes;
  }
  return same;
}

class AnswerGuard : public Guard {
 public:
  AnswerGuard(Kind kind, PyObject* function) : Guard(kind), answer_(AnswerOf(function)) {}

  Scope scope() const override { return Scope::kContent; }
  bool Holds(const Reached& at) const override {
    if (at.object == nullptr || !answer_) return false;
    const Ref<> now = AnswerOf(at.object);
    return now && IsSameAnswer(now.get(), answer_.get());
  }
  Predicate Want() const override {
    return {kind() == Kind::kRegistry ? Predicate::Form::kRegistry : Predicate::Form::kAnswer, {}};
  }
  std::string Got(const Reached&) const override {
    return kind() == Kind::kRegistry ? "a new registration" : "another answer";
  }
  std::string Why(const Reached&) const override {
    if (kind() == Kind::kRegistry) return "a class was registered with an abstract base class";
    return "the answer was " + ShortRepr(answer_.get());
  }

 private:
  Ref<> answer_;  // an int, None, a device or a list of ints: nothing that could refer to itself
};

}  // namespace

template <>
std::unique_ptr<Guard> MakeGuard<GuardKind::kAnswer>(PyObject* function) {
  return std::make_unique<AnswerGuard>(GuardKind::kAnswer, function);
}

template <>
std::unique_ptr<Guard> MakeGuard<GuardKind::kRegistry>(PyObject* function) {
  return std::make_unique<AnswerGuard>(GuardKind::kRegistry, function);
}

}  // namespace frametap
