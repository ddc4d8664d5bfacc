// Sites: where in the program and in its tree of modules the ops of a recording stand.
// Not here: paths of modules (objects/module_paths.h), places in a finished segment (segment/places.h).
#pragma once

#include <Python.h>

#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/interpreter/tracer.h"
#include "frame_eval/segment/places.h"
#include "ir/graph/position.h"

namespace frametap {

struct Trace;

struct Sites {
  Places places;
  // For a recording that begins in the middle of a program:
  const FrameState* outermost = nullptr;  // the captured function's frame, once an op was recorded
  std::optional<PlaceId> outside;         // the calls of modules that the base frame is in
  absl::flat_hash_map<PyTypeObject*, SharedText> class_names;
  absl::flat_hash_map<std::pair<PyCodeObject*, int>, Position> positions;
  absl::flat_hash_map<PyCodeObject*, PositionTable> tables;  // of the codes met
};

const Position& PositionOf(Trace& trace, PyCodeObject* code, int offset);
SharedText ClassName(Trace& trace, PyTypeObject* type);
PlaceId PlaceOf(Trace& trace, size_t frame);  // of the frames that are inlined
PlaceId PlaceOutside(Trace& trace);           // of the calls of modules that the base frame is in
void NamePaths(Trace& trace);                 // needs the lock

const Position& BreakPosition(Trace& trace);  // break_words/W1

}  // namespace frametap
