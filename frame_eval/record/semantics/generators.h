// Generators: what is in their frames while they are suspended, and how a segment leaves them.
//   - One that the trace has made is made again, suspended where it was, if its frame is no more than its locals and its
//     stack (IsPlainGenerator).
//   - A generator that existed before is advanced by a `for` loop only. The content of its frame are sources of their
//     own (`S[0].<frame>[1]`), its position is a guard, and its new state is an effect (`yield`). Locals that the
//     effect does not name stay as they are.
//   - The entry frame may belong to a generator. When it yields to a caller in which the recording continues, it
//     counts as a generator that existed before, and is on that caller's stack.
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"

namespace frametap {

bool IsOutsideGenerator(const Trace& trace, PyObject* object);
void MeetGenerator(Trace& trace, PyObject* generator);
void LeaveGenerator(Trace& trace, const FrameState& left, PyObject* generator);
Operand DescribeGenerator(Trace& trace, PyObject* generator);
void DescribeYields(Trace& trace, SegmentIr* ir);

}  // namespace frametap
