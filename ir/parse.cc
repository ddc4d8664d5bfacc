// The parser: recursive descent over the grammar of docs/text_form.md. What it accepts it has verified (T3).
#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ir/frame_slot.h"
#include "ir/lexer.h"
#include "ir/literal.h"
#include "ir/ops/scalar.h"
#include "ir/size_reader.h"
#include "ir/text.h"
#include "ir/verify.h"

namespace frametap {
namespace {

constexpr int kDeepest = 64;  // nesting of lists and operands

class Depth {
 public:
  Depth(int* depth, const Lexer& lex) : depth_(depth) {
    if (++*depth_ > kDeepest) {
      --*depth_;
      lex.Fail("nested too deeply");
    }
  }
  ~Depth() { --*depth_; }

 private:
  int* depth_;
};

// -- operators
// ----------------------------------------------------------------------------------------------------------

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

// -- pieces that graphs and segments share
// ------------------------------------------------------------------------------

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

// `open`, for an input: the dimensions whose sizes are symbols of their own, which are declared later.
Type NextType(Lexer& lex, const SizeHints& hints, std::vector<std::pair<size_t, std::string>>* open) {
  lex.Spaces();
  const size_t at = lex.pos();
  const std::string word = lex.Word();
  if (lex.peek() != '[') {
    for (const Type::Kind kind : {Type::Kind::kNone, Type::Kind::kTensorList, Type::Kind::kInt, Type::Kind::kFloat,
                                  Type::Kind::kBool, Type::Kind::kOpaque}) {
      if (word == ToString(Type::Scalar(kind))) return Type::Scalar(kind);
    }
    lex.FailAt(at, absl::StrCat("'", word, "' is no type"));
  }
  Type type;
  type.kind = Type::Kind::kTensor;
  const std::optional<c10::ScalarType> dtype = ParseDtype(word);
  if (!dtype) lex.FailAt(at, absl::StrCat("'", word, "' is no dtype"));
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

// After '{', up to and with '}'.
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

// -- graphs
// -------------------------------------------------------------------------------------------------------------

class GraphParser {
 public:
  explicit GraphParser(Lexer& lex) : lex_(lex) {}

  Graph Parse() {
    lex_.ExpectToken("graph");
    lex_.ExpectToken("(");
    while (!lex_.AcceptToken(")")) {
      if (!graph_.inputs.empty()) lex_.ExpectToken(",");
      ParseInput();
    }
    if (lex_.AcceptWord("for")) ParseSymbols();
    CheckSymbols();
    if (lex_.AcceptWord("under")) {
      lex_.ExpectToken("{");
      graph_.states[0] = NextState(lex_, EagerState());
    }
    lex_.ExpectToken("{");
    lex_.EndLine();
    lex_.Blank();
    while (lex_.AcceptWord("constant")) {
      const ValueId id = Define(NodeId());
      graph_.constants.emplace_back(id, at::Tensor());
      lex_.EndLine();
      lex_.Blank();
    }
    while (lex_.peek() != '}') {
      if (lex_.PeekWord() == "return" && lex_.peek(6) != '.') {
        lex_.Word();
        do {
          lex_.Spaces();
          graph_.outputs.push_back(Use());
        } while (lex_.AcceptToken(","));
        lex_.EndLine();
        lex_.Blank();
        break;
      }
      ParseNode();
      lex_.Blank();
    }
    lex_.ExpectToken("}");
    return std::move(graph_);
  }

  const absl::flat_hash_map<std::string, ValueId>& names() const { return names_; }

 private:
  std::string ValueName() {
    lex_.Spaces();
    lex_.Expect("%");
    const size_t from = lex_.pos();
    std::string name;
    while (IsWordChar(lex_.peek()) || lex_.peek() == '.') {
      name += lex_.peek();
      lex_.Seek(lex_.pos() + 1);
    }
    if (name.empty()) lex_.FailAt(from, "expected the name of a value after '%'");
    return name;
  }

  // "%x : f32[s0, 3]", "%n : int = s0"
  void ParseInput() {
    std::vector<std::pair<size_t, std::string>> open;
    const size_t at = lex_.pos();
    const ValueId id = Define(NodeId(), &open);
    graph_.inputs.push_back(id);
    for (auto& [dim, name] : open) inputs_open_.push_back({std::move(name), id, dim, ValueId(), at});
    if (!lex_.AcceptToken("=")) return;
    lex_.Spaces();
    const size_t name_at = lex_.pos();
    inputs_open_.push_back({lex_.Word(), ValueId(), 0, id, name_at});
  }

  // "s0 = 8, u0 = 3", after the inputs
  void ParseSymbols() {
    do {
      lex_.Spaces();
      const size_t at = lex_.pos();
      const std::string name = lex_.Word();
      lex_.ExpectToken("=");
      lex_.Spaces();
      const size_t size_at = lex_.pos();
      const int64_t size = lex_.Int();
      if (size < 0) lex_.FailAt(size_at, "a size is not negative");
      if (!hints_.emplace(name, size).second) lex_.FailAt(at, absl::StrCat("'", name, "' is declared twice"));
      const auto is_here = [&](const OpenInput& open) { return open.symbol == name && open.tensor.valid(); };
      const auto tensor = std::find_if(inputs_open_.begin(), inputs_open_.end(), is_here);
      if (tensor == inputs_open_.end()) continue;  // of a result
      SizeSymbol symbol{tensor->tensor, tensor->dim, ValueId()};
      for (OpenInput& open : inputs_open_) {
        if (open.symbol != name) continue;
        if (open.tensor.valid()) {
          if (&open != &*tensor) lex_.FailAt(open.at, absl::StrCat("'", name, "' is another size already"));
          graph_.value(open.tensor).type.sizes[open.dim] = hints_.at(name);
        } else {
          symbol.number = open.number;
        }
        open.is_declared = true;
      }
      graph_.symbols.push_back(symbol);
    } while (lex_.AcceptToken(","));
  }

  void CheckSymbols() {
    for (const OpenInput& open : inputs_open_) {
      if (open.is_declared) continue;
      const bool is_known = hints_.contains(open.symbol);
      lex_.FailAt(open.at, is_known ? absl::StrCat("'", open.symbol, "' is the size of no input")
                                    : absl::StrCat("'", open.symbol, "' is not declared: 'for ", open.symbol, " = …'"));
    }
  }

  ValueId Define(NodeId def, std::vector<std::pair<size_t, std::string>>* open = nullptr) {
    lex_.Spaces();
    const size_t at = lex_.pos();
    const std::string name = ValueName();
    Type type;
    if (lex_.AcceptToken(":")) type = NextType(lex_, hints_, open);
    const ValueId id(graph_.values.size());
    if (!names_.emplace(name, id).second) lex_.FailAt(at, absl::StrCat("%", name, " is defined twice"));
    return graph_.NewValue(name, std::move(type), def);
  }

  ValueId Use() {
    const size_t at = lex_.pos();
    const std::string name = ValueName();
    const auto it = names_.find(name);
    if (it == names_.end()) lex_.FailAt(at, absl::StrCat("%", name, " is not defined"));
    return it->second;
  }

  void ParseNode() {
    Node node;
    const NodeId id(graph_.nodes.size());
    // Outputs are defined after the arguments were read: a node cannot use what it defines.
    const size_t outputs_at = lex_.pos();
    std::vector<std::pair<std::string, size_t>> outputs;
    std::vector<Type> types;
    if (lex_.peek() == '%') {
      do {
        lex_.Spaces();
        const size_t at = lex_.pos();
        outputs.emplace_back(ValueName(), at);
        types.emplace_back();
        if (lex_.AcceptToken(":")) types.back() = NextType(lex_, hints_, nullptr);
      } while (lex_.AcceptToken(","));
      lex_.Spaces();
      if (lex_.peek() != '=') lex_.Fail(absl::StrCat("expected '=' after %", outputs.back().first));
      lex_.Expect("=");
      lex_.Spaces();
    }
    const size_t op_at = lex_.pos();
    std::string name;
    while (IsWordChar(lex_.peek()) || lex_.peek() == '.') {
      name += lex_.peek();
      lex_.Seek(lex_.pos() + 1);
    }
    if (name.empty()) lex_.Fail("expected the name of an operator");
    if (const std::optional<ScalarOp> scalar = ParseScalarOp(name)) {
      node.scalar_op = *scalar;
      ScalarArgs(&node);
    } else if ((node.op = FindOp(name))) {
      OpArgs(&node);
    } else {
      const std::vector<std::string> near = NearNames(name);
      lex_.FailAt(op_at, absl::StrCat("there is no operator '", name, "'",
                                      near.empty() ? "" : "; near names: ", absl::StrJoin(near, ", ")));
    }
    node.state = StateId(0);
    if (lex_.AcceptToken("{")) node.state = graph_.AddState(NextState(lex_, graph_.states[0]));
    if (lex_.AcceptToken("@")) {
      auto where = std::make_shared<Where>();
      where->position = NextPosition(lex_);
      node.where = std::move(where);
    }
    lex_.EndLine();
    const size_t want = node.is_scalar() ? 1 : node.op->schema().returns().size();
    if (outputs.size() != want) {
      lex_.FailAt(outputs_at,
                  absl::StrCat(name, " has ", want, want == 1 ? " result" : " results", ", not ", outputs.size()));
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      const ValueId value(graph_.values.size());
      if (!names_.emplace(outputs[i].first, value).second) {
        lex_.FailAt(outputs[i].second, absl::StrCat("%", outputs[i].first, " is defined twice"));
      }
      node.outputs.push_back(graph_.NewValue(outputs[i].first, std::move(types[i]), id));
    }
    if (const absl::Status status = VerifyNode(graph_, node); !status.ok()) {
      lex_.FailAt(op_at, absl::StrCat(name, ": ", std::string(status.message())));
    }
    graph_.AddNode(std::move(node));
  }

  void ScalarArgs(Node* node) {
    lex_.Expect("(");
    while (!lex_.AcceptToken(")")) {
      if (!node->args.empty()) lex_.ExpectToken(",");
      lex_.Spaces();
      node->args.push_back(NextArg(nullptr, nullptr));
    }
  }

  void OpArgs(Node* node) {
    const c10::FunctionSchema& schema = node->op->schema();
    const std::vector<c10::Argument>& want = schema.arguments();
    std::vector<std::optional<Arg>> given(want.size());
    lex_.Expect("(");
    const size_t from = lex_.pos();
    size_t next = 0;
    bool first = true;
    bool named = false;
    while (!lex_.AcceptToken(")")) {
      if (!first) lex_.ExpectToken(",");
      first = false;
      lex_.Spaces();
      const size_t at = lex_.pos();
      size_t index = next++;
      const std::string word = lex_.PeekWord();
      if (!word.empty() && lex_.peek(word.size()) == '=') {
        named = true;
        index = 0;
        while (index < want.size() && want[index].name() != word) ++index;
        if (index == want.size()) lex_.FailAt(at, absl::StrCat(node->op_name(), " has no argument '", word, "'"));
        lex_.Word();
        lex_.Expect("=");
      } else {
        if (named) lex_.FailAt(at, "an argument without a name after one with a name");
        if (index >= want.size() || want[index].kwarg_only()) {
          lex_.FailAt(at, absl::StrCat(node->op_name(), " takes no argument without a name here"));
        }
      }
      if (given[index]) lex_.FailAt(at, absl::StrCat("argument '", want[index].name(), "' is given twice"));
      given[index] = NextArg(want[index].type().get(), want[index].real_type().get());
    }
    for (size_t i = 0; i < want.size(); ++i) {
      if (given[i]) {
        node->args.push_back(std::move(*given[i]));
      } else if (want[i].default_value()) {
        node->args.push_back(Arg::Const(*want[i].default_value()));
      } else {
        lex_.FailAt(from, absl::StrCat(node->op_name(), " needs the argument '", want[i].name(), "'"));
      }
    }
  }

  // `type`: what the boxed list is made of; `real`: what ints mean. Both null for scalar ops.
  Arg NextArg(const c10::Type* type, const c10::Type* real) {
    const Depth depth(&depth_, lex_);
    if (lex_.peek() == '%') return Arg::Of(Use());
    type = StripOptional(type);
    real = StripOptional(real);
    if (lex_.peek() == '[') return NextList(type, real);
    return Arg::Const(NextConst(type, real));
  }

  Arg NextList(const c10::Type* type, const c10::Type* real) {
    const bool is_list =
        type != nullptr && type->kind() == c10::TypeKind::ListType && real->kind() == c10::TypeKind::ListType;
    if (!is_list) lex_.Fail("this argument is no list");
    const c10::TypePtr element = type->castRaw<c10::ListType>()->getElementType();
    const c10::TypePtr real_element = real->castRaw<c10::ListType>()->getElementType();
    lex_.Expect("[");
    std::vector<Arg> items;
    bool any_value = false;
    while (!lex_.AcceptToken("]")) {
      if (!items.empty()) lex_.ExpectToken(",");
      lex_.Spaces();
      items.push_back(NextArg(element.get(), real_element.get()));
      any_value = any_value || items.back().kind != Arg::Kind::kConst;
    }
    if (any_value) return Arg::List(std::move(items));
    c10::impl::GenericList list(element);
    list.reserve(items.size());
    for (Arg& item : items) list.push_back(std::move(item.constant));
    return Arg::Const(c10::IValue(std::move(list)));
  }

  double NextFloat() {
    const bool minus = lex_.Accept("-");
    const std::string word = lex_.PeekWord();
    if (word == "inf") {
      lex_.Word();
      return minus ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
    }
    if (word == "nan" && !minus) {
      lex_.Word();
      if (!lex_.Accept("(")) return std::numeric_limits<double>::quiet_NaN();
      const size_t at = lex_.pos();
      const std::string digits = lex_.Word();
      lex_.Expect(")");
      uint64_t bits = 0;
      const char* end = digits.data() + digits.size();
      const auto [stop, error] = std::from_chars(digits.data(), end, bits, 16);
      const double value = std::bit_cast<double>(bits);
      if (error != std::errc() || stop != end || !std::isnan(value)) lex_.FailAt(at, "expected the bits of a nan");
      return value;
    }
    std::string text = NumberRun();
    double value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stop != end) lex_.Fail("expected a number");
    return minus ? -value : value;
  }

  std::string NumberRun() {
    std::string text;
    for (;;) {
      const char c = lex_.peek();
      const bool sign = (c == '-' || c == '+') && !text.empty() && text.back() == 'e';
      if (!(c >= '0' && c <= '9') && c != '.' && c != 'e' && !sign) return text;
      text += c;
      lex_.Seek(lex_.pos() + 1);
    }
  }

  c10::IValue NextNumber(const c10::Type* type) {
    const size_t from = lex_.pos();
    const size_t digits = lex_.peek() == '-' ? 1 : 0;
    if (lex_.peek(digits) >= '0' && lex_.peek(digits) <= '9') {
      lex_.Seek(from + digits);
      const bool is_int = NumberRun().find_first_of(".e") == std::string::npos;
      lex_.Seek(from);
      if (is_int && !(type != nullptr && type->kind() == c10::TypeKind::FloatType)) return lex_.Int();
    }
    return NextFloat();
  }

  c10::IValue NextConst(const c10::Type* type, const c10::Type* real) {
    const size_t at = lex_.pos();
    const char c = lex_.peek();
    if (c == '"') return lex_.QuotedString();
    if (c == '-' || (c >= '0' && c <= '9')) return NextNumber(type);
    const std::string word = lex_.PeekWord();
    if (word == "None" || word == "True" || word == "False" || word == "undefined") {
      lex_.Word();
      if (word == "None") return c10::IValue();
      if (word == "undefined") return at::Tensor();
      return word == "True";
    }
    if (word == "inf" || word == "nan") return NextFloat();
    if (word == "complex") {
      lex_.Word();
      lex_.Expect("(");
      const double re = NextFloat();
      lex_.ExpectToken(",");
      lex_.Spaces();
      const double im = NextFloat();
      lex_.ExpectToken(")");
      return c10::complex<double>(re, im);
    }
    if (word == "generator") {
      lex_.Word();
      lex_.Expect("(");
      const bool is_default = lex_.Accept("default");
      if (!is_default) lex_.Expect("other");
      lex_.Expect(")");
      return is_default ? at::detail::getDefaultCPUGenerator() : at::detail::createCPUGenerator();
    }
    if (real != nullptr && !word.empty()) {
      if (const std::optional<int64_t> value = ParseEnumName(real->kind(), word)) {
        lex_.Word();
        return *value;
      }
      if (real->kind() == c10::TypeKind::DeviceObjType) {
        if (const std::optional<c10::Device> device = NextDevice(lex_)) return *device;
      }
    }
    lex_.FailAt(at, real == nullptr ? "expected a value or a constant"
                                    : absl::StrCat("expected a value or a constant of type ", real->str()));
  }

  // Where an input has a symbol: a size of a tensor, or the number that is such a size.
  struct OpenInput {
    std::string symbol;
    ValueId tensor;
    size_t dim = 0;
    ValueId number;
    size_t at = 0;
    bool is_declared = false;
  };

  Lexer& lex_;
  Graph graph_;
  absl::flat_hash_map<std::string, ValueId> names_;
  std::vector<OpenInput> inputs_open_;
  SizeHints hints_;
  int depth_ = 0;
};

// -- segments
// -----------------------------------------------------------------------------------------------------------

class SegmentParser {
 public:
  explicit SegmentParser(Lexer& lex) : lex_(lex) {}

