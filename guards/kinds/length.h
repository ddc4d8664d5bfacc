// Length: how many items a list, tuple, dict or set has.
#pragma once

#include "absl/hash/hash.h"
#include "guards/kinds/guard.h"

namespace frametap {

class LengthGuard : public Guard {
 public:
  explicit LengthGuard(PyObject* container, Py_ssize_t length = -1);  // -1 for its present length

  static bool CountOf(PyObject* object, Py_ssize_t* count);
  Py_ssize_t length() const { return length_; }
  bool of_dict() const { return of_dict_; }

  Scope scope() const override { return Scope::kContent; }
  bool Holds(const Reached& at) const override;
  bool Words(const Reached& at, frametap::Words* words) const override;
  Predicate Want() const override;
  std::string Got(const Reached& at) const override;
  std::string Why(const Reached& at) const override;
  std::optional<Fact> fact() const override { return Fact{Fact::Kind::kLength, absl::HashOf(length_)}; }

 private:
  Py_ssize_t length_ = -1;
  bool of_dict_;
};

}  // namespace frametap
