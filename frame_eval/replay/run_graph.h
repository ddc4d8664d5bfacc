// Runs of a segment's graphs: after a hit, between the objects that a Reifier has taken and those that it makes.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <vector>

#include "frame_eval/segment/segment.h"

namespace frametap {

// Decision `i` as a guard shows it: on the first tensor that it reads.
GuardLine DecisionLine(Segment& segment, size_t i);

// After a hit of the segment's guards: returns whether its branches on tensors have the recorded outcomes
// (record/tensor_branch_guards.cc). A miss is reported in `miss`, which may be null.
bool DecisionsHold(Segment& segment, MissReport* miss);

// Tells executables whether kernels were registered from Python (below_autograd/A3): before one is made or run.
void NotePythonKernels();

// How a run of a graph ended. But for the first three nothing was changed, so that plain Python may run instead.
enum class Ran : uint8_t {
  kThrough,
  kRaised,    // with a Python exception
  kBroken,    // with one that is a fault (faults.h)
  kFault,     // likewise
  kOpRaised,  // an op did, run as recorded: the exception is pending
  kUndone,    // for a reason that is not reported; a Python exception may be pending
  kRefused,   // not run: what it writes could not be taken back (rollback.h)
};

// Gathers inputs (so: right after the hit), runs the graph (without Python's lock where the executable allows it).
Ran RunGraph(Segment& segment, std::vector<c10::IValue>* outputs);

}  // namespace frametap