  SegmentIr Parse() {
    lex_.ExpectToken("segment");
    lex_.Spaces();
    s_.name = lex_.Run();
    lex_.ExpectToken("{");
    lex_.EndLine();
    lex_.ExpectToken("entry");
    lex_.Spaces();
    Entry(lex_.Run());
    while (lex_.AcceptWord("in")) {
      lex_.Spaces();
      absl::StrAppend(&s_.entry, " in ", ToString(NextPosition(lex_)));
    }
    lex_.EndLine();
    // Guards name values of the graph, which comes after them: it is read first.
    lex_.ExpectToken("guard");
    lex_.ExpectToken("{");
    lex_.EndLine();
    const size_t guards_at = lex_.pos();
    SkipGuards();
    lex_.Blank();
    if (lex_.AcceptWord("decide")) Decide();
    GraphParser graph(lex_);
    s_.graph = graph.Parse();
    names_ = graph.names();
    lex_.EndLine();
    const size_t after_graph = lex_.pos();
    lex_.Seek(guards_at);
    Guards();
    lex_.Seek(after_graph);
    if (lex_.AcceptWord("effect")) Effects();
    lex_.Blank();
    Exit_();
    lex_.Blank();
    lex_.ExpectToken("}");
    return std::move(s_);
  }

 private:
  void Entry(const std::string& text) {
    const size_t colon = text.find(':');
    if (colon == std::string::npos) lex_.Fail("expected function:start or function:line:column");
    s_.function = text.substr(0, colon);
    s_.entry = text.substr(colon + 1);
  }

