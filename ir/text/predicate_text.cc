#include "ir/text/predicate_text.h"

#include <algorithm>

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

std::optional<PredicateText::Tensor> TensorIn(std::string_view text) {
  PredicateText::Tensor tensor;
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

}  // namespace

std::optional<PredicateText> ParsePredicate(std::string_view text) {
  for (size_t i = 0; i < std::size(kPredicateRows); ++i) {
    const HoleIn hole(kPredicateRows[i].text);
    PredicateText found;
    found.form = static_cast<PredicateText::Form>(i);
    if (!hole.exists()) {
      if (text == hole.before) return found;
      continue;
    }
    if (text.size() <= hole.before.size() + hole.after.size() || !text.starts_with(hole.before) ||
        !text.ends_with(hole.after)) {
      continue;
    }
    const std::string_view in = text.substr(hole.before.size(), text.size() - hole.before.size() - hole.after.size());
    found.argument = std::string(in);
    if (hole.name == "number") {
      const std::optional<int64_t> number = NumberIn(in);
      if (!number) continue;
      found.number = *number;
    } else if (hole.name == "tensor") {
      found.tensor = TensorIn(in);
      if (!found.tensor) continue;
    } else if ((hole.name == "name" && HasBlank(in)) || (hole.name == "formula" && !IsFormula(in))) {
      continue;
    }
    return found;
  }
  return std::nullopt;
}

}  // namespace frametap
