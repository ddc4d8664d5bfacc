// The recorder keeps its known objects alive. Objects whose end runs code (guards/objects/object_end.h) are noted meanwhile,
// with all objects on the path to them. Objects that may lose their owner are watched. Before each instruction, the
// reference count shows whether only the recorder is left. Then the recording ends, so that the object dies at the
// same instruction as in plain Python.
//   E1  An object with a finaliser is never made in a graph: a replay would not make it, or make it end elsewhere.
//   E2  Objects made by the recording that have no other owner are released, so that their content is counted rightly.
//   E3  The rest costs nothing while nothing is watched.
//   E4  An object that a call has made and that has no other owner may hold the results of layers. Examples are the
//       tuple of its `*args`, a cell, a bound method, and an iterator. It is released when the call is over. A first
//       call would need the memory of a training step otherwise.
//   E5  A noted object lives while the path to it does: each object is held by the one before, which is noted as well.
//       It is watched from the moment when that may cease. An effect takes it from any place; the frame releases a
//       local. Code that is not recorded runs. Or the last step is one that breaks without an effect (IsHeldByPath).
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"

namespace frametap {

// Returns what the self-check finds wrong, or "".
std::string FaultOfEnds(Trace& trace);
// Releases what the recording alone keeps alive. While objects are watched, this comes before each instruction, and inner
// frames are observed too.
void LetGo(Trace& trace);
// Ends the recording before the base frame returns, if the frame holds such objects in other slots than at the entry. A
// replay leaves the frame as it was at the entry, and the objects would die in another order.
void MeetReturn(Trace& trace, const FrameState& f);
// Notes that a frame begins that does not belong to the recording.
void MeetUnrecorded(Trace& trace, const FrameState& f);
// Watches all noted objects from now on (E5).
void WatchAll(Trace& trace);
// Returns whether a path leads to it on which each object holds the next one, and none of them has been released. So it is alive
// here in each replay.
bool IsHeldByItsPath(Trace& trace, PyObject* object);
// Watches one object.
void Watch(Trace& trace, PyObject* object);
// Notes that the end of the source's object runs code.
void NoteEnd(Trace& trace, SourceId id);
void WatchMade(Trace& trace, PyObject* object);
void MeetRelease(Trace& trace, PyObject* object);
// Returns whether code may run when it ends with all that it holds. `if_large`: the answer for more objects than are
// looked at.
bool ReachesFinalizer(PyObject* object, bool if_large = true);
void MeetEffect(Trace& trace, Effect::Kind kind, PyObject* target, const std::string& name, PyObject* key);
// Counts the references that effects hold, and those that only the recording holds.
Py_ssize_t CountInEffects(const Trace& trace, PyObject* object);
Py_ssize_t CountOf(Trace& trace, PyObject* object, Py_ssize_t in_effects);

}  // namespace frametap