  // Guard lines are free words behind their source; the block ends at a line that is '}' alone.
  bool AtBlockEnd() {
    const size_t from = lex_.pos();
    lex_.Spaces();
    const bool end = lex_.peek() == '}' && (lex_.peek(1) == '\n' || lex_.peek(1) == '\0');
    lex_.Seek(from);
    return end;
  }

  void SkipGuards() {
    while (!AtBlockEnd()) {
      if (lex_.at_end()) lex_.Fail("expected '}' after the guards");
      lex_.Rest();
      lex_.EndLine();
    }
    lex_.ExpectToken("}");
    lex_.EndLine();
  }

  void Decide() {
    lex_.ExpectToken("(");
    while (!lex_.AcceptToken(")")) {
      if (!s_.decisions.sources.empty()) lex_.ExpectToken(",");
      lex_.Spaces();
      s_.decisions.sources.push_back(NextSource());
    }
    lex_.ExpectToken("is");
    lex_.ExpectToken("(");
    while (!lex_.AcceptToken(")")) {
      if (!s_.decisions.outcomes.empty()) lex_.ExpectToken(",");
      lex_.Spaces();
      const size_t at = lex_.pos();
      const std::string word = lex_.Word();
      if (word != "True" && word != "False") lex_.FailAt(at, "expected True or False");
      s_.decisions.outcomes.push_back(word == "True");
    }
    lex_.EndLine();
    lex_.Blank();
    GraphParser graph(lex_);
    s_.decisions.graph = graph.Parse();
    lex_.EndLine();
    lex_.Blank();
  }

