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
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "frame_eval/segment/places.h"
#include "frame_eval/segment/reasons.h"
#include "frame_eval/state/aten_pause.h"
#include "ir/graph/graph.h"
#include "ir/ops/gives_argument.h"
#include "ir/ops/op_facts.h"

namespace frametap {

class AtenRecorder {
 public:
  struct Mark {
    size_t nodes = 0, values = 0, inputs = 0, constants = 0, journal = 0, ops_met = 0;
  };
  struct KnownTensor {
    // Takes the pointer in an at::Tensor as it is: a strong one made of it on the way would count at the Python
    // object, too.
    using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
    Weak weak;
    ValueId value;    // invalid: known only by its source so far
    SourceId source;  // existed before
    bool metadata_read = false;
    bool strides_read = false;
    bool resized = false;  // or it may be, by the op that gave `value`: its sizes may differ from the entry

    // Whether its sizes, strides and rank are those that its source has at the entry.
    bool is_as_at_entry() const { return source.valid() && !(resized && value.valid()); }
  };

  AtenRecorder();
  ~AtenRecorder();

  // The fallback's question to its owner: the place in the program, for the next node.
  std::function<PlaceId()> place;

  void Start();  // ops of this thread are recorded from now on
  void Stop();
  bool running() const { return is_on_; }

  KnownTensor* Find(const at::Tensor& tensor);
  bool AddSource(const at::Tensor& tensor, SourceId source);  // false: it is known already, and stays what it was
  // The value of a known tensor; makes a graph input of one that is known by its source only.
  std::optional<ValueId> ValueOf(const at::Tensor& tensor);
  std::optional<at::Tensor> TensorOfInput(ValueId id);
  // An op that gives a tensor other sizes, strides or memory ends the recording, and has run by then. Returns a tensor with the
  // sizes, strides and memory from before the op. Its elements may have been written.
  at::Tensor AsAtEntry(const at::Tensor& tensor) const;
  ValueId ValueBefore(const at::Tensor& tensor, const Mark& mark);  // of one that had a value then
  bool IsInput(ValueId id) const;
  SourceId SourceOfInput(ValueId id) const;
  const std::vector<std::pair<SourceId, ValueId>>& inputs() const { return inputs_; }
  ValueId AddNumberInput(SourceId source, Type type);
  ValueId AddScalarNode(ScalarOp op, std::vector<Arg> args, Type type);
  // For an op that the program did not call. Arguments that are left out at the end have their defaults.
  ValueId AddOpNode(const char* name, const char* overload, std::vector<Arg> args, Type type);
  void Bind(const at::Tensor& tensor, ValueId value);  // that is what the value is now
  void NoteWritesTo(
      const std::vector<ValueId>& values);  // by such a node, whose writes have been met as they were made
  std::function<void(const at::Tensor&)>
      before_write;  // memory that existed before is about to be written; may be empty

  // Collects inputs that the sizes of `value`, or the number, may depend on. Returns null, or the node by which they
  // depend on data. Values in `seen` are left out, and visited values are added to it.
  const Node* SizeCone(ValueId value, std::vector<ValueId>* inputs, absl::flat_hash_set<ValueId>* seen);
  // Whether the elements follow from numbers alone, by ops that give the same each time.
  bool IsOfNumbers(ValueId value);
  // Returns an op that may have given the value's tensor other sizes, and does not show which (it returns another
  // tensor, or none), or null.
  const Node* ResizerOf(ValueId value) const;
  // Whether the rank of a value is more than a consequence of the ranks of the inputs, which every guard holds.
  bool RankFollowsFromSizes(ValueId value) const {
    return std::binary_search(ranked_by_size_.begin(), ranked_by_size_.end(), value);
  }
  void SettleRank(ValueId value) {  // the guards fix it now
    ranked_by_size_.erase(std::lower_bound(ranked_by_size_.begin(), ranked_by_size_.end(), value));
  }
  const std::vector<ValueId>& unsettled_ranks() const { return ranked_by_size_; }
  // After Rewind to where they were these.
  void Unsettle(std::vector<ValueId> ranks) { ranked_by_size_ = std::move(ranks); }

  Mark mark() const {
    return {graph_.nodes.size(),     graph_.values.size(), inputs_.size(),
            graph_.constants.size(), journal_.size(),      ops_met_};
  }
  void Rewind(const Mark& mark);
  // Takes back the nodes of the running call, for others in their place. That the program came to its ops stays so.
  void DropNodes(Mark since);
  std::optional<Break> pending;        // set by the fallback; the owner ends the segment at the next event
  bool refuses = false;                // an op that cannot be recorded raises instead of running …
  bool has_refused = false;            // … as one has done; `pending` says why
  c10::TensorImpl* decided = nullptr;  // its truth is a guard: reading it now is not a break
  bool expect_number = false;          // it is Tensor.item: the number is a value of the graph
  bool foretells_sizes = false;        // the backend must: an op whose sizes it could not say ends the segment
  bool expect_constant = false;  // the running C function is known to make a tensor from Python data (torch.tensor)

