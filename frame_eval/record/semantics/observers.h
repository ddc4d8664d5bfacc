// Ops that only inform observers of ops (kObserved in ir/ops/ops.def), such as torch.profiler.record_function. A segment that
// has recorded one fits while no observer is on, and leaves it out.
// Not here: torch functions of subclasses, which the same blocks switch off (callables/torch_table.cc).
#pragma once

#include "frame_eval/record/trace.h"

namespace frametap {

// Returns whether it is the object that such an op gives. Only the bindings know the objects of pybind11 (L4 of the layout
// rules), so they set it.
using MarkTest = bool (*)(PyObject* object);
extern MarkTest mark_test;
inline bool IsMark(PyObject* object) { return mark_test != nullptr && mark_test(object); }
// Fixes one that was given before the segment began. A recording pins the object, so that its runs give the same one. Plain
// Python gives another one each time.
void FixMark(Trace& trace, PyObject* mark);
// Ends the segment if an observer is on, and guards that none is. The object that such an op gives holds nothing then, so that
// one object serves all runs.
void CallObserved(Trace& trace, Call& call, bool has_result);

}  // namespace frametap