  void Guards() {
    std::vector<SourceId> open;
    while (!AtBlockEnd()) {
      const size_t at = lex_.pos();
      const size_t indent = lex_.Indent();
      if (lex_.PeekWord() == "state") {
        lex_.Word();
        lex_.ExpectToken(":");
        for (lex_.Spaces(); !lex_.at_line_end(); lex_.Spaces()) s_.state.push_back(lex_.Run());
        lex_.EndLine();
        continue;
      }
      if (indent < 4 || indent % 2 != 0 || (indent - 4) / 2 > open.size()) {
        lex_.FailAt(at, "a guard is indented by two blanks more than the source it belongs to");
      }
      open.resize((indent - 4) / 2);
      GuardLine line;
      line.source = open.empty() ? NextSource() : NextSteps(open.back(), true);
      open.push_back(line.source);
      if (lex_.AcceptToken("=")) {
        lex_.Spaces();
        line.binds = Use();
      }
      if (lex_.AcceptToken(":")) {
        line.predicate = lex_.Rest();
        const size_t mark = line.predicate.rfind("  @ ");
        if (mark != std::string::npos && LooksLikePosition(line.predicate.substr(mark + 4))) {
          line.why = ParsePosition(lex_, at, line.predicate.substr(mark + 4));
          line.predicate.resize(mark);
        }
      } else if (lex_.AcceptToken("@")) {
        line.why = NextPosition(lex_);
      }
      lex_.EndLine();
      s_.guards.push_back(std::move(line));
    }
  }

