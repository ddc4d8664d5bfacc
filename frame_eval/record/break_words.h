// Break words: puts the end of a recording into the words of the program that the user wrote.
//   W1  The position is in the innermost frame whose source belongs to the user. Such a source is neither in an
//       installed package nor in the standard library, or it is in the file of the captured function.
//   W2  Where the break lies deeper, the detail names the function that the user's line has called. The callable that
//       frametap does not know is kept apart (Break::inside).
// Files decide about words only; nothing else may depend on them.
// Not here: the reasons (reasons.def), positions (frame_view.h).
#pragma once

#include <vector>

#include "frame_eval/interpreter/tracer.h"
#include "frame_eval/segment/reasons.h"

namespace frametap {

// Returns the index of the user's frame (W1). `frames` is the stack of a recording, outermost first, at least one.
size_t FrameOfUser(const std::vector<FrameState*>& frames);

// Returns `reason` with its detail by W2.
Break InWordsOfUser(const Break& reason, const std::vector<FrameState*>& frames);

}  // namespace frametap
