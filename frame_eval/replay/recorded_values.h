// Where the backend approximates, a recorded call gets the values of a replay. Objects of the program stay the same objects:
// tensors get other elements.
//   V1  Either every value takes its place or none does.
//   V2  Version counters and the history of gradients are as the recording has left them.
// Not here: a whole call that is taken back and replayed (session/session_end.cc).
#pragma once

#include "frame_eval/segment/recorded_run.h"
#include "frame_eval/segment/segment.h"

namespace frametap {

// Runs the graph on the inputs that the recording had. Returns false if the call keeps the values of the recorded ops. Python
// has a number that differs, sizes differ, an op has gone on with such a value, or the graph runs code of the program or
// draws random numbers.
bool TakeReplayedValues(Segment& segment, const RecordedRun& run);

}  // namespace frametap