  static bool LooksLikePosition(const std::string& text) {
    return text.find_first_of(" \"'") == std::string::npos && text.find(':') != std::string::npos && !text.empty() &&
           text.back() >= '0' && text.back() <= '9';
  }

  ValueId Use() {
    const size_t at = lex_.pos();
    lex_.Expect("%");
    std::string name;
    while (IsWordChar(lex_.peek()) || lex_.peek() == '.') {
      name += lex_.peek();
      lex_.Seek(lex_.pos() + 1);
    }
    const auto it = names_.find(name);
    if (it == names_.end()) lex_.FailAt(at, absl::StrCat("%", name, " is not a value of the graph"));
    return it->second;
  }

  SourceId Add(SourceId parent, Accessor accessor, int64_t index = 0, std::string text = "") {
    Source source;
    source.parent = parent;
    source.accessor = accessor;
    source.index = index;
    source.text = std::move(text);
    return s_.sources.Add(std::move(source));
  }

  std::string AttrName() {
    lex_.Expect(".");
    if (!lex_.Accept("<attr>(")) return lex_.Word();
    std::string name = lex_.QuotedString();
    lex_.Expect(")");
    return name;
  }

  SourceId NextSource() {
    const Depth depth(&depth_, lex_);
    const size_t at = lex_.pos();
    std::string word = lex_.Word();
    int frame = 0;
    if (const char letter = FrameLetterOf(word, &frame); letter != 0) word = letter;
    SourceId root;
    if (word == "type") {
      lex_.Expect("(");
      const SourceId of = NextSource();
      lex_.Expect(")");
      root = Add(of, Accessor::kTypeOf);
    } else if (word == "pinned") {
      lex_.Expect("(");
      root = Add(SourceId(), Accessor::kPinned, 0, lex_.QuotedString());
      lex_.Expect(")");
    } else if (word == "L") {
      root = Add(SourceId(), Accessor::kLocal, FrameSlot(frame, 0), AttrName());
    } else if (word == "C") {
      root = Add(SourceId(), Accessor::kCell, FrameSlot(frame, 0), AttrName());
    } else if (word == "G" || word == "B") {
      const SourceId function = Add(SourceId(), Accessor::kFunction);
      root = Add(function, word == "G" ? Accessor::kGlobal : Accessor::kBuiltin, 0, AttrName());
    } else if (word == "S") {
      lex_.Expect("[");
      const int64_t slot = lex_.Int();
      if (slot < 0 || slot > 0x7fffffff) lex_.Fail("a slot of the value stack has a small number");
      root = Add(SourceId(), Accessor::kStack, FrameSlot(frame, static_cast<int>(slot)));
      lex_.Expect("]");
    } else if (word == "F") {
      root = Add(SourceId(), Accessor::kFunction, FrameSlot(frame, 0));
    } else {
      if (!IsPinnedPath(word)) lex_.FailAt(at, absl::StrCat("'", word, "' begins no source"));
      root = Add(SourceId(), Accessor::kPinned, 0, absl::StrCat(word, PinnedRest()));
    }
    return NextSteps(root, false);
  }

