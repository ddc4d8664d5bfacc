// Break: the exception by which a recording step ends its segment.
// Not here: the reasons themselves (ir/segment/reason.h).
#pragma once

#include <string>

#include "ir/segment/reason.h"

namespace frametap {

// Thrown by a recording step before (or while) the program's operation runs; caught by the session alone, which ends
// the segment at the start of the entry frame's current instruction. Never crosses a C frame.
struct Break {
  Reason reason;
  std::string detail;
  std::string inside = {};  // the detail as the library that the user called has it, if it is another (break_words.h)
};

}  // namespace frametap
