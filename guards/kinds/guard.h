// Guard: one predicate on what is found at a source. One kind, one file in kinds/.
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

namespace frametap {

class Guard {
 public:
  enum class Kind : uint8_t {
    kType,
    kTypeAttr,
    kIdentity,
    kAddress,
    kValue,
    kLength,
    kKeys,
    kKey,
    kTensor,
    kRelation,
    kClass,
    kField,
    kRegistry,
    kAnswer,
    kSuspended,
    kCode,
    kNoHooks
  };
  enum class Scope : uint8_t { kBinding, kContent };

  explicit Guard(Kind kind) : kind_(kind) {}
  virtual ~Guard() = default;
  Kind kind() const { return kind_; }

  virtual Scope scope() const = 0;
  virtual bool Holds(const Reached& at) const = 0;
  // Holds(at) has been true. Collects its premises, so that it is true again for the same object while these words are
  // the same. Returns false if it has to be evaluated again.
  virtual bool Words(const Reached& at, frametap::Words* words) const { return scope() == Scope::kBinding; }
  virtual std::string Want() const = 0;
  virtual std::string Got(const Reached& at) const;
  virtual std::string Why(const Reached& at) const = 0;              // requires !Holds(at)
  virtual std::optional<Fact> fact() const { return std::nullopt; }  // what it expects, if it is one fact
  virtual int Traverse(visitproc visit, void* arg) const { return 0; }

 private:
  Kind kind_;
};

std::unique_ptr<Guard> MakeIdentityGuard(PyObject* object, std::string text);  // a function: its code and defaults too
std::unique_ptr<Guard> MakeAddressGuard(PyObject* object);                     // holds nothing
std::unique_ptr<Guard> MakeAddressInSetGuard(PyObject* set, PyObject* item);   // holds neither
std::unique_ptr<Guard> MakeFieldGuard(PyObject* object, Py_ssize_t offset);    // what is there in the C struct
std::unique_ptr<Guard> MakeLeafGuard(PyObject* tensor);                        // whether it is one
std::unique_ptr<Guard> MakeSuspendedGuard(PyObject* generator);                // code, and where it waits
std::unique_ptr<Guard> MakeCodeGuard(PyObject* function);                      // whichever function runs it
std::unique_ptr<Guard> MakeAnswerGuard(Guard::Kind kind, PyObject* function);  // what a C function says
std::unique_ptr<Guard> MakeSetGuard(PyObject* set);                            // of plain values
std::unique_ptr<Guard> MakeSetLayoutGuard(PyObject* set);                      // where they stand in its table
// `item` is a plain value or a class with type's own hash, so that the test runs no code of a user.
std::unique_ptr<Guard> MakeMemberGuard(PyObject* set, PyObject* item);
std::unique_ptr<Guard> MakeValueGuard(const Reached& at);
std::unique_ptr<Guard> MakeRelationGuard(const Reached& at, int py_compare_op, PyObject* constant, bool outcome);

}  // namespace frametap
