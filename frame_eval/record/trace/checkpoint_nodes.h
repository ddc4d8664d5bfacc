// A call of torch.utils.checkpoint (without reentry) is one node of the graph. The node calls torch's own checkpoint with a
// function that runs the recorded ops, so what is saved, recomputed and drawn again is torch's business.
//   K1  The recording goes through the checkpointed function as through any callee; torch's own frames around it are no part
//       of the recording. Then the function's ops move into a graph of their own (CheckpointAtWork::since).
//   K2  That graph gets all its values as inputs. These are the tensors that checkpoint was given, in their places,
//       tensors that the function has reached in another way, and whole numbers.
//   K3  A function that changes a Python object, looks at elements, or changes sizes in place ends the graph before the call,
//       and so does a call within another one.
//   K4  The recomputation is the program's: backward calls the function itself, as it would without us, and sees what has
//       changed since the call. The function and its arguments are made with the other effects of the run (`call`), and
//       handed to the last body that the node has made on this thread. A body without them runs the ops again.
// Not here: checkpoint with reentry, which ends the graph: it recomputes under another grad mode.
#pragma once

#include <vector>

#include "frame_eval/interpreter/shadow.h"
#include "frame_eval/record/trace/aten_recorder.h"
#include "guards/ref.h"

namespace frametap {

struct Call;
struct FrameNote;
struct Trace;

inline constexpr const char* kCheckpointOp = "frametap::checkpoint";
inline constexpr const char* kWritingCheckpointOp = "frametap::checkpoint_";

// A call of checkpoint that is being recorded.
struct CheckpointAtWork {
  const void* caller = nullptr;  // the frame that calls it
  AtenRecorder::Mark since;
  size_t effects = 0, decisions = 0;
  Ref<> checkpoint, options;
  std::vector<Ref<>> called;     // the function and what it gets, keyword values last
  std::vector<Shadow> shadows;   // beside `called`
  Ref<> names;                   // of the keywords
  std::vector<bool> is_tensor;   // by position, without the function
  std::vector<ValueId> tensors;  // that are passed by position
  EagerState state;
  bool has_begun = false;  // the function's frame has come
};

void RegisterCheckpointOp();  // both, once, at import

// Returns whether it is the code of torch.utils.checkpoint.checkpoint itself. Backward calls its callees again,
// outside of any captured call. So a backend that compiles must leave it to Python the first time as well.
bool IsCheckpointCode(const PyCodeObject* code);

void CallCheckpoint(Trace& trace, Call& call);
bool AwaitsCheckpointed(const Trace& trace,
                        PyCodeObject* code);  // the next frame of this code may be the checkpointed function's
void CheckpointResult(Trace& trace, FrameNote& note, PyObject* result);
bool KnowsNumbersSince(const Trace& trace, const AtenRecorder::Mark& since);

}  // namespace frametap
