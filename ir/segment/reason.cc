#include "ir/segment/reason.h"

#include <iterator>

namespace frametap {
namespace {

constexpr ReasonRow kRows[] = {
#define BREAK(name, text, advice) {#name, text, advice, true, false},
#define ONCE(name, text, advice) {#name, text, advice, true, true},
#define ABORT(name, text, advice) {#name, text, advice, false, false},
#include "ir/segment/reasons.def"
#undef BREAK
#undef ONCE
#undef ABORT
};

}  // namespace

size_t ReasonCount() { return std::size(kRows); }

const ReasonRow& RowOf(Reason reason) { return kRows[static_cast<size_t>(reason)]; }

std::optional<Reason> ReasonOf(std::string_view name) {
  for (size_t i = 0; i < std::size(kRows); ++i) {
    if (name == kRows[i].name) return static_cast<Reason>(i);
  }
  return std::nullopt;
}

}  // namespace frametap
