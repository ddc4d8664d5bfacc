// The caches that a segment's effects ask (functools.lru_cache), before its graph runs.
//   E1  The segment fits if each cache has no entry for the call, or one that is equal to the recorded result. The function
//       under the cache would compute this result, as all that it reads is guarded.
//   E2  Runs no code of the program, and lets no garbage collection run any.
#pragma once

#include "frame_eval/segment/segment.h"

namespace frametap {

// After a hit of the guards. `miss` may be null.
bool CachesAgree(const Segment& segment, MissReport* miss);

}  // namespace frametap
