#include "guards/kinds/type.h"

#include "absl/strings/str_cat.h"
#include "guards/objects/value.h"

namespace frametap {

TypeGuard::TypeGuard(PyObject* object, const NamesRead* names)
    : Guard(Kind::kType), type_(Ref<PyTypeObject>::New(Py_TYPE(object))), version_(TypeVersion(Py_TYPE(object))) {
  if (!is_immutable()) read_.emplace(type_.get(), names);
}

bool TypeGuard::is_immutable() const {
  return (type_.get()->tp_flags & Py_TPFLAGS_IMMUTABLETYPE) != 0 && type_.get() != &PyModule_Type;
}

bool TypeGuard::Holds(const Reached& at) const {
  return at.object != nullptr && Py_TYPE(at.object) == type_.get() && (is_immutable() || LookupsHold());
}

Predicate TypeGuard::Want() const {
  return {is_immutable() ? Predicate::Form::kFixedType : Predicate::Form::kWatchedType, TypeName(type_.get())};
}

std::string TypeGuard::Got(const Reached& at) const {
  if (at.object == nullptr) return "int";
  const std::string name = TypeName(Py_TYPE(at.object));
  if (Py_TYPE(at.object) == type_.get()) return absl::StrCat("type(", name, ") changed");
  return (Py_TYPE(at.object)->tp_flags & Py_TPFLAGS_IMMUTABLETYPE) != 0 ? name : absl::StrCat("type(", name, ")");
}

std::string TypeGuard::Why(const Reached& at) const {
  const std::string name = TypeName(type_.get());
  if (at.object == nullptr) return absl::StrCat("type: int != ", name);
  if (Py_TYPE(at.object) != type_.get()) {
    const std::string got = TypeName(Py_TYPE(at.object));
    return got == name ? absl::StrCat("type: another type named ", name) : absl::StrCat("type: ", got, " != ", name);
  }
  return absl::StrCat("an attribute of ", name, " or of one of its bases was changed");
}

int TypeGuard::Traverse(visitproc visit, void* arg) const {
  Py_VISIT(reinterpret_cast<PyObject*>(type_.get()));
  return read_ ? read_->Traverse(visit, arg) : 0;
}

bool ClassGuard::Holds(const Reached& at) const {
  PyTypeObject* const type = type_.get();
  if (at.object != reinterpret_cast<PyObject*>(type)) return false;
  if ((type->tp_flags & Py_TPFLAGS_IMMUTABLETYPE) != 0 || TypeIsUnchanged(type, version_)) [[likely]]
    return true;
  if (!read_.Holds(type)) return false;
  version_ = TypeVersion(type);
  return true;
}

Predicate ClassGuard::Want() const { return {Predicate::Form::kClass, TypeName(type_.get())}; }

std::string ClassGuard::Why(const Reached& at) const {
  if (at.object != reinterpret_cast<PyObject*>(type_.get())) return "another class";
  return absl::StrCat("an attribute of ", TypeName(type_.get()), " or of one of its bases was changed");
}

int ClassGuard::Traverse(visitproc visit, void* arg) const {
  Py_VISIT(reinterpret_cast<PyObject*>(type_.get()));
  return read_.Traverse(visit, arg);
}

}  // namespace frametap
