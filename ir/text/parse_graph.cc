#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ir/graph/builtin_op.h"
#include "ir/graph/literal.h"
#include "ir/text/parse.h"
#include "ir/text/text.h"
#include "ir/text/verify.h"

namespace frametap {
namespace {

class GraphParser {
 public:
  explicit GraphParser(Lexer& lex) : lex_(lex) {}

  NamedGraph Parse() {
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
    return {std::move(graph_), std::move(names_)};
  }

 private:
  // The text leaves out where autocast's cache was emptied: where a block of autocast ends. A block ends before the next
  // node without autocast or with another dtype.
  void CountClearedCaches(EagerState* state) {
    const bool is_other = in_autocast_ && (!state->autocast_cpu || state->autocast_cpu_dtype != autocast_dtype_);
    if (is_other) ++cleared_;
    in_autocast_ = state->autocast_cpu;
    autocast_dtype_ = state->autocast_cpu_dtype;
    state->autocast_cleared = cleared_;
  }

  std::string ValueName() {
    lex_.Spaces();
    lex_.Expect("%");
    const size_t from = lex_.pos();
    const std::string name = lex_.DottedName();
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
    const std::string name = lex_.DottedName();
    if (name.empty()) lex_.Fail("expected the name of an operator");
    if (const std::optional<BuiltinOp> scalar = ParseScalarOp(name)) {
      node.builtin_op = *scalar;
      ScalarArgs(&node);
    } else if ((node.op = FindOp(name))) {
      OpArgs(&node);
    } else {
      const std::vector<std::string> near = NearNames(name);
      lex_.FailAt(op_at, absl::StrCat("there is no operator '", name, "'",
                                      near.empty() ? "" : "; near names: ", absl::StrJoin(near, ", ")));
    }
    EagerState state = graph_.states[0];
    if (lex_.AcceptToken("{")) state = NextState(lex_, state);
    CountClearedCaches(&state);
    node.state = graph_.AddState(state);
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

  // `type` is the type of the boxed list; `real` is the meaning of ints. Both are null for scalar ops.
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
    if (!is_list) lex_.Fail("this argument is not a list");
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
  bool in_autocast_ = false;  // the node before
  c10::ScalarType autocast_dtype_ = c10::ScalarType::BFloat16;
  uint16_t cleared_ = 0;
  absl::flat_hash_map<std::string, ValueId> names_;
  std::vector<OpenInput> inputs_open_;
  SizeHints hints_;
  int depth_ = 0;
};

}  // namespace

NamedGraph NextGraph(Lexer& lex) { return GraphParser(lex).Parse(); }

absl::StatusOr<Graph> ParseGraph(std::string_view text) {
  return ParseAll<Graph>(text, [](Lexer& lex) { return NextGraph(lex).graph; });
}

}  // namespace frametap
