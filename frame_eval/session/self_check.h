// Self-check: what the recorder and the guards believe, compared with the real thing.
//   Y1  Before each instruction of a recording, the shadows of the frame fit the objects in it. In the entry frame, the
//       thread is in the state that the recorder has read last (shadow_check.h).
//   Y2  A segment that changed nothing fits the call that it was recorded from (shadow_check.h).
//   Y3  Every verdict of the guards is reached a second time by the slow way, from the roots and without caches.
//   Y4  The graph of a new segment is valid (ir/text/text.h); one that is not counts as refused by its backend.
//   Y5  Any other misfit is a SystemError in the running program, and the recording is dropped. On in builds with
// FRAMETAP_SELF_CHECK and where the environment says FRAMETAP_SELF_CHECK=1; 0 switches it off.
#pragma once

#include "frame_eval/segment/segment.h"

namespace frametap {

// May the segment replay? kError: a Python exception is set (Y5).
Verdict Fits(Segment& segment, const Roots& roots);

}  // namespace frametap
