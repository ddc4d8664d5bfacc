// Code: a function that runs the same code with the same globals, of any identity. Examples are a closure that is made
// at each call, and a method of another instance. Its defaults and the contents of its cells are sources of their own.
#include "absl/strings/str_cat.h"
#include "guards/kinds/guard.h"

namespace frametap {

namespace {

class CodeGuard : public Guard {
 public:
  explicit CodeGuard(PyObject* function) : Guard(Kind::kCode) {
    auto* f = reinterpret_cast<PyFunctionObject*>(function);
    code_ = Ref<>::New(f->func_code);
    globals_ = Ref<>::New(f->func_globals);
    builtins_ = Ref<>::New(f->func_builtins);
    default_count_ = DefaultCount(f);
  }

  Scope scope() const override { return Scope::kContent; }
  bool Holds(const Reached& at) const override {
    if (at.object == nullptr || !PyFunction_Check(at.object)) return false;
    auto* f = reinterpret_cast<PyFunctionObject*>(at.object);
    return f->func_code == code_.get() && f->func_globals == globals_.get() && f->func_builtins == builtins_.get() &&
           DefaultCount(f) == default_count_;
  }
  bool Words(const Reached& at, frametap::Words* words) const override {
    auto* f = reinterpret_cast<PyFunctionObject*>(at.object);
    for (PyObject** place : {&f->func_code, &f->func_globals, &f->func_builtins, &f->func_defaults}) {
      words->emplace_back(place);
    }
    return true;
  }
  Predicate Want() const override { return Says(code_.get()); }
  std::string Got(const Reached& at) const override {
    if (at.object == nullptr || !PyFunction_Check(at.object)) return Guard::Got(at);
    return ToString(Says(PyFunction_GET_CODE(at.object)));
  }
  std::string Why(const Reached& at) const override {
    if (at.object == nullptr || !PyFunction_Check(at.object)) return "it is not a function";
    auto* f = reinterpret_cast<PyFunctionObject*>(at.object);
    if (f->func_code != code_.get()) return "another function";
    if (DefaultCount(f) != default_count_) return "__defaults__ have another length";
    return "the same code with other globals";
  }
  std::optional<Fact> fact() const override { return Fact{Fact::Kind::kCode, Fact::KeyOf(code_.get())}; }
  int Traverse(visitproc visit, void* arg) const override {
    Py_VISIT(globals_.get());
    Py_VISIT(builtins_.get());
    return 0;
  }

 private:
  static Py_ssize_t DefaultCount(PyFunctionObject* f) {
    return f->func_defaults == nullptr ? 0 : PyTuple_GET_SIZE(f->func_defaults);
  }
  static Predicate Says(PyObject* code) {
    auto* of = reinterpret_cast<PyCodeObject*>(code);
    return {Predicate::Form::kCode, absl::StrCat(PyUnicode_AsUTF8(of->co_name), ":", of->co_firstlineno)};
  }

  Ref<> code_, globals_, builtins_;
  Py_ssize_t default_count_ = 0;
};

}  // namespace

template <>
std::unique_ptr<Guard> MakeGuard<GuardKind::kCode>(PyObject* function) {
  return std::make_unique<CodeGuard>(function);
}

}  // namespace frametap
