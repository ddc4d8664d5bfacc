// The parser's own header: recursive descent over the grammar of docs/text_form.md. It verifies all that it accepts
// (segment_ir/T3).
//   parse_pieces.cc     the parts that graphs and segments share
//   parse_graph.cc      graphs
//   parse_predicate.cc  the conditions of guards
//   parse_segment.cc    segments
// `Next...` reads the next part, or fails where that begins.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ir/graph/graph.h"
#include "ir/graph/position.h"
#include "ir/segment/segment_ir.h"
#include "ir/text/lexer.h"
#include "ir/text/size_reader.h"

namespace frametap {

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

// The operator that prints so.
std::optional<c10::OperatorHandle> FindOp(const std::string& dotted);
// Names of operators that may have been meant: overloads of this one first.
std::vector<std::string> NearNames(const std::string& name);

Position ParsePosition(const Lexer& lex, size_t at, const std::string& text);
Position NextPosition(Lexer& lex);
std::optional<c10::Device> NextDevice(Lexer& lex);  // none, and nothing read, where there is none
// `open`, for an input: the dimensions whose sizes are symbols of their own, which are declared later.
Type NextType(Lexer& lex, const SizeHints& hints, std::vector<std::pair<size_t, std::string>>* open);
bool NextFlag(Lexer& lex);                           // "on", "off"
EagerState NextState(Lexer& lex, EagerState state);  // after '{', up to and with '}'

struct NamedGraph {
  Graph graph;
  absl::flat_hash_map<std::string, ValueId> names;  // of its values
};
NamedGraph NextGraph(Lexer& lex);
// Returns the source whose path is the rest of the predicate's text from there, and none if it is another text.
using SourceAt = absl::FunctionRef<std::optional<SourceId>(size_t at)>;
// Returns none if the text has no form of predicates.def.
std::optional<Predicate> ParsePredicate(std::string_view text, const SourceAt& source);
SegmentIr NextSegment(Lexer& lex);

// The whole text.
template <class T>
absl::StatusOr<T> ParseAll(std::string_view text, T (*next)(Lexer&)) {
  try {
    Lexer lex(text);
    lex.Blank();
    T result = next(lex);
    lex.Blank();
    if (!lex.at_end()) lex.Fail("nothing more was expected");
    if (absl::Status status = Verify(result); !status.ok()) return status;
    return result;
  } catch (const Lexer::Failure& failure) {
    return absl::InvalidArgumentError(failure.message);
  }
}

}  // namespace frametap
