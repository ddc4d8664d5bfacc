#include "ir/text/lexer.h"

#include <algorithm>
#include <charconv>

#include "ir/graph/literal.h"

namespace frametap {

void Lexer::FailAt(size_t pos, const std::string& message) const {
  pos = std::min(pos, text_.size());
  size_t line = 1;
  size_t start = 0;
  for (size_t i = 0; i < pos; ++i) {
    if (text_[i] == '\n') {
      ++line;
      start = i + 1;
    }
  }
  throw Failure{"line " + std::to_string(line) + ", column " + std::to_string(pos - start + 1) + ": " + message};
}

void Lexer::Spaces() {
  while (peek() == ' ' || peek() == '\t') ++pos_;
}

void Lexer::Blank() {
  while (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r') ++pos_;
}

size_t Lexer::Indent() {
  const size_t from = pos_;
  while (peek() == ' ') ++pos_;
  return pos_ - from;
}

bool Lexer::Accept(std::string_view what) {
  if (text_.substr(std::min(pos_, text_.size()), what.size()) != what) return false;
  pos_ += what.size();
  return true;
}

void Lexer::Expect(std::string_view what) {
  if (!Accept(what)) Fail("expected '" + std::string(what) + "'");
}

bool Lexer::AcceptToken(std::string_view what) {
  const size_t from = pos_;
  Spaces();
  if (Accept(what)) return true;
  pos_ = from;
  return false;
}

void Lexer::ExpectToken(std::string_view what) {
  Spaces();
  Expect(what);
}

bool Lexer::AcceptWord(std::string_view word) {
  const size_t from = pos_;
  Spaces();
  if (PeekWord() == word) {
    pos_ += word.size();
    return true;
  }
  pos_ = from;
  return false;
}

void Lexer::EndLine() {
  Spaces();
  if (peek() == '\r') ++pos_;
  if (at_end()) return;
  if (peek() != '\n') Fail("expected the end of the line");
  ++pos_;
}

std::string Lexer::PeekWord() const {
  size_t end = pos_;
  while (end < text_.size() && IsWordChar(text_[end])) ++end;
  return std::string(text_.substr(std::min(pos_, text_.size()), end - pos_));
}

std::string Lexer::Word() {
  std::string word = PeekWord();
  if (word.empty()) Fail("expected a word");
  pos_ += word.size();
  return word;
}

std::string Lexer::DottedName() {
  const size_t from = pos_;
  while (IsWordChar(peek()) || peek() == '.') ++pos_;
  return std::string(text_.substr(from, pos_ - from));
}

std::string Lexer::Run() {
  const size_t from = pos_;
  while (!at_end() && static_cast<unsigned char>(peek()) > ' ') ++pos_;
  if (pos_ == from) Fail("expected a name");
  return std::string(text_.substr(from, pos_ - from));
}

std::string Lexer::Rest() {
  Spaces();
  const size_t from = pos_;
  while (!at_line_end()) ++pos_;
  size_t end = pos_;
  while (end > from && (text_[end - 1] == ' ' || text_[end - 1] == '\t' || text_[end - 1] == '\r')) --end;
  return std::string(text_.substr(from, end - from));
}

int64_t Lexer::Int() {
  int64_t value = 0;
  const char* first = text_.data() + std::min(pos_, text_.size());
  const auto [end, error] = std::from_chars(first, text_.data() + text_.size(), value);
  if (error == std::errc::result_out_of_range) Fail("an integer of more than 64 bits");
  if (error != std::errc()) Fail("expected an integer");
  pos_ += static_cast<size_t>(end - first);
  return value;
}

std::string Lexer::QuotedString() {
  const size_t from = pos_;
  Expect("\"");
  std::string out;
  while (peek() != '"') {
    if (at_line_end()) FailAt(from, "a string without its closing quote");
    char c = peek();
    ++pos_;
    if (c == '\\') {
      c = peek();
      ++pos_;
      if (c == 'n') {
        c = '\n';
      } else if (c == 't') {
        c = '\t';
      } else if (c == 'r') {
        c = '\r';
      } else if (c == 'x') {
        unsigned byte = 0;
        const char* first = text_.data() + std::min(pos_, text_.size());
        const char* last = text_.data() + std::min(pos_ + 2, text_.size());
        const auto [end, error] = std::from_chars(first, last, byte, 16);
        if (error != std::errc() || end != first + 2) Fail("expected two hexadecimal digits");
        pos_ += 2;
        c = static_cast<char>(byte);
      } else if (c != '"' && c != '\\') {
        FailAt(pos_ - 2, "an unknown escape in a string");
      }
    }
    out += c;
  }
  ++pos_;
  return out;
}

}  // namespace frametap
