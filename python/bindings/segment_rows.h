// The parts of a segment as Python objects: positions, paths of sources, guards, operands, frames.
#pragma once

#include <pybind11/pybind11.h>

#include "frame_eval/segment/segment.h"
#include "guards/collect/frozen_guards.h"

namespace frametap {

namespace py = pybind11;

py::dict PositionDict(const Position& at);
// The steps of a source from its root: (accessor, key). The key is a name, an index or the text of a dict's key. It is
// the object itself where the object is known by identity, because several objects may have one name (a function and
// its wrappers).
py::list SourcePath(SourceId id, Segment& segment);
py::tuple SourceStep(SourceId id, Segment& segment);  // the last of them
// Returns the guard that row `number` of guard_rows describes; null for rows that are only a path or a decision.
const GuardEntry* EntryOf(const Segment& segment, size_t number);
// Returns whether the guard of that row holds for the object, and None where it is not a guard on one object.
py::object GuardHolds(const Segment& segment, size_t number, const py::object& object);
// Adds the predicate to the row of its guard. `entry` is null for a decision.
void AddPredicate(const Predicate& predicate, const GuardEntry* entry, Segment& segment, py::dict* row);
py::dict FrameObject(const SnapshotFrame& frame, Segment& segment);
py::object OperandObject(const Operand& operand, Segment& segment);

}  // namespace frametap