  // The words of a pinned path; what takes an argument is a step.
  std::string PinnedRest() {
    std::string path;
    for (;;) {
      const size_t from = lex_.pos();
      if (!lex_.Accept(".")) return path;
      const std::string word = lex_.PeekWord();
      const char after = lex_.peek(word.size());
      if (word.empty() || (word[0] >= '0' && word[0] <= '9') || after == '(' || (word == "keys" && after == '[')) {
        lex_.Seek(from);
        return path;
      }
      lex_.Word();
      absl::StrAppend(&path, ".", word);
    }
  }

  SourceId NextSteps(SourceId source, bool at_least_one) {
    for (bool first = at_least_one;; first = false) {
      if (lex_.peek() == '[') {
        source = NextBracket(source);
      } else if (lex_.peek() == '.') {
        source = NextDot(source);
      } else if (first) {
        lex_.Fail("expected a step of a source, '.name' or '[index]'");
      } else {
        return source;
      }
    }
  }

  SourceId NextBracket(SourceId source) {
    lex_.Expect("[");
    SourceId item;
    const char quote = lex_.peek();
    if (quote == '"' || quote == '\'') {
      std::string text(1, quote);
      do {
        lex_.Seek(lex_.pos() + 1);
        if (lex_.at_line_end() || lex_.peek() == '\\') lex_.Fail("a key without its closing quote");
        text += lex_.peek();
      } while (lex_.peek() != quote);
      lex_.Seek(lex_.pos() + 1);
      item = Add(source, Accessor::kKey, 0, text);
    } else if (lex_.Accept("key ")) {
      item = Add(source, Accessor::kKey, 0, lex_.QuotedString());
    } else {
      item = Add(source, Accessor::kItem, lex_.Int());
    }
    lex_.Expect("]");
    return item;
  }

  SourceId Indexed(SourceId source, Accessor accessor, std::string_view open, std::string_view close) {
    lex_.Expect(open);
    const SourceId id = Add(source, accessor, lex_.Int());
    lex_.Expect(close);
    return id;
  }

  SourceId NextDot(SourceId source) {
    const size_t from = lex_.pos();
    lex_.Expect(".");
    if (lex_.Accept("<global>")) return Add(source, Accessor::kGlobal, 0, AttrName());
    if (lex_.Accept("<builtin>")) return Add(source, Accessor::kBuiltin, 0, AttrName());
    if (lex_.Accept("<context>")) return Add(source, Accessor::kContextValue);
    if (lex_.Accept("<closure>")) return Indexed(source, Accessor::kClosure, "[", "]");
    if (lex_.Accept("<frame>")) return Indexed(source, Accessor::kFrame, "[", "]");
    if (lex_.Accept("<over>")) return Indexed(source, Accessor::kOver, "[", "]");
    if (lex_.Accept("<next>")) return Indexed(source, Accessor::kNext, "[", "]");
    if (lex_.Accept("<key>")) return Indexed(source, Accessor::kNextKey, "[", "]");
    if (lex_.Accept("<count>")) return Indexed(source, Accessor::kCount, "[", "]");
    if (lex_.Accept("<left>")) return Add(source, Accessor::kLeft);
    if (lex_.Accept("<default>")) {
      if (lex_.peek(1) != '"') return Indexed(source, Accessor::kDefault, "[", "]");
      lex_.Expect("[");
      const SourceId id = Add(source, Accessor::kKwDefault, 0, lex_.QuotedString());
      lex_.Expect("]");
      return id;
    }
    if (lex_.peek() == '<') {
      lex_.Seek(from);
      return Add(source, Accessor::kAttr, 0, AttrName());
    }
    const std::string word = lex_.Word();
    if (word == "size" && lex_.peek() == '(') return Indexed(source, Accessor::kSize, "(", ")");
    if (word == "stride" && lex_.peek() == '(') return Indexed(source, Accessor::kStride, "(", ")");
    if (word == "keys" && lex_.peek() == '[') return Indexed(source, Accessor::kDictKeyAt, "[", "]");
    if (word == "len") return Add(source, Accessor::kLength);
    if (word == "grad") return Add(source, Accessor::kGrad);
    if (word == "__dict__") return Add(source, Accessor::kDict);
    if (word == "__self__") return Add(source, Accessor::kSelf);
    if (word == "__func__") return Add(source, Accessor::kFunc);
    return Add(source, Accessor::kAttr, 0, word);
  }

