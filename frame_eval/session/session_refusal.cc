// The part of Session that waits with a refusal: an exception of the program passes first.

#include <utility>

#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/record/break_words.h"
#include "frame_eval/session/session_parts.h"

namespace frametap {

bool HandsOn(const FrameState& f) {
  bool hands_on = false, is_first = false;
  for (int at = StartOffset(f.code); at <= f.offset;) {
    const InstructionInfo info = InstructionAt(f.code, at);
    const bool catches = info.role == InstructionRole::kMatchesClass || info.role == InstructionRole::kMatchesGroup ||
                         (is_first && info.role == InstructionRole::kPops);
    is_first = info.role == InstructionRole::kBeginsHandler;
    if (is_first) hands_on = true;
    if (catches) hands_on = false;
    at = info.next;
  }
  return hands_on;
}

void Session::RefuseEndOfGraph(const Break& reason, const Position& at) {
  refusal_.EndOfGraph(*store_, reason, at);
  raised_.reset();
}

// The recording ends, and the exception goes its way as if there had been none. Frames from `handling` on: the first one
// handles the exception, and the others are called by its handler.
void Session::HandleInPlainPython(Break reason, size_t handling) {
  const std::vector<FrameState*> frames = trace().frames.inlined;
  for (size_t i = 0; i < frames.size() && i <= handling; ++i) {
    const bool has_begun = i == handling;
    NoteOf(*frames[i]).entry.handling = EntryState::Handling{frames[i]->handlers - has_begun, has_begun, false};
  }
  raised_ = RaisedOp{InWordsOfUser(reason, frames), BreakPosition(trace()), frames.front()};
  undo_ = recorder().TakeUndo();
  StopRecording(frames, SIZE_MAX, frames.front());
  publisher_.TakeTime();
}

bool IsCaughtAt(const FrameState& f, EntryState::Handling* handling) {
  const InstructionRole role = InstructionAt(f.code, f.offset).role;
  const bool is_first = std::exchange(handling->is_first, false);
  if (role == InstructionRole::kBeginsHandler) {
    handling->has_begun = handling->is_first = true;
    return false;
  }
  if (!handling->has_begun) return handling->handlers == 0;  // C code has caught it (one in a handler is not looked at)
  // After the handler: a `with` block has swallowed it, or `finally` returns.
  if (f.handlers <= handling->handlers) return role != InstructionRole::kRethrows;
  if (f.handlers > handling->handlers + 1) return false;  // a `finally` block handles another one
  PyObject* const* top = f.objects + f.nlocalsplus + f.depth;
  if (role == InstructionRole::kMatchesClass) return PyErr_GivenExceptionMatches(top[-2], top[-1]) != 0;
  return role == InstructionRole::kMatchesGroup || (is_first && role == InstructionRole::kPops);  // a bare `except`
}

}  // namespace frametap
