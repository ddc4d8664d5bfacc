// FrameRestorer: how a replayed exit leaves and enters frames. Each frame finds at its next instruction what it is to do.
//   L1  Frames that an exit leaves are left one by one, from the inside. No signal is served until the last one is.
// Not here: the content of frames (replay/reify.h).
#pragma once

#include <Python.h>

#include <memory>
#include <vector>

#include "frame_eval/cpython/signals.h"
#include "frame_eval/interpreter/tracer.h"
#include "frame_eval/record/frame_note.h"

namespace frametap {

class FrameRestorer {
 public:
  // Leaves one frame for each element of `leaving`, and does to the next one as `restore` says.
  Tracer::Go UnwindTo(FrameState& f, std::vector<FrameRestore> leaving, FrameRestore restore);
  // Does to the frame as `restore` says.
  Tracer::Go Resume(FrameState& f, FrameRestore restore);

 private:
  Tracer::Go LeaveWith(FrameState& f, FrameRestore restore);
  static void Restore(FrameState& f, FrameRestore restore);

  std::unique_ptr<SignalsHeld> ascending_;  // frames that an exit leaves have not all been left
  const FrameState* last_to_leave_ = nullptr;
};

}  // namespace frametap
