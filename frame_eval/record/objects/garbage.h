// Garbage of a recording: objects that the trace has made and that only the recorder still holds.
//   W1  While objects are watched (object_ends.cc), garbage is dropped before each instruction, so that what it held is
//       counted correctly.
//   W2  A settled object cannot reach an object that is watched. The program cannot observe when it becomes garbage, so
//       it may wait. Only the objects that are not settled are looked at before each instruction. A recording is
//       linear because of it.
//   W3  All objects that a settled object reaches are settled as well, or existed before (and the guards keep those).
//       Where something else is stored into a settled object, that is settled then, or nothing is settled any more.
// Not here: which objects are watched, and when that ends a recording (object_ends.cc).
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"

namespace frametap {

void DropAllGarbage(Trace& trace);
void DropContainers(Trace& trace, size_t from);
void Unsettle(Trace& trace);
void MeetStores(Trace& trace, const FrameState& f, const Event& e);

}  // namespace frametap
