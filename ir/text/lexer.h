// Lexer: a cursor over the text form. The parser asks for the expected token. There is no token type, because the
// meaning of a run of characters depends on its place (`0.weight` in a path, `0.5` in a call).
//   X1  Reading past the end is safe; every failure is a Failure with line and column.
// Not here: grammar (parse.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace frametap {

class Lexer {
 public:
  // Thrown within the parser only.
  struct Failure {
    std::string message;  // "line 3, column 7: expected '='"
  };

  explicit Lexer(std::string_view text) : text_(text) {}

  size_t pos() const { return pos_; }
  void Seek(size_t pos) { pos_ = pos; }
  bool at_end() const { return pos_ >= text_.size(); }
  char peek(size_t ahead = 0) const { return pos_ + ahead < text_.size() ? text_[pos_ + ahead] : '\0'; }
  bool at_line_end() const { return at_end() || peek() == '\n'; }

  [[noreturn]] void Fail(const std::string& message) const { FailAt(pos_, message); }
  [[noreturn]] void FailAt(size_t pos, const std::string& message) const;

  void Spaces();    // blanks of this line
  void Blank();     // blanks and line ends
  size_t Indent();  // blanks at the start of a line, counted

  bool Accept(std::string_view what);       // exactly here
  void Expect(std::string_view what);       // "expected '…'"
  bool AcceptToken(std::string_view what);  // after blanks
  void ExpectToken(std::string_view what);  // after blanks
  bool AcceptWord(std::string_view word);   // after blanks; a whole word
  void EndLine();                           // nothing but blanks until the end of the line

  std::string Word();            // one or more word characters
  std::string PeekWord() const;  // "" if there is none
  std::string DottedName();      // word characters and dots, or ""
  std::string Run();             // one or more characters that are no blanks
  std::string Rest();            // the rest of the line, without blanks at its ends
  int64_t Int();                 // [-]digits that fit
  std::string QuotedString();    // "…" with escapes, decoded

 private:
  std::string_view text_;
  size_t pos_ = 0;
};

}  // namespace frametap
