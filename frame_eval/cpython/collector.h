// CollectorPause: no automatic garbage collection while a recording lives. The objects kept by a recording look like
// garbage that does not go away: they would set off one collection after the other.
//   N1  The program's switch, thresholds and collections that it requests are as always, in every thread. Only the
//       count of new objects, which decides when a collection is due, is set far back.
#pragma once

namespace frametap {

class CollectorPause {
 public:
  CollectorPause();
  ~CollectorPause();
  CollectorPause(const CollectorPause&) = delete;
  CollectorPause& operator=(const CollectorPause&) = delete;
};

}  // namespace frametap
