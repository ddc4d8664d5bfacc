// Publisher: the recording at work as the store sees it. It compiles a finished segment and puts it under its entry point, or
// notes why there is none.
//   P1  A frame runs under the hook from its start where a later entry point of it, or of its callees, has a segment.
// Not here: when a recording begins and ends (session.h).
#pragma once

#include <Python.h>

#include <chrono>
#include <memory>
#include <string>

#include "frame_eval/segment/entry_point.h"
#include "frame_eval/segment/reasons.h"
#include "frame_eval/segment/segment.h"
#include "frame_eval/session/refused_call.h"

namespace frametap {

class Publisher {
 public:
  Publisher(SegmentCache& store, RefusedCall& refusal) : store_(store), refusal_(refusal) {}

  // Begins at an entry point. `is_below`: in a frame below the captured function's.
  void Begin(PyCodeObject* code, int offset, bool is_below);
  void NoteCaller() { went_on_ = true; }  // the recording continues in a caller of its entry frame
  bool went_on() const { return went_on_; }
  bool IsAtStartOf(PyCodeObject* code) const;
  EntryPoint& entry_point() const { return store_.FindOrAdd(code_, offset_); }

  // Compiles and stores a segment. Returns false if there is none. `offset`: the place at which the entry frame continues
  // after the segment, or -1 if the frame is left. `reason`: that ended it, or null at a return.
  bool Publish(std::shared_ptr<Segment> segment, int offset, const Break* reason = nullptr);
  // Notes that nothing was recorded before a break, after which the entry frame continues at `offset`.
  void NoteNoGraph(const Break& reason, const Position& at, int offset);
  // Notes a recording that has left no segment. `deny`: it counts as a denial.
  void Abort(const Break& reason, Position at, bool deny);
  // Adds the time since the last call to the store's, and returns it, in seconds.
  double TakeTime();

 private:
  bool Compile(Segment& segment);
  void NameGraph() const;
  void Log(LogEntry::Kind kind, const std::string& segment, const Break& reason, const Position& at);
  void NoteFollowed(const Segment& segment);

  SegmentCache& store_;
  RefusedCall& refusal_;
  PyCodeObject* code_ = nullptr;
  int offset_ = 0;
  bool is_below_ = false;
  bool went_on_ = false;
  std::chrono::steady_clock::time_point began_;
};

}  // namespace frametap