  // -- operands --

  void Items(Operand* operand, std::string_view close) {
    while (!lex_.AcceptToken(close)) {
      if (!operand->items.empty()) {
        lex_.ExpectToken(",");
        if (lex_.AcceptToken(close)) return;
      }
      operand->items.push_back(NextOperand());
    }
  }

  void ConstId_(Operand* operand) {
    lex_.Spaces();
    if (!lex_.Accept("?")) {
      const size_t at = lex_.pos();
      const int64_t raw = lex_.Int();
      if (raw < 0 || raw >= int64_t{ConstId::kNoneRaw}) lex_.FailAt(at, "expected the number of a constant");
      operand->constant = ConstId(static_cast<uint32_t>(raw));
    }
    const size_t after = lex_.pos();
    lex_.Spaces();
    if (lex_.peek() == '"') {
      operand->text = lex_.QuotedString();
    } else {
      lex_.Seek(after);
    }
  }

  Operand NextOperand() {
    const Depth depth(&depth_, lex_);
    Operand o;
    lex_.Spaces();
    if (lex_.Accept("&")) {
      const int64_t label = lex_.Int();
      if (!lex_.Accept("=")) {
        o.kind = Operand::Kind::kShared;
        o.index = label;
        return o;
      }
      o = NextOperand();
      if (o.label >= 0 || o.kind == Operand::Kind::kShared) lex_.Fail("a label of a label");
      if (label < 0) lex_.Fail("a label is not negative");
      o.label = label;
      return o;
    }
    const char c = lex_.peek();
    if (c == '%') {
      o.kind = Operand::Kind::kValue;
      o.value = Use();
      return o;
    }
    if (lex_.Accept("(")) {
      o.kind = Operand::Kind::kTuple;
      Items(&o, ")");
      return o;
    }
    if (lex_.Accept("[")) {
      o.kind = Operand::Kind::kList;
      Items(&o, "]");
      return o;
    }
    if (lex_.Accept("{")) {
      o.kind = Operand::Kind::kDict;
      while (!lex_.AcceptToken("}")) {
        if (!o.items.empty()) lex_.ExpectToken(",");
        o.items.push_back(NextOperand());
        lex_.ExpectToken(":");
        o.items.push_back(NextOperand());
      }
      return o;
    }
    const std::string word = lex_.PeekWord();
    if (word == "null") {
      lex_.Word();
    } else if (word == "const") {
      lex_.Word();
      o.kind = Operand::Kind::kConst;
      ConstId_(&o);
    } else if (word == "set") {
      lex_.Word();
      o.kind = Operand::Kind::kSet;
      lex_.Expect("{");
      Items(&o, "}");
    } else if (word == "slice" || word == "iter" || word == "method" || word == "cell") {
      const size_t at = lex_.pos();
      lex_.Word();
      lex_.Expect("(");
      Items(&o, ")");
      const size_t want = word == "slice" ? 3 : word == "method" ? 2 : word == "iter" ? o.items.size() : 1;
      if (o.items.size() != want) lex_.FailAt(at, absl::StrCat(word, " takes ", want, want == 1 ? " item" : " items"));
      o.kind = word == "slice"    ? Operand::Kind::kSlice
               : word == "iter"   ? Operand::Kind::kIter
               : word == "method" ? Operand::Kind::kMethod
                                  : Operand::Kind::kCell;
    } else if (word == "generator") {
      lex_.Word();
      o.kind = Operand::Kind::kGenerator;
      lex_.Expect("(");
      o.items.push_back(NextOperand());
      if (lex_.AcceptToken(",")) o.frame.push_back(Frame(0));
      lex_.ExpectToken(")");
    } else if (word == "new") {
      lex_.Word();
      NextNew(&o);
    } else {
      o.kind = Operand::Kind::kSource;
      o.source = NextSource();
    }
    return o;
  }

  void NextNew(Operand* o) {
    o->kind = Operand::Kind::kNew;
    lex_.ExpectToken("const");
    ConstId_(o);
    if (lex_.AcceptToken("#")) o->index = lex_.Int();
    lex_.ExpectToken("(");
    Items(o, ")");
    if (!lex_.Accept("{")) return;
    while (!lex_.AcceptToken("}")) {
      if (!o->names.empty()) lex_.ExpectToken(",");
      lex_.Spaces();
      o->names.push_back(lex_.QuotedString());
      lex_.ExpectToken(":");
      o->items.push_back(NextOperand());
    }
  }

  // -- effects and exit --

  void Effects() {
    lex_.ExpectToken("{");
    lex_.Spaces();
    if (!lex_.at_line_end()) {
      NextEffect();
      lex_.ExpectToken("}");
      lex_.EndLine();
      return;
    }
    lex_.Blank();
    while (!lex_.AcceptToken("}")) {
      NextEffect();
      lex_.EndLine();
      lex_.Blank();
    }
    lex_.EndLine();
  }

