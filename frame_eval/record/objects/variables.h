// Globals, cells and the free variables of functions.
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"

namespace frametap {

void ReadClassCell(Trace& trace, FrameState& f);
PyObject* ModuleOf(PyObject* globals);  // borrowed; null if no module in sys.modules has this very dict
void LoadGlobal(Trace& trace, FrameState& f, FrameNote& note, const Event& e, PyObject* result, Shadow* out);
// A global of the frame that no instruction of its own reads, or null.
PyObject* ReadGlobal(Trace& trace, FrameState& f, FrameNote& note, PyObject* name, Shadow* out);
Shadow LoadDeref(Trace& trace, FrameState& f, int slot, PyObject* result);
void StoreDeref(Trace& trace, FrameState& f, const Event& e);
void ShareCell(Trace& trace, FrameState& f, int slot);
SourceId CellSource(Trace& trace, FrameState& f, int slot);
bool IsFixedFunction(Trace& trace, const FrameState& f);
SourceId ClosureCell(Trace& trace, SourceId source, PyObject* function, int index);
void MeetCell(Trace& trace, FrameState& f, int slot);

}  // namespace frametap
