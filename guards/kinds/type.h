// Type: the exact type of an object, and that look-ups on the type still give the same.
//   Y1  `type(Model) watched`: nothing in the type or its bases has changed (W2).
//   Y2  `type(Model).forward`: exact type, and this one look-up along the MRO gives the same object, or still nothing.
//       A type under Y2 guards only may change elsewhere.
#pragma once

#include "guards/guard.h"
#include "guards/watch.h"

namespace frametap {

class TypeGuard : public Guard {
 public:
  explicit TypeGuard(PyObject* object) : TypeGuard(Kind::kType, object) {}

  PyTypeObject* type() const { return type_.get(); }
  uint32_t version() const { return version_; }
  // Types of CPython itself and of extension modules cannot change, nor can the type of their instances (but modules).
  bool is_immutable() const;
  virtual bool LookupsHold() const { return TypeIsUnchanged(type_.get(), version_); }

  Scope scope() const override { return is_immutable() ? Scope::kBinding : Scope::kContent; }
  bool Holds(const Reached& at) const override;
  std::string Want() const override;
  std::string Got(const Reached& at) const override;
  std::string Why(const Reached& at) const override;
  std::optional<Fact> fact() const override { return Fact{Fact::Kind::kType, Fact::KeyOf(type_.get())}; }
  int Traverse(visitproc visit, void* arg) const override;

 protected:
  TypeGuard(Kind kind, PyObject* object);

 private:
  Ref<PyTypeObject> type_;
  uint32_t version_;
};

class TypeAttrGuard : public TypeGuard {
 public:
  TypeAttrGuard(PyObject* object, PyObject* name, PyObject* found);  // `found` may be null

  bool LookupsHold() const override;
  std::string Want() const override;
  std::string Why(const Reached& at) const override;
  int Traverse(visitproc visit, void* arg) const override;

 private:
  Ref<> name_;
  Ref<> found_;
};

// `class Model unchanged`: the object is a class whose attributes were read; neither it nor a base has changed since.
class ClassGuard : public Guard {
 public:
  explicit ClassGuard(PyTypeObject* type)
      : Guard(Kind::kClass), type_(Ref<PyTypeObject>::New(type)), version_(TypeVersion(type)) {}

  Scope scope() const override { return Scope::kContent; }
  bool Holds(const Reached& at) const override;
  std::string Want() const override;
  std::string Why(const Reached& at) const override;
  int Traverse(visitproc visit, void* arg) const override;

 private:
  Ref<PyTypeObject> type_;
  uint32_t version_;
};

}  // namespace frametap
