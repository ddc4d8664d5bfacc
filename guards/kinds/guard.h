// Guard: one predicate on what is found at a source. The kinds are rows of ir/segment/predicates.def; one kind, one file in
// kinds/.
//   P1  Holds runs no Python code, raises nothing and allocates nothing; it is safe on any object.
//   P2  With kBinding, the answer depends only on the identity of the object, and holds while the binding is unchanged.
//       With kContent, the object may have changed inside.
//   P3  Facts are taken at the moment the guard is made.
// Not here: which source, in which order (guard_recorder.h), how it is reached (accessor.h).
#pragma once

#include <Python.h>

#include <memory>
#include <optional>
#include <string>

#include "guards/kinds/accessor.h"
#include "guards/kinds/fact.h"
#include "guards/kinds/words.h"
#include "ir/segment/predicate.h"

namespace frametap {

class Guard {
 public:
  using Kind = GuardKind;
  enum class Scope : uint8_t { kBinding, kContent };

  explicit Guard(Kind kind) : kind_(kind) {}
  virtual ~Guard() = default;
  Kind kind() const { return kind_; }

  virtual Scope scope() const = 0;
  virtual bool Holds(const Reached& at) const = 0;
  // Holds(at) has been true. Collects its premises, so that it is true again for the same object while these words are
  // the same. Returns false if it has to be evaluated again.
  virtual bool Words(const Reached& at, frametap::Words* words) const { return scope() == Scope::kBinding; }
  virtual Predicate Want() const = 0;
  virtual std::string Got(const Reached& at) const;
  virtual std::string Why(const Reached& at) const = 0;              // requires !Holds(at)
  virtual std::optional<Fact> fact() const { return std::nullopt; }  // what it expects, if it is one fact
  virtual int Traverse(visitproc visit, void* arg) const { return 0; }

 private:
  Kind kind_;
};

// Makes a guard of a kind that needs the object, and the parameter of its row (GUARD_OF). The file of the kind defines it.
template <GuardKind kKind, class... Parameter>
std::unique_ptr<Guard> MakeGuard(PyObject* object, Parameter... parameter) = delete;
#define GUARD(kind, transfer)
#define GUARD_OF(kind, transfer, ...) \
  template <>                         \
  std::unique_ptr<Guard> MakeGuard<GuardKind::kind>(PyObject * object __VA_OPT__(, __VA_ARGS__ parameter));
#define FORM(form, word, text, meaning)
#include "ir/segment/predicates.def"
#undef GUARD
#undef GUARD_OF
#undef FORM

std::unique_ptr<Guard> MakeIdentityGuard(PyObject* object, std::string text);  // a function: its code and defaults too
std::unique_ptr<Guard> MakeValueGuard(const Reached& at);
std::unique_ptr<Guard> MakeRelationGuard(const Reached& at, int py_compare_op, PyObject* constant, bool outcome);

}  // namespace frametap
