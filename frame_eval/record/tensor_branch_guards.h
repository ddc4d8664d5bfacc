// Decisions: a branch on a tensor that a few ops compute from the whole numbers and flags of the call (a mask, token
// ids) is a guard. It does not end a segment.
//   D1  The decisive tensor is computed again before the segment's graph runs, by pure ops, from sources alone; no
//       other outcome fits the segment.
//   D2  These ops read the state at the entry. They may see earlier writes of the trace only in memory that the trace
//       has made. The ops that wrote it are computed again too, in their order.
//   D3  Only few ops and no floating-point inputs: such data differ from call to call in every bit, and a branch on
//       them is better taken where it stands. Floating-point constants are not data.
//   D4  A decisive tensor is as the op has left it that made it: no later op has written to its memory.
// Not here: running them (reify.h).
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"

namespace frametap {

bool GuardBranchOnTensor(Trace& trace,
                         PyObject* tensor);  // tensor_branch_guards.cc; false: its truth cannot be a guard
bool DecisionCone(const Trace& trace, ValueId value, std::vector<bool>* cone);
void DescribeDecisions(Trace& trace, Segment* segment);

}  // namespace frametap
