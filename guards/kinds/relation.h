// Relation: how a number compares with a constant, and how expressions of several numbers compare. Exact for 64-bit ints
// and for floats; whatever needs more is a miss.
#pragma once

#include <Python.h>

#include <string>
#include <vector>

#include "guards/kinds/accessor.h"
#include "ir/symbols/number_expr.h"

namespace frametap {

// Relates numbers at several sources, numbered as the inputs of both expressions. Also fixes their types.
class NumbersRelation {
 public:
  static constexpr size_t kMostInputs = 8;

  // `seen`: at most kMostInputs exact ints, floats and numbers without an object.
  NumbersRelation(NumberExpr left, int py_compare_op, NumberExpr right, bool outcome, const std::vector<Reached>& seen);

  bool Holds(const Reached* const* at) const;                     // neither raises nor allocates
  std::string Want(const std::vector<std::string>& names) const;  // "L.x.size(0) // 2 > L.n"
  std::string Got(const Reached* const* at, const std::vector<std::string>& names) const;

 private:
  NumberExpr left_, right_;
  int op_;
  bool outcome_;
  bool of_sizes_;                     // of ints without an object alone
  std::vector<PyTypeObject*> types_;  // int, float, or null for a number without an object: never freed
};

}  // namespace frametap