  void NextEffect() {
    Effect e;
    const size_t at = lex_.pos();
    const std::string word = lex_.Word();
    const auto target = [&] { e.target = NextOperand(); };
    const auto key = [&] { e.key = NextOperand(); };
    const auto value = [&] { e.value = NextOperand(); };
    const auto name = [&] {
      lex_.Spaces();
      e.name = lex_.QuotedString();
    };
    if (word == "setattr") {
      e.kind = Effect::Kind::kSetAttr;
      target(), name(), value();
    } else if (word == "delattr") {
      e.kind = Effect::Kind::kDelAttr;
      target(), name();
    } else if (word == "setitem") {
      e.kind = Effect::Kind::kSetItem;
      target(), key(), value();
    } else if (word == "delitem") {
      e.kind = Effect::Kind::kDelItem;
      target(), key();
    } else if (word == "append" || word == "extend" || word == "setcell" || word == "advance") {
      e.kind = word == "append"    ? Effect::Kind::kAppend
               : word == "extend"  ? Effect::Kind::kExtend
               : word == "advance" ? Effect::Kind::kAdvance
                                   : Effect::Kind::kSetCell;
      target(), value();
    } else if (word == "setglobal" || word == "call") {
      e.kind = word == "call" ? Effect::Kind::kCall : Effect::Kind::kSetGlobal;
      target(), name(), value();
    } else if (word == "yield") {
      e.kind = Effect::Kind::kYield;
      target();
      e.frame = Frame(0);
    } else if (word == "state") {
      e.kind = Effect::Kind::kState;
      name(), value();
    } else {
      lex_.FailAt(at, absl::StrCat("'", word, "' is no effect"));
    }
    if (lex_.AcceptToken("@")) e.at = NextPosition(lex_);
    s_.effects.push_back(std::move(e));
  }

  void Exit_() {
    Exit& exit = s_.exit;
    lex_.ExpectToken("exit");
    if (lex_.AcceptWord("return")) {
      exit.kind = Exit::Kind::kReturn;
      exit.result = NextOperand();
      if (lex_.AcceptWord("at")) exit.at = NextPosition(lex_);
      lex_.EndLine();
      return;
    }
    lex_.ExpectToken("resume");
    exit.kind = Exit::Kind::kResume;
    exit.at = NextPosition(lex_);
    lex_.ExpectToken("because");
    lex_.Spaces();
    exit.reason = lex_.Word();
    lex_.Spaces();
    if (lex_.peek() == '"') exit.detail = lex_.QuotedString();
    lex_.ExpectToken("{");
    lex_.EndLine();
    do {
      exit.frames.push_back(Frame(exit.at.line));
      lex_.EndLine();
    } while (!AtBlockEnd());
    lex_.ExpectToken("}");
    lex_.EndLine();
  }

  SnapshotFrame Frame(int line) {
    SnapshotFrame frame;
    lex_.Spaces();
    const size_t at = lex_.pos();
    const std::string head = lex_.Run();
    const size_t colon = head.rfind(':');
    frame.function = head;
    frame.line = line;
    if (colon != std::string::npos) {
      const Position position = ParsePosition(lex_, at, head);
      if (position.col >= 0) lex_.FailAt(at, "expected function or function:line");
      frame.function = position.function;
      frame.line = position.line;
    }
    lex_.ExpectToken(":");
    while (!lex_.AcceptToken("|")) {
      if (!frame.locals.empty()) lex_.ExpectToken(",");
      lex_.Spaces();
      std::string name = lex_.Run();
      lex_.ExpectToken("=");
      frame.locals.emplace_back(std::move(name), NextOperand());
    }
    lex_.ExpectToken("stack");
    lex_.ExpectToken("=");
    lex_.ExpectToken("[");
    Operand stack;
    Items(&stack, "]");
    frame.stack = std::move(stack.items);
    return frame;
  }

  Lexer& lex_;
  SegmentIr s_;
  absl::flat_hash_map<std::string, ValueId> names_;
  int depth_ = 0;
};

template <class T, class Parser>
absl::StatusOr<T> ParseAll(std::string_view text) {
  try {
    Lexer lex(text);
    lex.Blank();
    T result = Parser(lex).Parse();
    lex.Blank();
    if (!lex.at_end()) lex.Fail("nothing more was expected");
    if (absl::Status status = Verify(result); !status.ok()) return status;
    return result;
  } catch (const Lexer::Failure& failure) {
    return absl::InvalidArgumentError(failure.message);
  }
}

}  // namespace

absl::StatusOr<Graph> ParseGraph(std::string_view text) { return ParseAll<Graph, GraphParser>(text); }

absl::StatusOr<SegmentIr> ParseSegment(std::string_view text) { return ParseAll<SegmentIr, SegmentParser>(text); }

}  // namespace frametap
