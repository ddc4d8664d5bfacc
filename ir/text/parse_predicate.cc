// Predicates, by the forms of ir/segment/predicates.def.
#include <algorithm>
#include <iterator>

#include "ir/segment/predicate.h"
#include "ir/text/parse.h"

namespace frametap {
namespace {

bool HasBlank(std::string_view text) { return text.find(' ') != std::string_view::npos; }

std::optional<int64_t> NumberIn(std::string_view text) {
  Lexer lex(text);
  try {
    const int64_t number = lex.Int();
    return lex.at_end() ? std::optional(number) : std::nullopt;
  } catch (const Lexer::Failure&) {
    return std::nullopt;
  }
}

Sizes NextSizes(Lexer& lex, std::string_view close) {
  Sizes sizes;
  while (!lex.Accept(close)) {
    if (!sizes.empty()) lex.Expect(", ");
    sizes.push_back(lex.Accept("*") ? -1 : lex.Int());
  }
  return sizes;
}

std::optional<Predicate::Tensor> TensorIn(std::string_view text) {
  Predicate::Tensor tensor;
  Lexer lex(text);
  try {
    const std::optional<c10::ScalarType> dtype = ParseDtype(lex.Word());
    if (!dtype) return std::nullopt;
    tensor.dtype = *dtype;
    lex.Expect("[");
    tensor.sizes = NextSizes(lex, "]");
    if (lex.Accept("{")) {
      tensor.strides = NextSizes(lex, "}");
      tensor.has_offset = lex.Accept(" offset");
    }
    lex.Expect(" ");
    const std::optional<c10::Device> device = NextDevice(lex);
    if (!device) return std::nullopt;
    tensor.device = *device;
    tensor.requires_grad = lex.Accept(" grad");
    return lex.at_end() ? std::optional(tensor) : std::nullopt;
  } catch (const Lexer::Failure&) {
    return std::nullopt;
  }
}

bool IsFormula(std::string_view text) {
  constexpr std::string_view kOperators[] = {" < ", " <= ", " == ", " != ", " > ", " >= "};
  return std::any_of(std::begin(kOperators), std::end(kOperators),
                     [&](std::string_view op) { return text.find(op) != std::string_view::npos; });
}

// Returns no argument if `in` cannot stand in the hole.
Predicate::Argument ArgumentIn(std::string_view in, std::string_view hole, size_t at, const SourceAt& source) {
  if (hole == "number") {
    if (const std::optional<int64_t> number = NumberIn(in)) return *number;
  } else if (hole == "tensor") {
    if (std::optional<Predicate::Tensor> tensor = TensorIn(in)) return *std::move(tensor);
  } else if (hole == "source") {
    if (const std::optional<SourceId> id = source(at)) return *id;
  } else if (hole == "text" || (hole == "name" ? !HasBlank(in) : IsFormula(in))) {
    return std::string(in);
  }
  return {};
}

}  // namespace

std::optional<Predicate> ParsePredicate(std::string_view text, const SourceAt& source) {
  for (size_t i = 0; i < PredicateRowCount(); ++i) {
    Predicate found{static_cast<Predicate::Form>(i), {}};
    const HoleIn hole(RowOf(found.form).text);
    if (!hole.exists()) {
      if (text == hole.before) return found;
      continue;
    }
    const size_t around = hole.before.size() + hole.after.size();
    if (text.size() <= around || !text.starts_with(hole.before) || !text.ends_with(hole.after)) continue;
    found.argument =
        ArgumentIn(text.substr(hole.before.size(), text.size() - around), hole.name, hole.before.size(), source);
    if (found.argument.index() != 0) return found;
  }
  return std::nullopt;
}

}  // namespace frametap
