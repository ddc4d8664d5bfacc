// Session: one captured call on one thread. It decides at every instruction where a segment could begin whether to
// replay, to record or to leave it to Python.
//   N1  It lives on the C stack of the call; the hook is installed as long as a session lives.
//   N2  It is in one state at a time (State): it waits for an entry point, records, or leaves the program alone. Frames that
//       come while it records belong to the recording, or are kept out of it (finalisers). Code that runs as a recording
//       ends finds the next state.
//   N3  After a break, an abort or a replayed exit the breaking instruction runs concretely, then the next instruction
//       is an entry point.
//   N4  A segment that begins after a break may continue in the callers of its frame, as long as they called directly
//       (direct_calls.h). Its exit then leaves the frames below the last of them, and changes that one. A generator's frame
//       is left by yielding where it has not returned.
//   N5  Frames that an exit has above the entry frame come back through the calls that made them. The entry frame makes
//       its call again, and the callee's frame gets the values of the exit before its first instruction. Until the
//       last one has them no code of the program runs.
//   N6  A refused call (fullgraph) ends without another instruction of the program. The operation that would end the
//       graph is not done, and each frame that is left or entered gets the error at its next instruction. When the
//       last frame is gone, the changes of the recording are taken back.
//   N7  An exception of the program is not a refusal. Where an op raises, the recording ends, and the frames handle the
//       exception in plain Python. Where one of them catches it, the call is refused instead.
// Not here: frame-less replay of whole calls (compiled_function.h).
#pragma once

#include <Python.h>

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "frame_eval/cpython/eval_function.h"
#include "frame_eval/cpython/signals.h"
#include "frame_eval/interpreter/hook.h"
#include "frame_eval/record/objects/made_classes.h"
#include "frame_eval/record/recorder.h"
#include "frame_eval/record/semantics/predicted_calls.h"
#include "frame_eval/replay/faults.h"
#include "frame_eval/segment/segment.h"
#include "frame_eval/session/frame_restorer.h"
#include "frame_eval/session/library_code.h"
#include "frame_eval/session/publisher.h"
#include "frame_eval/session/refused_call.h"
#include "ir/leaks.h"

namespace frametap {

class Session : public FrameFilter, public Tracer {
 public:
  struct Thread {  // what stands around each operation of a recording, looked up once
    FrameFilter*& filter = hook::thread.filter;
    int& aten_depth = aten::depth;
    bool is_main = OnMainThread();
    PyObject* const* error = ErrorIndicator(PyThreadState_Get());
  };

  Session(std::shared_ptr<SegmentCache> store, PyObject* function);  // that the user has named
  ~Session() override;

  // Calls `function` (of the constructor) with every Python frame of it seen. A new reference, or null with a Python exception.
  PyObject* Run(PyObject* function, PyObject* const* args, size_t nargsf, PyObject* kwnames);

  static bool IsRecording();  // this thread is recording now
  // After Run: nothing of the call has happened, and a segment was recorded that can be replayed in its place.
  bool is_taken_back() const { return is_taken_back_; }

  // FrameFilter
  bool Wants(const FrameFacts& frame) override;
  Tracer* tracer() override { return this; }

  // Tracer
  void Enter(FrameState& f) override;
  void Leave(FrameState& f, FrameEnd end, PyObject* value, Shadow shadow) override;
  Go AtInstruction(FrameState& f) override;
  bool Before(FrameState& f, const Event& event) override;
  Shadow After(FrameState& f, const Event& event, PyObject* result) override;
  void Raised(FrameState& f, const Event& event) override;

 private:
  struct Waiting {};  // a segment may begin at the next entry point
  struct Recording {
    std::unique_ptr<Recorder> recorder;
    bool is_catching = false;  // the entry frame handles an exception that the recording has seen
  };
  // A recording was put off or given up in the frame, or it belongs to an import. Nothing is recorded until it is left.
  struct LeftAlone {
    const FrameState* until;
  };
  using State = std::variant<Waiting, Recording, LeftAlone>;
  // An op has raised under fullgraph. If the exception is caught, that is the reason to refuse the call.
  struct RaisedOp {
    Break reason;
    Position at;
    const FrameState* in;  // the entry frame of the recording; null after it was left
  };

