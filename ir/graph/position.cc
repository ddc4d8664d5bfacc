#include "ir/graph/position.h"

#include "absl/strings/str_cat.h"

namespace frametap {

std::string ToString(const Position& position) {
  if (!position.known()) return "?";
  std::string out = absl::StrCat(position.function.str(), ":", position.line);
  if (position.col >= 0) absl::StrAppend(&out, ":", position.col);
  return out;
}

}  // namespace frametap
