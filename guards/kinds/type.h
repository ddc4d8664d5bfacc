// Type: the exact type of an object, and that look-ups on the type still give the same.
//   Y1  `type(Model) watched`: nothing that the recording can have read of the type or its bases has changed. The version
//       (watch/W2) is the quick answer, and a note of the class (class_note.h) the slow one.
#pragma once

#include "guards/cpython/watch.h"
#include "guards/kinds/class_note.h"
#include "guards/kinds/guard.h"

namespace frametap {

// The facts of one class that a recording has relied on, at one moment.
class ClassRead {
 public:
  // `names`: those that the recording reads, also the ones that are still to come; they live as long as the guard.
  ClassRead(PyTypeObject* type, const NamesRead* names)
      : version_(TypeVersion(type)), held_(ClassNote::Of(type)), names_(names) {}

  uint32_t version() const { return version_; }
  const ClassNote* note() const { return held_.note.get(); }
  bool Holds(PyTypeObject* type) const {
    return TypeIsUnchanged(type, version_) || (!is_lost_ && held_.note != nullptr && held_.note->IsSame(*names_));
  }
  // At the end of the recording. A class that was changed meanwhile was read as more than one.
  void Seal(PyTypeObject* type) { is_lost_ = version_ != 0 ? !TypeIsUnchanged(type, version_) : !Holds(type); }
  int Traverse(visitproc visit, void* arg) const {
    Py_VISIT(held_.content.get());
    return 0;
  }

 private:
  uint32_t version_;
  ClassNote::Held held_;
  const NamesRead* names_;
  bool is_lost_ = false;
};

class TypeGuard : public Guard {
 public:
  TypeGuard(PyObject* object, const NamesRead* names);

  PyTypeObject* type() const { return type_.get(); }
  uint32_t version() const { return version_; }
  const ClassNote* note() const { return read_ ? read_->note() : nullptr; }
  void Seal() {
    if (read_) read_->Seal(type_.get());
  }
  // Types of CPython itself and of extension modules cannot change, nor can the type of their instances (but modules).
  bool is_immutable() const;
  bool LookupsHold() const { return read_ ? read_->Holds(type_.get()) : TypeIsUnchanged(type_.get(), version_); }

  Scope scope() const override { return is_immutable() ? Scope::kBinding : Scope::kContent; }
  bool Holds(const Reached& at) const override;
  Predicate Want() const override;
  std::string Got(const Reached& at) const override;
  std::string Why(const Reached& at) const override;
  std::optional<Fact> fact() const override { return Fact{Fact::Kind::kType, Fact::KeyOf(type_.get())}; }
  int Traverse(visitproc visit, void* arg) const override;

 private:
  Ref<PyTypeObject> type_;
  uint32_t version_;
  std::optional<ClassRead> read_;  // Y1, of a type that can change
};

// `class Model unchanged`: the object is a class whose attributes were read; neither it nor a base has changed since.
class ClassGuard : public Guard {
 public:
  ClassGuard(PyTypeObject* type, const NamesRead* names)
      : Guard(Kind::kClass), type_(Ref<PyTypeObject>::New(type)), read_(type, names), version_(read_.version()) {}
  void Seal() { read_.Seal(type_.get()); }

  Scope scope() const override { return Scope::kContent; }
  bool Holds(const Reached& at) const override;
  Predicate Want() const override;
  std::string Why(const Reached& at) const override;
  int Traverse(visitproc visit, void* arg) const override;

 private:
  Ref<PyTypeObject> type_;
  ClassRead read_;
  mutable uint32_t version_;  // with which it held last
};

}  // namespace frametap
