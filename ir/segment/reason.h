// Reason: why a segment ends early, a recording is given up, or a frame is left alone. reasons.def has the rows.
// Not here: Break, by which a step of a recording gives a reason (frame_eval/segment/reasons.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace frametap {

enum class Reason : uint8_t {
#define BREAK(name, text, advice) name,
#define ONCE BREAK
#define ABORT BREAK
#include "ir/segment/reasons.def"
#undef BREAK
#undef ONCE
#undef ABORT
};

struct ReasonRow {
  const char* name;
  const char* text;
  const char* advice;
  bool is_break;  // it ends a segment
  bool once;
};

size_t ReasonCount();
const ReasonRow& RowOf(Reason reason);
std::optional<Reason> ReasonOf(std::string_view name);

}  // namespace frametap
