#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <charconv>

#include "absl/strings/str_cat.h"
#include "ir/graph/literal.h"
#include "ir/text/parse.h"

namespace frametap {
namespace {

size_t Distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({substitute, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::vector<std::string> NearNames(const std::string& name) {
  std::vector<std::pair<size_t, std::string>> near;
  for (const c10::OperatorName& other : c10::Dispatcher::singleton().getAllOpNames()) {
    std::string dotted = DottedName(other);
    // All overloads of the very op come first.
    const bool overload =
        dotted.size() > name.size() && dotted[name.size()] == '.' && dotted.compare(0, name.size(), name) == 0;
    const size_t limit = std::max<size_t>(2, name.size() / 4);
    if (!overload && (dotted.size() > name.size() + limit || name.size() > dotted.size() + limit)) continue;
    const size_t distance = overload ? 0 : Distance(name, dotted);
    if (distance <= limit) near.emplace_back(distance, std::move(dotted));
  }
  std::sort(near.begin(), near.end());
  if (near.size() > 4) near.resize(4);
  std::vector<std::string> out;
  for (auto& [distance, text] : near) out.push_back(std::move(text));
  return out;
}

std::optional<c10::OperatorHandle> FindOp(const std::string& dotted) {
  const size_t first = dotted.find('.');
  if (first == std::string::npos) return std::nullopt;
  const std::string name = absl::StrCat(dotted.substr(0, first), "::", dotted.substr(first + 1));
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  if (auto op = dispatcher.findSchema({name, ""})) return op;
  const size_t last = name.rfind('.');
  if (last == std::string::npos) return std::nullopt;
  return dispatcher.findSchema({name.substr(0, last), name.substr(last + 1)});
}

Position ParsePosition(const Lexer& lex, size_t at, const std::string& text) {
  Position position;
  if (text == "?") return position;
  const auto number = [&](const std::string& digits, int* out) {
    const char* end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, *out);
    return !digits.empty() && digits[0] != '-' && error == std::errc() && stop == end;
  };
  const size_t colon = text.rfind(':');
  int last = 0;
  if (colon == std::string::npos || !number(text.substr(colon + 1), &last)) {
    lex.FailAt(at, "expected a position, function:line or function:line:column");
  }
  const std::string before = text.substr(0, colon);
  const size_t other = before.rfind(':');
  int line = 0;
  if (other != std::string::npos && number(before.substr(other + 1), &line)) {
    position.function = before.substr(0, other);
    position.line = line;
    position.col = last;
  } else {
    position.function = before;
    position.line = last;
  }
  if (position.line <= 0) lex.FailAt(at, "a position's line is 1 or more");
  return position;
}

Position NextPosition(Lexer& lex) {
  lex.Spaces();
  const size_t at = lex.pos();
  return ParsePosition(lex, at, lex.Run());
}

std::optional<c10::Device> NextDevice(Lexer& lex) {
  const size_t from = lex.pos();
  std::string text = lex.PeekWord();
  if (text.empty()) return std::nullopt;
  lex.Word();
  if (lex.peek() == ':' && lex.peek(1) >= '0' && lex.peek(1) <= '9') {
    lex.Accept(":");
    absl::StrAppend(&text, ":", lex.Word());
  }
  try {
    return c10::Device(text);
  } catch (const std::exception&) {
    lex.Seek(from);
    return std::nullopt;
  }
}

Type NextType(Lexer& lex, const SizeHints& hints, std::vector<std::pair<size_t, std::string>>* open) {
  lex.Spaces();
  const size_t at = lex.pos();
  const std::string word = lex.Word();
  if (lex.peek() != '[') {
    for (const Type::Kind kind : {Type::Kind::kNone, Type::Kind::kTensorList, Type::Kind::kInt, Type::Kind::kFloat,
                                  Type::Kind::kBool, Type::Kind::kOpaque}) {
      if (word == ToString(Type::Scalar(kind))) return Type::Scalar(kind);
    }
    lex.FailAt(at, absl::StrCat("'", word, "' is not a type"));
  }
  Type type;
  type.kind = Type::Kind::kTensor;
  const std::optional<c10::ScalarType> dtype = ParseDtype(word);
  if (!dtype) lex.FailAt(at, absl::StrCat("'", word, "' is not a dtype"));
  type.dtype = *dtype;
  lex.Expect("[");
  while (!lex.AcceptToken("]")) {
    if (!type.sizes.empty()) lex.ExpectToken(",");
    lex.Spaces();
    if (lex.Accept("?")) {
      type.sizes.push_back(-1);
      continue;
    }
    const size_t size_at = lex.pos();
    const std::string word_here = lex.PeekWord();
    if (open != nullptr && !word_here.empty() && (word_here[0] < '0' || word_here[0] > '9')) {
      open->emplace_back(type.sizes.size(), lex.Word());
      type.sizes.push_back(-1);
      continue;
    }
    const std::optional<int64_t> size = ReadSize(lex, hints);
    if (size && *size < 0) lex.FailAt(size_at, "a size is not negative");
    type.sizes.push_back(size.value_or(-1));
  }
  const size_t after = lex.pos();
  lex.Spaces();
  if (const std::optional<c10::Device> device = NextDevice(lex)) {
    type.device = *device;
  } else {
    lex.Seek(after);
  }
  return type;
}

bool NextFlag(Lexer& lex) {
  if (lex.Accept("on")) return true;
  lex.Expect("off");
  return false;
}

EagerState NextState(Lexer& lex, EagerState state) {
  do {
    lex.Spaces();
    const size_t at = lex.pos();
    const std::string word = lex.Word();
    lex.Expect("(");
    if (word == "grad_mode") {
      state.grad_mode = NextFlag(lex);
    } else if (word == "inference_mode") {
      state.inference_mode = NextFlag(lex);
    } else if (word == "autocast_cache") {
      state.autocast_cache = NextFlag(lex);
    } else if (word == "autocast") {
      state.autocast_cpu = !lex.AcceptWord("off");
      lex.Spaces();
      if (state.autocast_cpu || lex.peek() != ')') {
        const size_t dtype_at = lex.pos();
        const std::optional<c10::ScalarType> dtype = ParseDtype(lex.Word());
        if (!dtype) lex.FailAt(dtype_at, "expected a dtype or 'off'");
        state.autocast_cpu_dtype = *dtype;
      }
    } else {
      lex.FailAt(at, "expected grad_mode, inference_mode, autocast or autocast_cache");
    }
    lex.Expect(")");
  } while (lex.AcceptToken(","));
  lex.ExpectToken("}");
  return state;
}

}  // namespace frametap
