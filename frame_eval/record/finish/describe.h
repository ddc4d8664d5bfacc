// The state at the end of a recording as operands: results, effects, thread state, and the live slots of frames. An
// object that cannot be described aborts the recording (escaping_object).
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"
#include "frame_eval/segment/recorded_run.h"

namespace frametap {

// While alive, the objects that are described as values of the graph are kept (RecordedRun). One at a time on a thread.
struct DescribedValues {
  DescribedValues() { current = this; }
  ~DescribedValues() { current = nullptr; }
  DescribedValues(const DescribedValues&) = delete;
  DescribedValues& operator=(const DescribedValues&) = delete;

  ObjectsOfValues objects;
  static thread_local inline DescribedValues* current = nullptr;
};

Operand Describe(Trace& trace, PyObject* object, Shadow shadow);  // throws Break(escaping_object)
ConstId AddConstant(Trace& trace, PyObject* object);
Operand EmptyTable(Trace& trace, PyTypeObject* type, PyObject* table);
Operand ConstantOperand(Trace& trace, PyObject* object);
void DescribeEffects(Trace& trace, SegmentIr* ir);
SnapshotFrame DescribeFrame(Trace& trace, FrameState& f, const Mark& mark, bool strict = false);
void DescribeState(Trace& trace, SegmentIr* ir);

}  // namespace frametap
