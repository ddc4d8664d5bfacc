// ScalarOp: ops that are no dispatcher ops. One row an op; names, arity and meaning come from the row.
//   C1  The result is the one Python gives for exact ints and floats; where int64 or IEEE cannot give it, Evaluate
//       throws.
//   C2  Int ops take ints and bools; float ops take those and floats.
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "ir/graph.h"

namespace frametap {

struct ScalarRow {
  ScalarOp op;
  const char* name;  // "int.add"
  size_t arity;
  Type::Kind result;  // kNone: that of the list's elements
};

const ScalarRow& RowOf(ScalarOp op);  // not for kNone
std::optional<ScalarOp> ParseScalarOp(const std::string& name);

// The integer result does not fit 64 bits; Python's would.
struct IntOverflow : std::overflow_error {
  using std::overflow_error::overflow_error;
};
// Python raises ZeroDivisionError with this text.
struct DivisionByZero : std::domain_error {
  using std::domain_error::domain_error;
};

// `b` is ignored by ops of one argument.
c10::IValue Evaluate(ScalarOp op, const c10::IValue& a, const c10::IValue& b);

}  // namespace frametap
