// Sizes in the text of a graph: `(s0 - 1)//2 + 1`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "ir/text/lexer.h"

namespace frametap {

// Symbols of a graph's sizes, and what each was when the graph was recorded.
using SizeHints = absl::flat_hash_map<std::string, int64_t>;

// Reads an expression of ints, symbols and numbers of the graph (%n), with Python's operators, and computes it with
// the hints. Returns none if it depends on a number of the graph. Fails at an unknown symbol and where there is no
// value.
std::optional<int64_t> ReadSize(Lexer& lex, const SizeHints& hints);

}  // namespace frametap
