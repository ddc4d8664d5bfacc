// Reasons: the rows of reasons.def as an enum, and Break, by which a recording step ends its segment.
#pragma once

#include <cstdint>
#include <string>

namespace frametap {

enum class Reason : uint8_t {
#define BREAK(name, text, advice) name,
#define ONCE(name, text, advice) name,
#define ABORT(name, text, advice) name,
#include "frame_eval/segment/reasons.def"
#undef BREAK
#undef ONCE
#undef ABORT
};

struct ReasonRow {
  const char* name;
  const char* text;
  const char* advice;
  bool is_break;
  bool once;
};

const ReasonRow& RowOf(Reason reason);

// Thrown by a recording step before (or while) the program's operation runs; caught by the session alone, which ends
// the segment at the start of the entry frame's current instruction. Never crosses a C frame.
struct Break {
  Reason reason;
  std::string detail;
  std::string inside = {};  // the detail as the library that the user called has it, if it is another (break_words.h)
};

}  // namespace frametap