  void NoteAutocastCleared() { ++autocast_cleared_; }  // the program has emptied its cache
  uint16_t autocast_cleared() const { return autocast_cleared_; }

  void ExpectNothing() { expect_constant = expect_number = false; }

  Graph& graph() { return graph_; }
  const Graph& graph() const { return graph_; }
  const std::vector<PlaceId>& places() const { return places_; }  // beside graph().nodes
  bool writes_inputs() const { return writes_inputs_; }
  bool uses_random() const { return uses_random_; }
  size_t ops_met() const { return ops_met_; }  // by the program, whether or not they are in the graph
  // What was written of the memory that existed before; null: not all of it is known.
  const absl::flat_hash_set<c10::StorageImpl*>* written_storages() const {
    return writes_unknown_ ? nullptr : &written_storages_;
  }
  // Whether a run may write to the memory of an input: more than what the recording has written to (writes.h).
  bool writes_to_input(ValueId id) const { return id.raw() < written_values_.size() && written_values_[id.raw()]; }
  // Facts of each op, looked up once: no op is removed while a recording runs.
  struct OpNotes {
    const void* op = nullptr;
    const OpFacts* facts = nullptr;
    GivesArgument gives = GivesArgument::kByContent;
  };
  const OpNotes& NotesOf(const c10::OperatorHandle& op);
  // This thread is below a recorded op (a kernel that is Python code), or paused.
  static bool InsideOp();

  // Called by the fallback, for each op that nothing pauses: before it runs, and to run it.
  void Meet() { ++ops_met_; }
  void Record(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  // Runs the op of a node of the graph once more, on `stack`, and adds a node like it, with `args`. It uses the kernel
  // of the first time, which is not Python code.
  void RunAgain(NodeId like, std::vector<Arg> args, torch::jit::Stack* stack, PlaceId at);
  ValueId AddAgain(NodeId like, std::vector<Arg> args, PlaceId at);  // of a scalar op; it is not run
  void Forget(c10::TensorImpl* tensor) { tensors_.erase(tensor); }   // after Rewind
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
  NodeId AddFollowed(FollowedOp op);    // drops the nodes since
  static void SeeOpsOfKernel(bool on);  // while a frame of its kernel runs; the fallback switches that off

 private:
  Arg ArgOf(const c10::IValue& value);
  StateId StateNow();
  bool IsIndexByNumbers(const Node& node) const;
  bool CanForetellSizes(const Node& node, const OpFacts& facts) const;
  struct Written;
  void SeeMetadata(const Written& written, const torch::jit::Stack& results, size_t returns, NodeId node);
  void Add(Node node, PlaceId place, bool rank_by_size = false);
  ValueId AddMade(Node node, Type type, PlaceId at);
  NodeId AddOp(Node node, const torch::jit::Stack& stack, PlaceId at, bool rank_by_size);
  void MayRefuse(const c10::OperatorHandle& op);
  void NoteWrites(const Node& node, const std::vector<at::Tensor>& written);
  ValueId NewOutput(const at::Tensor& tensor, NodeId node);
  bool IsSourceStorage(c10::StorageImpl* storage);

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

  Graph graph_;
  std::vector<PlaceId> places_;
  std::vector<ValueId> ranked_by_size_;  // ascending; few are
  absl::flat_hash_map<c10::TensorImpl*, KnownTensor> tensors_;
  std::vector<std::pair<c10::TensorImpl*, ValueId>> journal_;  // value before a change
  std::vector<std::pair<SourceId, ValueId>> inputs_;
  // Memory that existed before: a set of those noted by the last time that somebody asked (few recordings do).
  absl::flat_hash_set<c10::StorageImpl*> source_storages_;
  std::vector<c10::StorageImpl*> new_source_storages_;
  std::array<OpNotes, 32> op_notes_;  // by address; of two at one place the later one
  RunningOp* running_ = nullptr;      // the innermost one
  std::optional<FollowedOp> followed_;
  size_t ops_met_ = 0;
  bool is_on_ = false;
  absl::flat_hash_set<c10::StorageImpl*> written_storages_;                  // of source_storages_
  absl::flat_hash_map<uint32_t, NodeId> resizers_;                           // by value
  absl::flat_hash_map<const c10::TensorImpl*, at::Tensor> metadata_before_;  // AsAtEntry
  std::vector<bool> written_values_;                                         // beside graph_.values; may be shorter
  bool writes_inputs_ = false;
  bool writes_unknown_ = false;
  uint16_t autocast_cleared_ = 0;
  bool uses_random_ = false;
};

// "" if the dispatch key could be taken, else a sentence for the user (another extension holds it).
const char* InstallFallback();

}  // namespace frametap
