// PredicateText: the text of a guard's predicate, taken apart by the rows of ir/segment/predicates.def.
//   P1  A form has at most one argument; the member for its type is set, and no other.
// Not here: how a predicate is checked, and who writes its text (guards/kinds).
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ir/graph/type.h"

namespace frametap {

struct PredicateText {
  enum class Form : uint8_t {
#define FORM(form, word, text, meaning) form,
#include "ir/segment/predicates.def"
#undef FORM
  };
  // "f32[*, 32]{32, 1} offset cpu grad"
  struct Tensor {
    c10::ScalarType dtype = c10::ScalarType::Undefined;
    Sizes sizes;                   // -1 is any size
    std::optional<Sizes> strides;  // with them, `has_offset` counts
    bool has_offset = false;
    c10::Device device = c10::Device(c10::DeviceType::CPU);
    bool requires_grad = false;
  };

  Form form = Form::kFixedType;
  std::string argument;  // as it is written; empty if the form has none
  int64_t number = 0;    // {number}
  std::optional<Tensor> tensor;
};

struct PredicateRow {
  std::string_view word, text, meaning;
};

constexpr PredicateRow kPredicateRows[] = {
#define FORM(form, word, text, meaning) {word, text, meaning},
#include "ir/segment/predicates.def"
#undef FORM
};

constexpr const PredicateRow& RowOf(PredicateText::Form form) { return kPredicateRows[static_cast<size_t>(form)]; }

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

  std::string_view before, name, after;
};

// Returns none if the text has no form of predicates.def.
std::optional<PredicateText> ParsePredicate(std::string_view text);

}  // namespace frametap
