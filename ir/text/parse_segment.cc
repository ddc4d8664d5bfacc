#include <algorithm>

#include "absl/strings/str_cat.h"
#include "ir/graph/literal.h"
#include "ir/segment/frame_slot.h"
#include "ir/segment/rows.h"
#include "ir/text/parse.h"
#include "ir/text/text.h"

namespace frametap {
namespace {

constexpr std::pair<Accessor, std::string_view> kSteps[] = {
#define ACCESSOR(kind, word, text) {Accessor::kind, text},
#include "ir/segment/accessors.def"
#undef ACCESSOR
};

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
    NamedGraph graph = NextGraph(lex_);
    s_.graph = std::move(graph.graph);
    names_ = std::move(graph.names);
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
    s_.decisions.graph = NextGraph(lex_).graph;
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
        for (lex_.Spaces(); !lex_.at_line_end(); lex_.Spaces()) s_.state.push_back(NextStateFact());
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
        lex_.Spaces();
        const size_t from = lex_.pos();
        std::string text = lex_.Rest();
        const size_t mark = text.rfind("  @ ");
        if (mark != std::string::npos && LooksLikePosition(text.substr(mark + 4))) {
          line.why = ParsePosition(lex_, at, text.substr(mark + 4));
          text.resize(mark);
        }
        const size_t end = lex_.pos();
        line.predicate = ParsePredicate(text, [&](size_t hole) { return SourceIn(from + hole, from + text.size()); });
        lex_.Seek(end);
        if (!line.predicate) lex_.FailAt(at, absl::StrCat("'", text, "' is not a predicate (docs/predicates.md)"));
      } else if (lex_.AcceptToken("@")) {
        line.why = NextPosition(lex_);
      }
      lex_.EndLine();
      s_.guards.push_back(std::move(line));
    }
  }

  StateFact NextStateFact() {
    const size_t at = lex_.pos();
    const std::string text = lex_.Run();
    const std::optional<StateFact> fact = ParseStateFact(text);
    if (!fact) lex_.FailAt(at, absl::StrCat("'", text, "' is not a field of the state (docs/predicates.md)"));
    return *fact;
  }

  // The source of a frame whose path is the text between these places. A name alone is one of a known object.
  std::optional<SourceId> SourceIn(size_t from, size_t to) {
    lex_.Seek(from);
    const std::string word = lex_.PeekWord();
    int frame = 0;
    if (word != "L" && word != "C" && word != "S" && word != "F" && FrameLetterOf(word, &frame) == 0) {
      return std::nullopt;
    }
    try {
      const SourceId source = NextSource();
      return lex_.pos() == to ? std::optional(source) : std::nullopt;
    } catch (const Lexer::Failure&) {
      return std::nullopt;
    }
  }

  static bool LooksLikePosition(const std::string& text) {
    return text.find_first_of(" \"'") == std::string::npos && text.find(':') != std::string::npos && !text.empty() &&
           text.back() >= '0' && text.back() <= '9';
  }

  ValueId Use() {
    const size_t at = lex_.pos();
    lex_.Expect("%");
    const std::string name = lex_.DottedName();
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
    if (word == "pinned") {
      lex_.Expect("(");
      root = Add(SourceId(), Accessor::kPinned, 0, lex_.QuotedString());
      lex_.Expect(")");
    } else if (word == "L") {
      root = Add(SourceId(), Accessor::kLocal, FrameSlot(frame, 0), AttrName());
    } else if (word == "C") {
      root = Add(SourceId(), Accessor::kCell, FrameSlot(frame, 0), AttrName());
    } else if (word == "G") {
      root = Add(Add(SourceId(), Accessor::kFunction), Accessor::kGlobal, 0, AttrName());
    } else if (word == "B") {
      root = Add(Add(SourceId(), Accessor::kPinned, 0, "B"), Accessor::kGlobal, 0, AttrName());
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

  SourceId NextDot(SourceId source) {
    if (lex_.Accept(".<global>")) return Add(source, Accessor::kGlobal, 0, AttrName());
    const size_t from = lex_.pos();
    if (lex_.Accept(".<default>[") && lex_.peek() == '"') {
      const SourceId id = Add(source, Accessor::kKwDefault, 0, lex_.QuotedString());
      lex_.Expect("]");
      return id;
    }
    lex_.Seek(from);
    for (const auto& [accessor, text] : kSteps) {
      const HoleIn hole(text);
      if (!text.starts_with('.') || !lex_.Accept(hole.before)) continue;
      if (hole.exists()) {
        const SourceId id = Add(source, accessor, lex_.Int());
        lex_.Expect(hole.after);
        return id;
      }
      const bool is_longer = IsWordChar(text.back()) && IsWordChar(lex_.peek());  // .length is not .len
      if (!is_longer) return Add(source, accessor);
      lex_.Seek(from);
    }
    return Add(source, Accessor::kAttr, 0, AttrName());
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
    const EffectRow* const row = EffectOf(word);
    if (row == nullptr) lex_.FailAt(at, absl::StrCat("'", word, "' is not an effect"));
    e.kind = row->kind;
    for (const char part : row->parts) {
      if (part == 'N') {
        lex_.Spaces();
        e.name = lex_.QuotedString();
      } else if (part == 'S') {
        lex_.Spaces();
        const size_t field_at = lex_.pos();
        const std::string field = lex_.QuotedString();
        const std::optional<StateSwitch> found = StateSwitchOf(field);
        if (!found) lex_.FailAt(field_at, absl::StrCat("'", field, "' is not a field that an effect sets"));
        e.state = *found;
      } else if (part == 'F') {
        e.frame = Frame(0);
      } else {
        (part == 'T' ? e.target : part == 'K' ? e.key : e.value) = NextOperand();
      }
    }
    if (lex_.AcceptToken("@")) e.at = NextPosition(lex_);
    s_.effects.push_back(std::move(e));
  }

  void Exit_() {
    Exit& exit = s_.exit;
    lex_.ExpectToken("exit");
    if (lex_.AcceptWord(WordOf(Exit::Kind::kReturn))) {
      exit.kind = Exit::Kind::kReturn;
      exit.result = NextOperand();
      if (lex_.AcceptWord("at")) exit.at = NextPosition(lex_);
      lex_.EndLine();
      return;
    }
    lex_.ExpectToken(WordOf(Exit::Kind::kResume));
    exit.kind = Exit::Kind::kResume;
    exit.at = NextPosition(lex_);
    lex_.ExpectToken("because");
    lex_.Spaces();
    const size_t reason_at = lex_.pos();
    const std::string word = lex_.Word();
    const std::optional<Reason> reason = ReasonOf(word);
    if (!reason) lex_.FailAt(reason_at, absl::StrCat("'", word, "' is not a reason (docs/reasons.md)"));
    exit.reason = *reason;
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

}  // namespace

SegmentIr NextSegment(Lexer& lex) { return SegmentParser(lex).Parse(); }

absl::StatusOr<SegmentIr> ParseSegment(std::string_view text) { return ParseAll<SegmentIr>(text, NextSegment); }

}  // namespace frametap
