// functools.cached_property computes a value under a lock that all instances share (until Python 3.12).
//   C1  No other thread knows an object that the trace has made. So nothing is computed twice for it without the lock, and a
//       replay takes none.
// Not here: objects that existed before. For those the lock is taken at a first call only, and ends the segment.
#pragma once

#include "frame_eval/record/trace.h"

namespace frametap {

// The code of cached_property.__get__; null if there is none.
const void* CodeOfCachedProperty();
// Whether the frame computes a cached property of an object of the trace's own, under this lock.
bool IsLockOfOwnProperty(Trace& trace, const FrameState& frame, PyObject* lock);
void LeaveLock(Trace& trace, Call& call);  // lock.__exit__

}  // namespace frametap
