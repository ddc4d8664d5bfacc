// AtenRecorder: from dispatcher calls to graph nodes. A boxed fallback on a dispatch key above autograd and autocast
// sees the outermost op of every call that the recording thread makes, and passes it on with the key excluded.
//   A1  Tensors are known by TensorImpl, held weakly: recording keeps no tensor alive (an address stays unique because
//       the weak reference keeps the TensorImpl's own memory).
//   A2  The fallback never throws on its own account: what it cannot record is remembered as a pending Break. The one
//       exception is a recording that `refuses`: what it cannot record must not run.
//   A3  The fallback runs without Python's lock.
//   A4  An op that raises leaves no node.
// Not here: Python objects.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "frame_eval/record/trace/op_facts_cache.h"
#include "frame_eval/record/trace/resized_tensors.h"
#include "frame_eval/record/trace/tensor_values.h"
#include "frame_eval/record/trace/value_ranks.h"
#include "frame_eval/record/trace/written_memory.h"
#include "frame_eval/segment/places.h"
#include "frame_eval/segment/reasons.h"
#include "guards/kinds/attention_switches.h"
#include "ir/graph/element_numbers.h"
#include "ir/graph/graph.h"

namespace frametap {

class AtenRecorder {
  Graph graph_;

 public:
  struct Mark {
    size_t nodes = 0, values = 0, constants = 0, ops_met = 0;
    TensorValues::Mark tensors;
  };

  AtenRecorder();
  ~AtenRecorder();
  AtenRecorder(const AtenRecorder&) = delete;  // `tensors` refers to the graph

  // Parts, each of one kind of fact. Rewind takes all of them back, except `op_facts`.
  TensorValues tensors{&graph_};
  WrittenMemory memory;
  ResizedTensors resized;
  ValueRanks ranks;
  ElementNumbers element_numbers;
  OpFactsCache op_facts;

  // The fallback's question to its owner: the place in the program, for the next node.
  std::function<PlaceId()> place;

  void Start();  // ops of this thread are recorded from now on
  void Stop();
  bool running() const { return is_on_; }

  // Records a tensor that existed before. Returns false if it is known already: it stays what it was.
  bool AddSource(const at::Tensor& tensor, SourceId source);
  ValueId AddScalarNode(BuiltinOp op, std::vector<Arg> args, Type type);
  // For an op that the program did not call. Arguments that are left out at the end have their defaults.
  ValueId AddOpNode(const char* name, const char* overload, std::vector<Arg> args, Type type);
  void NoteWritesTo(
      const std::vector<ValueId>& values);  // by such a node, whose writes have been met as they were made
  std::function<void(const at::Tensor&)>
      before_write;  // memory that existed before is about to be written; may be empty

  Mark mark() const {
    return {graph_.nodes.size(), graph_.values.size(), graph_.constants.size(), ops_met_, tensors.Now()};
  }
  void Rewind(const Mark& mark);
  // Takes back the nodes of the running call, for others in their place. That the program came to its ops stays so.
  void DropNodes(Mark since);
  // Takes back the nodes from `first` up to the last one, which stays. Nothing may use their results any more.
  void DropBeforeLast(NodeId first);
  std::optional<Break> pending;        // set by the fallback; the owner ends the segment at the next event
  bool refuses = false;                // an op that cannot be recorded raises instead of running …
  bool has_refused = false;            // … as one has done; `pending` says why
  bool admits_none = false;            // each op raises instead of running (predicted_calls.h)
  c10::TensorImpl* decided = nullptr;  // its truth is a guard: reading it now is not a break
  bool expect_number = false;          // it is Tensor.item: the number is a value of the graph
  bool predicts_sizes = false;         // the backend must: an op whose sizes it could not say ends the segment
  bool expect_constant = false;  // the running C function is known to make a tensor from Python data (torch.tensor)

  uint16_t autocast_cleared = 0;                        // how often the program has emptied its cache
  std::optional<AttentionSwitches> attention_at_entry;  // once the program has switched attention (attention_nodes.h)

  void ExpectNothing() { expect_constant = expect_number = false; }

  Graph& graph() { return graph_; }
  const Graph& graph() const { return graph_; }
  const std::vector<PlaceId>& places() const { return places_; }  // beside graph().nodes
  bool uses_random() const { return uses_random_; }
  size_t ops_met() const { return ops_met_; }  // by the program, whether or not they are in the graph

  // Called by the fallback, for each op that nothing pauses: before it runs, and to run it.
  void Meet() { ++ops_met_; }
  void Record(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  // Runs the op of a node of the graph once more, on `stack`, and adds a node like it, with `args`. It uses the kernel
  // of the first time, which is not Python code.
  void RunAgain(NodeId like, std::vector<Arg> args, torch::jit::Stack* stack, PlaceId at);
  ValueId AddAgain(NodeId like, std::vector<Arg> args, PlaceId at);  // of a scalar op; it is not run
  // A frame begins below the op that is recorded: its kernel is Python code, and may change what the program reads next.
  void MeetFrameBelow();

  // An op below which the recording continues, in frames of its kernels (kernel_nodes.h). The op's own node takes the place
  // of the nodes that come meanwhile.
  struct FollowedOp {
    Node node;
    torch::jit::Stack results;
    PlaceId place;
    Mark since;
    size_t end = 0;  // nodes there were when the op was done
  };
  // The op at work, if it is not one of torch's own. Null if there is none.
  const c10::OperatorHandle* OpToFollow() const;
  void Follow();  // the op at work
  std::optional<FollowedOp> TakeFollowed() { return std::exchange(followed_, std::nullopt); }
  NodeId AddFollowed(FollowedOp op);  // drops the nodes since

 private:
  Arg ArgOf(const c10::IValue& value);
  StateId StateNow();
  void SeeMetadata(const MetadataBefore& written, const torch::jit::Stack& results, size_t returns, NodeId node);
  void Add(Node node, PlaceId place, bool rank_by_size = false);
  ValueId AddMade(Node node, Type type, PlaceId at);
  NodeId AddOp(Node node, const torch::jit::Stack& stack, PlaceId at, bool rank_by_size);
  void MayRefuse(const c10::OperatorHandle& op);
  ValueId NewOutput(const at::Tensor& tensor, NodeId node);

  // An op that is being recorded, on the C stack. A kernel in Python may end the recording.
  struct RunningOp {
    RunningOp(AtenRecorder* recorder, const c10::OperatorHandle& op)
        : recorder(recorder), op(op), since(recorder->mark()), outer(std::exchange(recorder->running_, this)) {}
    ~RunningOp() {
      if (recorder != nullptr) recorder->running_ = outer;
    }
    RunningOp(const RunningOp&) = delete;
    RunningOp& operator=(const RunningOp&) = delete;

    AtenRecorder* recorder;  // null once the recording is gone
    const c10::OperatorHandle& op;
    Mark since;
    bool is_followed = false;
    RunningOp* outer;
  };

  std::vector<PlaceId> places_;
  RunningOp* running_ = nullptr;  // the innermost one
  std::optional<FollowedOp> followed_;
  size_t ops_met_ = 0;
  bool is_on_ = false;
  bool uses_random_ = false;
};

// Returns whether this thread is below a recorded op (a kernel that is Python code), or paused.
bool IsInsideOp();
// Switches the recording of ops on while a frame of a kernel in Python runs; the fallback switches it off.
void SeeOpsOfKernel(bool on);

// Returns "" if the dispatch key could be taken, else a sentence for the user (another extension holds it).
const char* InstallFallback();

}  // namespace frametap
