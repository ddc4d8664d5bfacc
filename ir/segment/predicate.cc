#include "ir/segment/predicate.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ir/dcheck.h"
#include "ir/segment/source.h"

namespace frametap {
namespace {

constexpr Transfer kTransfers[] = {
#define GUARD(kind, transfer, ...) Transfer::transfer,
#define GUARD_OF GUARD
#define FORM(form, word, text, meaning)
#include "ir/segment/predicates.def"
#undef GUARD
#undef GUARD_OF
#undef FORM
};

constexpr PredicateRow kRows[] = {
#define GUARD(kind, transfer, ...)
#define GUARD_OF GUARD
#define FORM(form, word, text, meaning) {word, text, meaning},
#include "ir/segment/predicates.def"
#undef GUARD
#undef GUARD_OF
#undef FORM
};
static_assert(std::all_of(std::begin(kRows), std::end(kRows),
                          [](const PredicateRow& row) { return HoleIn(row.text).type() >= 0; }),
              "a row of predicates.def has an argument of an unknown type");
static_assert(std::none_of(std::begin(kRows), std::end(kRows),
                           [](const PredicateRow& row) { return row.word.empty() || row.text.empty(); }),
              "a row of predicates.def has no word or no text");
static_assert(std::variant_size_v<Predicate::Argument> == 5, "HoleIn::type has other types than Predicate::Argument");

std::string TextOf(const Predicate& predicate, const SourceTable* sources) {
  FT_DCHECK(HasItsArgument(predicate));
  const PredicateRow& row = RowOf(predicate.form);
  const HoleIn hole(row.text);
  if (!hole.exists()) return std::string(row.text);
  std::string argument;
  if (const auto* text = std::get_if<std::string>(&predicate.argument)) argument = *text;
  if (const auto* number = std::get_if<int64_t>(&predicate.argument)) argument = absl::StrCat(*number);
  if (const auto* tensor = std::get_if<Predicate::Tensor>(&predicate.argument)) argument = ToString(*tensor);
  if (const auto* source = std::get_if<SourceId>(&predicate.argument)) {
    argument = sources != nullptr ? sources->Name(*source) : "?";
  }
  return std::string(hole.before) + argument + std::string(hole.after);
}

}  // namespace

Transfer TransferOf(GuardKind kind) { return kTransfers[static_cast<size_t>(kind)]; }

size_t PredicateRowCount() { return std::size(kRows); }

const PredicateRow& RowOf(Predicate::Form form) {
  FT_DCHECK(static_cast<size_t>(form) < std::size(kRows));
  return kRows[static_cast<size_t>(form)];
}

bool HasItsArgument(const Predicate& predicate) {
  if (static_cast<size_t>(predicate.form) >= std::size(kRows)) return false;
  return static_cast<size_t>(HoleIn(RowOf(predicate.form).text).type()) == predicate.argument.index();
}

std::string ToString(const Predicate::Tensor& tensor) {
  const auto size = [](std::string* out, int64_t n) { n < 0 ? absl::StrAppend(out, "*") : absl::StrAppend(out, n); };
  std::string text = absl::StrCat(DtypeName(tensor.dtype), "[", absl::StrJoin(tensor.sizes, ", ", size), "]");
  if (tensor.strides) {
    absl::StrAppend(&text, "{", absl::StrJoin(*tensor.strides, ", "), "}", tensor.has_offset ? " offset" : "");
  }
  return absl::StrCat(text, " ", tensor.device.str(), tensor.requires_grad ? " grad" : "");
}

std::string ToString(const Predicate& predicate, const SourceTable& sources) { return TextOf(predicate, &sources); }

std::string ToString(const Predicate& predicate) { return TextOf(predicate, nullptr); }

}  // namespace frametap