  bool is_recording() const { return std::holds_alternative<Recording>(state_); }
  bool is_left_alone() const { return std::holds_alternative<LeftAlone>(state_); }
  Recording* recording() { return std::get_if<Recording>(&state_); }  // null: nothing is recorded
  bool is_catching() { return is_recording() && recording()->is_catching; }
  Recorder& recorder() const { return *std::get_if<Recording>(&state_)->recorder; }
  Trace& trace() const { return recorder().trace(); }
  // Runs a step of the recording. Returns whether it came to its end. If not, `ends(reason, is_fault)` was called; a fault is
  // ours, and not a Break of the recording.
  template <class F, class G>
  bool Guarded(F&& step, G&& ends);
  // Runs a step that ends the recording with a segment if it throws a Break.
  template <class F>
  bool Step(F&& step);
  bool WantsBelowOp(const FrameFacts& frame);
  Go EntryAt(FrameState& f, FrameNote& note);
  Go Replay(FrameState& f, FrameNote& note, const std::shared_ptr<Segment>& segment);
  void GiveUp(const Break& given);
  FrameState* CallerToGoOnIn(const FrameState& f) const;
  bool GoOnInCaller(FrameState& f, FrameEnd end, PyObject* value, Shadow shadow);
  void Begin(FrameState& f, FrameNote& note);
  Go RefuseToRecord(const FrameState& f, const char* reason, const std::string& segment, const MissReport& miss);
  void ConfirmSuspicion(bool returned);
  // (Inline, as each event of a recording comes here: a call more was 0.4 % of a first call.)
  [[gnu::always_inline]] inline void BeforeInRecording(FrameState& f, FrameNote& note, const Event& event);
  // Follows the function under a cache, as the recorder has asked for (predicted_calls.h).
  // Returns false if an exception interrupts the program.
  bool Predict(FrameNote& note, const Event& event);
  // Gives up the followed call, if there is one, and returns whether there was.
  bool GiveUpPrediction();
  bool IsLeftByPrediction(const FrameNote& note) const {
    const PredictedCall* const call = is_recording() ? PredictedIn(trace()) : nullptr;
    return call != nullptr && call->stage == PredictedCall::Stage::kGivenUp && !note.inlined && !note.suspended;
  }
  static void RaiseGivenUp();
  // Leaves the recording without a segment. Plain Python continues the call.
  void Drop(const Break& given);
  // Drops a recording that ends because of an object of a cache. Returns false if it ends otherwise.
  bool DropForCache(const Break& given);
  // Returns whether the recording has left no segment because of an object of a cache, and notes that.
  bool NoteCache(const Break& why);
  bool is_predicting() const;
  void RefuseEndOfGraph(const Break& reason, const Position& at);
  void HandleInPlainPython(Break reason, size_t handling);
  // Leaves the recording, if there is one. Its frames continue without a tracer, and each one's next instruction is an entry
  // point. The first `of_exit` of them come back in each replay. `until`: the session leaves all alone until that frame is
  // left.
  void StopRecording(const std::vector<FrameState*>& frames, size_t of_exit = SIZE_MAX,
                     const FrameState* until = nullptr);
  void GiveUpInHandler(const Break& given);
  // Ends the recording with a break, or gives it up. `until`: as in StopRecording.
  void End(const Break& given, const FrameState* until = nullptr);
  void EndWithFrame(FrameState& f, FrameEnd end, PyObject* value, Shadow shadow);
  void EndWithReturn(const FrameState& f, PyObject* value, Shadow shadow);
  bool IsWholeCall(const FrameState& f) const;
  void Internal(const std::string& what);
  void Inspect(FrameState& f);
  bool Cross(FrameState& f, FrameNote& note);
  void MustFit(const std::string& fault);  // throws if the self-check has found one
  template <class F>
  std::shared_ptr<Segment> Finish(F&& finish, Break* why);

  std::shared_ptr<SegmentCache> store_;
  LibraryFilter library_;
  RefusedCall refusal_;
  Publisher publisher_;
  FrameRestorer restorer_;
  State state_;
  MadeClasses made_classes_;
  const FrameState* outermost_ = nullptr;  // the frame of Run's callee, if it is seen
  PyObject* called_ = nullptr;             // by Run
  bool is_taken_back_ = false;
  FrameState* innermost_ = nullptr;
  const FrameState* suspected_frame_ = nullptr;  // in plain Python, as an op of its segment raised in a replay
  Suspicion suspicion_;
  std::unique_ptr<UndoLog> undo_;  // of a recording that Run takes back, or that `raised_` has ended
  std::optional<RaisedOp> raised_;
  const Thread thread_;
  const void* stack_;  // StackIdentity
  Counted<"sessions"> counted_;
};

}  // namespace frametap
