// EventLog: one line on stderr for each event of the kinds that FRAMETAP_LOG asks for.
//   E1  A line begins with "frametap: " and the kind of the event, is written whole, and runs no Python code (stderr of
//       the process, not sys.stderr).
//   E2  An event that is not logged costs a test of one word.
// Not here: the later report of explain() (SegmentCache::Log).
#pragma once

#include <cstdint>
#include <string>

#include "frame_eval/segment/segment.h"

namespace frametap {

namespace event_log {
extern uint32_t asked;  // bit: LogEntry::Kind
}

// `kinds`: "recordings", "hits", "misses", "breaks", "aborts", "faults" or "all", with commas between; "" asks for none. Gives the
// words that are not understood; then nothing is changed.
std::string AskForEvents(const std::string& kinds);

inline bool IsLogged(LogEntry::Kind kind) { return (event_log::asked >> static_cast<int>(kind) & 1) != 0; }

void WriteLog(const LogEntry& entry);                               // a miss, break, abort or fault
void WriteSegmentLog(LogEntry::Kind kind, const Segment& segment);  // kRecorded, kHit

}  // namespace frametap
