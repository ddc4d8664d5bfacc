// Predicate: what a guard requires of the object at its source, as data. predicates.def has a row for each form.
//   P1  A form has at most one argument. The argument has the type that the hole in the text of its row names.
//   P2  The text of a predicate parses to its form and argument, or to an earlier form that fits the text as well.
// Not here: how a predicate is checked (guards/kinds), and how its text is parsed (ir/text/parse_predicate.cc).
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "ir/graph/ids.h"
#include "ir/graph/type.h"

namespace frametap {

class SourceTable;

enum class GuardKind : uint8_t {
#define GUARD(kind, transfer, ...) kind,
#define GUARD_OF GUARD
#define FORM(form, word, text, meaning)
#include "ir/segment/predicates.def"
#undef GUARD
#undef GUARD_OF
#undef FORM
};

// How a guard is transferred to another object.
enum class Transfer : uint8_t {
  kNever,
  kIfItHolds,  // both objects share the guard
  kMadeAgain,  // the other object gets a guard of its own
};

Transfer TransferOf(GuardKind kind);

struct Predicate {
  enum class Form : uint8_t {
#define GUARD(kind, transfer, ...)
#define GUARD_OF GUARD
#define FORM(form, word, text, meaning) form,
#include "ir/segment/predicates.def"
#undef GUARD
#undef GUARD_OF
#undef FORM
  };
  // Facts of a tensor: "f32[*, 32]{32, 1} offset cpu grad".
  struct Tensor {
    c10::ScalarType dtype = c10::ScalarType::Undefined;
    Sizes sizes;                   // -1 is any size
    std::optional<Sizes> strides;  // with them, `has_offset` counts
    bool has_offset = false;
    c10::Device device = c10::Device(c10::DeviceType::CPU);
    bool requires_grad = false;

    friend bool operator==(const Tensor&, const Tensor&) = default;
  };
  // The types by holes: a string is {name}, {text} or {formula}. The others are {number}, {source} and {tensor}.
  using Argument = std::variant<std::monostate, std::string, int64_t, SourceId, Tensor>;

  Form form = Form::kFixedType;
  Argument argument;

  friend bool operator==(const Predicate&, const Predicate&) = default;
};

struct PredicateRow {
  std::string_view word, text, meaning;
};

size_t PredicateRowCount();
const PredicateRow& RowOf(Predicate::Form form);

// The hole in the text of a row: "len {number}" is "len ", number and "".
struct HoleIn {
  constexpr explicit HoleIn(std::string_view row) {
    const size_t open = row.find('{'), close = row.find('}');
    before = row.substr(0, open);
    if (close == std::string_view::npos) return;
    name = row.substr(open + 1, close - open - 1);
    after = row.substr(close + 1);
  }
  constexpr bool exists() const { return !name.empty(); }
  // The type of the argument, as an index of Predicate::Argument; -1 if the name is not known.
  constexpr int type() const {
    return name.empty()                                            ? 0
           : name == "name" || name == "text" || name == "formula" ? 1
           : name == "number"                                      ? 2
           : name == "source"                                      ? 3
           : name == "tensor"                                      ? 4
                                                                   : -1;
  }

  std::string_view before, name, after;
};

// P1. False for a predicate whose argument has another type than its row says.
bool HasItsArgument(const Predicate& predicate);
std::string ToString(const Predicate::Tensor& tensor);
std::string ToString(const Predicate& predicate, const SourceTable& sources);
std::string ToString(const Predicate& predicate);  // for a form without {source}

}  // namespace frametap
