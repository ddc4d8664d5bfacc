// Identity: the very object, which the guard does not keep alive if it can help it (object_end.h). A function also
// keeps its code, defaults, keyword defaults and closure, a module its class, as these can be assigned to. The
// contents of cells and of the dict of keyword defaults are sources of their own.
#include "absl/strings/str_cat.h"
#include "guards/kinds/guard.h"
#include "guards/objects/object_end.h"
#include "guards/objects/value.h"

namespace frametap {

namespace {

class IdentityGuard : public Guard {
 public:
  IdentityGuard(PyObject* object, std::string text) : Guard(Kind::kIdentity), object_(object), text_(std::move(text)) {
    if (PyModule_Check(object)) class_ = Ref<PyTypeObject>::New(Py_TYPE(object));
    if (!PyFunction_Check(object)) return;
    auto* f = reinterpret_cast<PyFunctionObject*>(object);
    code_ = Ref<>::New(f->func_code);
    defaults_ = Ref<>::New(f->func_defaults);
    kwdefaults_ = Ref<>::New(f->func_kwdefaults);
    closure_ = Ref<>::New(f->func_closure);
  }

  Scope scope() const override { return code_ || class_ ? Scope::kContent : Scope::kBinding; }

  bool Holds(const Reached& at) const override {
    if (at.object == nullptr || !object_.Is(at.object)) return false;
    if (class_) return Py_TYPE(at.object) == class_.get();
    if (!code_) return true;
    auto* f = reinterpret_cast<PyFunctionObject*>(at.object);
    return f->func_code == code_.get() && f->func_defaults == defaults_.get() &&
           f->func_kwdefaults == kwdefaults_.get() && f->func_closure == closure_.get();
  }

  bool Words(const Reached& at, frametap::Words* words) const override {
    if (class_) words->emplace_back(&at.object->ob_type);
    if (!code_) return true;
    auto* f = reinterpret_cast<PyFunctionObject*>(at.object);
    for (PyObject** place : {&f->func_code, &f->func_defaults, &f->func_kwdefaults, &f->func_closure}) {
      words->emplace_back(place);
    }
    return true;
  }

  Predicate Want() const override { return {Predicate::Form::kIs, text_.empty() ? ShortRepr(object_.get()) : text_}; }

  std::string Why(const Reached& at) const override {
    if (at.object == nullptr || !object_.Is(at.object)) return "another object";
    if (class_) return "__class__ was assigned";
    auto* f = reinterpret_cast<PyFunctionObject*>(at.object);
    if (f->func_code != code_.get()) return "__code__ was replaced";
    if (f->func_defaults != defaults_.get()) return "__defaults__ were replaced";
    if (f->func_kwdefaults != kwdefaults_.get()) return "__kwdefaults__ were replaced";
    return "__closure__ is another";
  }

  std::optional<Fact> fact() const override { return Fact::Of(Fact::Kind::kObject, Reached::Object(object_.get())); }

  int Traverse(visitproc visit, void* arg) const override {
    if (const int stop = object_.Traverse(visit, arg)) return stop;
    Py_VISIT(reinterpret_cast<PyObject*>(class_.get()));
    Py_VISIT(code_.get());
    Py_VISIT(defaults_.get());
    Py_VISIT(kwdefaults_.get());
    Py_VISIT(closure_.get());
    return 0;
  }

 private:
  ObjectIdentity object_;
  Ref<PyTypeObject> class_;  // of a module
  Ref<> code_, defaults_, kwdefaults_, closure_;
  std::string text_;
};

}  // namespace

std::unique_ptr<Guard> MakeIdentityGuard(PyObject* object, std::string text) {
  return std::make_unique<IdentityGuard>(object, std::move(text));
}

}  // namespace frametap
