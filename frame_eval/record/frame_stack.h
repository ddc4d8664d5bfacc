// FrameStack: the frames of a recording, the call that is about to begin, and the place where the recording is cut.
#pragma once

#include <Python.h>

#include <optional>
#include <utility>
#include <vector>

#include "frame_eval/interpreter/tracer.h"
#include "frame_eval/record/frame_note.h"
#include "frame_eval/record/trace/checkpoint_nodes.h"
#include "frame_eval/segment/segment.h"
#include "guards/collect/guard_site.h"

namespace frametap {

struct PendingCall {  // of a Python function that bytecode has just called
  PyObject* function = nullptr;
  std::vector<PyObject*> args;
  std::vector<Shadow> shadows;
  std::vector<PyObject*> names;
};

struct AwaitedResult {  // of the instruction that the base frame stands at
  bool is_awaited = false;
  PyObject* object = nullptr;  // compared only, never read; null: there is none, a loop ends
  Shadow shadow;
  int depth = 0, offset = 0;
};

struct FrameAtEntry {  // kept for the self-check only
  std::vector<Ref<>> objects;
  int nlocalsplus = 0;
  Ref<> function;
};

struct FrameStack {
  FrameState& base() const { return *inlined.front(); }
  bool is_base(const FrameState& f) const { return &f == inlined.front(); }
  FrameState& innermost() const { return *inlined.back(); }
  int level() const { return static_cast<int>(callers.size()); }
  void ClearPending() { has_pending = false; }
  GuardSite Here() const { return {innermost().code, innermost().offset}; }

  // Outermost first. The first is the base: the entry frame, or the caller in which the recording continues.
  std::vector<FrameState*> inlined;
  std::vector<Segment::Caller> callers;  // as in Segment; the last is the base frame
  AwaitedResult awaited;
  PendingCall pending;
  bool has_pending = false;
  std::optional<CheckpointAtWork> checkpoint;
  std::vector<std::pair<int, SourceId>> bound_at_entry;  // slots of the base frame; invalid: unread
  std::vector<FrameAtEntry> at_entry;                    // the entry frame, its caller …
  bool ends_with_break = false;
  Mark cut;  // where the segment is cut, once it ends with a break
};

}  // namespace frametap
