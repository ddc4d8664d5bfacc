// Recorder: one recording in progress. It receives the events of the frames of one call (tracer.h), keeps records of
// the objects they touch, and writes graph, guards, effects and exit.
//   C1  Every decision of the program rests on a guarded read, a graph value or a constant. A scalar without a shadow
//       is a constant. An object is known by its source, as made by the trace, or not at all; an unknown one ends the
//       segment.
//   C2  A source is read in the state at the entry. A value that the trace has written itself is kept apart
//       (Known::written) and found first.
//   C3  Ending a segment cuts graph, guards and effects back to the start of the current instruction of the innermost
//       frame that an exit can rebuild. The objects on the stacks up to it are still the objects of that moment.
//   C4  Nothing here changes the program: no object is written, no user code is run.
//   C5  The program cannot observe that the recording keeps objects alive: an object whose end runs code ends when it
//       would (object_ends.cc).
// Not here: when to record and where to continue (session.h), C callables (callables/), replay (reify.h, rollback.h).
#pragma once

#include <Python.h>

#include <array>
#include <bit>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "frame_eval/cpython/collector.h"
#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/interpreter/tracer.h"
#include "frame_eval/record/objects/object_table.h"
#include "frame_eval/record/objects/set_check.h"
#include "frame_eval/record/trace/aten_recorder.h"
#include "frame_eval/record/trace/checkpoint_nodes.h"
#include "frame_eval/record/trace/first_values.h"
#include "frame_eval/record/trace/undo.h"
#include "frame_eval/segment/places.h"
#include "frame_eval/segment/reasons.h"
#include "frame_eval/segment/segment.h"
#include "guards/collect/guard_recorder.h"
#include "guards/stable_vector.h"
#include "ir/leaks.h"
#include "ir/ops/size_rules.h"

namespace frametap {

class RepeatedCalls;
struct CallableRow;

// Changes of a list or dict that existed before, of which the content is not known as a whole (outside_containers.cc).
// … or, of a dict that the trace has made, which numbers in it are open.
struct OutsideChanges {
  absl::flat_hash_map<PyObject*, Shadow> stored;  // dict: by key (PlainKey)
  Py_ssize_t entry_length = -1;                   // list: what it had at the entry …
  std::vector<Shadow> appended;                   // … and what follows since
};

// The keys of a dict or set that are not all fixed, in the order in which they were added (open_keys.cc).
using OpenKeys = std::vector<std::pair<Ref<>, Shadow>>;

// The record of an object that has an identity of its own (neither a scalar nor a tensor).
struct Known {
  enum class State : uint8_t {
    kSource,  // existed before; reached at `source`
    kFresh,   // made by the trace; its content is known
    kOpaque,  // made by the trace (an iterator, a view …): may be used, cannot be made again
  };
  State state = State::kFresh;
  SourceId source;
  bool pinned = false;         // every object on the way is known by identity
  bool touched = false;        // its type or identity is guarded
  bool fixed = false;          // its identity is guarded at `source` (Fix)
  bool adopted = false;        // container: content guarded, elements known
  bool counted = false;        // container: its length is guarded
  bool dict_is_out = false;    // made by the trace: its __dict__ was read
  bool is_viewed = false;      // list, or dict of the trace: C code may look at all of it at any time
  uint32_t epoch = 0;          // fresh: when it was made
  uint32_t mutated_epoch = 0;  // when the trace last changed it
  bool mutated = false;
  bool settled = false;  // garbage.cc
  void MutatedIn(uint32_t now) {
    mutated = true;
    mutated_epoch = now;
  }
  size_t keys_by_address = 0;  // set or dict: so many of its keys have their address guarded (identity.cc)
  Ref<> pin;                   // so that the address stays its own
  // Fresh tuple (or torch.Size), list, slice and cell: shadows of the elements; may be fewer.
  absl::InlinedVector<Shadow, 2> items;
  std::unique_ptr<absl::flat_hash_map<PyObject*, Shadow>> written;  // attributes or globals written by the trace
  std::unique_ptr<OutsideChanges> changes;                          // until all of the content is known
  std::unique_ptr<OpenKeys> open_keys;
};

// The identities of arguments that a C callable reads, beside their values (identity.cc).
enum class Reads : uint8_t {
  kValues,  // nothing
  kSearch,  // the second argument is looked for in the first: list.index
  kKey,     // … as a key: dict.pop
  kKeys,    // the elements of all arguments are keys of one table: set.union, dict(pairs)
  kCommon,  // … and the result does not hold all of them: set.intersection
  kEqual,   // the first two are compared
  kHash,    // the first is hashed
  kRepr,    // arguments are printed
  kStr,     // … by str()
};

enum class Printed : uint8_t { kRepr, kStr };

// The kind of a result that After records; set by Before.
struct Expect {
  enum class Kind : uint8_t {
    kAny,      // a scalar is constant; an object is known, or becomes fresh with its elements
    kSource,   // the object at `source`
    kShadow,   // `shadow`
    kTorch,    // results of recorded ops
    kItems,    // a fresh tuple whose elements have the shadows `items`
    kOpen,     // what an iterator over numbers that are not fixed has given
    kTaken,    // what an iterator that existed before has given (iterators.cc)
    kData,     // x.data: shares the memory of the graph value in `shadow`, and nothing else
    kPinned,   // an object that a class or module holds: known by identity
    kNothing,  // no result, or of no interest
  };
  Kind kind = Kind::kAny;
  SourceId source;
  bool pinned = false;
  Shadow shadow;
  std::vector<Shadow> items;
  PyObject* answer = nullptr;  // borrowed: the result itself, where finding out about it was the whole operation

  void Reset() {
    kind = Kind::kAny;
    source = SourceId();
    pinned = false;
    shadow = Shadow();
    items.clear();
    answer = nullptr;
  }
};

// Where a segment may be cut: everything as it was before an instruction.
struct Mark {
  AtenRecorder::Mark aten;
  GuardRecorder::Mark guards;
  size_t effects = 0;
  size_t decisions = 0;
  int offset = 0;
  int depth = 0;
  EagerState state;
  uint16_t backends = 0;
  int autocast_nesting = 0;
  size_t context_sets = 0;
  uint32_t epoch = 0;
};

// The values that a replayed exit puts into a frame before it continues.
struct Landing {
  bool leaves = false;  // it returns `result`, and nothing else counts …
  Ref<> result;
  const SnapshotFrame* yields = nullptr;  // … or it yields, and stays with `content`
  std::shared_ptr<Segment> segment;
  size_t frame = 0;  // of the exit
  FrameContent content;
  std::vector<Landing> above;  // the frames that this one calls first, outermost last
};

// A number that is not fixed, on its way to an op (number_links.cc).
struct OpenNumber {
  PyObject* object = nullptr;  // borrowed
  Shadow shadow;
  int position = -1;         // of the argument, `self` included; -1: by name
  PyObject* name = nullptr;  // borrowed
  int item = -1;             // of a tuple or list; -1: the argument itself
  int part = -1;             // of a slice: start, stop, step
  bool linked = false;       // a node takes it
  ValueId tensor;            // valid: `object` is this tensor of one int, and the binding may take …
  int64_t element = 0;       // … its element for a number (x.view(t, 4))
  Shadow computed;           // what is known of the element without looking at the tensor …
  bool is_constant = false;  // … or that it is a constant
  bool is_taken = false;     // the binding has asked for it
};

// Findings of Before about an operation, for After. They stand together, as nearly each operation has none of them.
struct OperationMarks {
  bool converts = false;            // float(x), int(x) of a tensor
  bool calls_function = false;      // apply of torch.autograd.Function; its ops are behind `before_nodes`
  bool follows_kernel = false;      // … or an op, whose kernels' frames have come
  bool switches_inference = false;  // a block of inference mode begins or ends; the key of ops is off meanwhile
  bool makes_tensor = false;        // of the numbers in `open`, which are all that the data has (torch.tensor)
  bool makes_iterator = false;      // over rows of which something is not fixed (OpenIterator)
  bool makes_parameter = false;     // nn.Parameter(…)
  bool has_open_keys = false;       // a display of a dict or set (open_keys.cc)

  bool any() const { return std::bit_cast<uint64_t>(*this) != 0; }
};

// The notes of one recording about a frame. They end with the recording (FrameNote::Part): another one must not
// believe them.
struct RecordingNote {
  bool is_clean = true;                  // nothing has been noted
  bool inlined = false;                  // part of the recording
  bool in_event = false;                 // between Before and After: frames that come now belong to the recording
  bool direct = false;                   // called by bytecode of the frame below: shadows came with the call
  std::optional<Places::Module> module;  // that it calls
  PlaceId place = kNowhere;              // where it stands, if `place_offset` is its offset
  int place_offset = -1;
  bool to_cross = false;   // its first instruction is where a call of a module is crossed
  bool passes_on = false;  // it was: it stands at the call with which it passes its arguments on
  Expect expect;
  // The result of the last Python frame called from here.
  PyObject* returned = nullptr;  // compared only, never read
  Shadow returned_shadow;
  // For the running C function that dispatches (TorchCall): its name, its arguments, and the parts of them that wait
  // for the node.
  const char* torch_name = "";
  size_t torch_positional = 0;
  uint64_t torch_ints = 0;  // bit i: positional argument i is an int
  int unpacks = 0;          // the argument of the instruction that unpacks
  absl::InlinedVector<OpenNumber, 2> open;
  bool is_index = false;  // x[…] of a tensor
  OperationMarks marks;
  PyObject* listed = nullptr;       // borrowed: the tensor whose elements are asked for (x.tolist())
  AtenRecorder::Mark before_nodes;  // of the function, or of the kernel
  size_t effects_before = 0, decisions_before = 0, mutated_before = 0;
  int64_t taken_before = 0;  // from iterators that existed before
  // Arguments of a class's call that are open for its __new__ alone (InvokeType), and the class. Anything else that comes
  // to see them fixes them.
  absl::InlinedVector<Shadow, 4> for_new;
  PyTypeObject* called_type = nullptr;  // borrowed
  // What an operation has left that raised, or that a recording saw begin which was given up since, counts no more.
  void ForgetOperands() {
    open.clear();
    for_new.clear();
    called_type = nullptr;
    is_index = false;
    marks = OperationMarks();
    listed = nullptr;
  }
  size_t nodes_before = 0;
  size_t containers_before = 0;   // of Recorder::containers_
  bool own_effect = false;        // what the operation itself does was written down as an effect
  bool opaque_operation = false;  // frames that the operation starts do not belong to the recording
  // An exit can rebuild this frame by making its caller's call again (callers.h). The entry frame needs no rebuilding.
  bool rebuildable = false;
  bool marked = false;  // `mark` is the mark of the instruction at work
  Mark mark;
};

// The tracer's own part of a frame.
struct FrameNote : RecordingNote {
  // The frame becomes part of a recording.
  void Join() {
    if (!is_clean) Part();
    is_clean = false;
    inlined = true;
  }
  // The recording has ended, or lets go of the frame.
  void Part() {
    static const RecordingNote nothing = {};
    static_cast<RecordingNote&>(*this) = nothing;
  }

  // For a frame that an exception of the program may leave (Session::IsCaughtAt).
  struct Handling {
    int handlers = 0;        // of the frame, when it was raised
    bool has_begun = false;  // the frame handles it
    bool is_first = false;   // … and the next instruction is the first to do so
  };
  std::optional<Handling> handling;
  std::optional<AtenPause> suspended;  // a frame without a caller (a finaliser): its ops are not recorded
  int lifted = 0;          // … pauses that are lifted while this frame runs (checkpoint_nodes.h, kernel_nodes.h)
  bool is_kernel = false;  // of an op: the dispatcher has called it
  // Entry points, while nothing records:
  bool at_entry = false;  // the next instruction is an entry point
  bool skip_one = false;  // the breaking instruction is to run before the next entry
  int wait_offset = -1;   // the same, once the frame gets there
  std::unique_ptr<Landing> landing;
  // frames that an exit continues in and that have not come yet: this one calls the last
  std::vector<Landing> awaited;
  FrameState* caller = nullptr;  // the frame of the session that was the innermost one when this one came
};

inline FrameNote& NoteOf(const FrameState& f) { return *static_cast<FrameNote*>(f.tracer_data); }

// An observable change, with the objects themselves. It is described (as operands) only when the segment is frozen, so
// that a container stored first and filled later is stored as it is at the end.
struct PendingEffect {
  Effect::Kind kind = Effect::Kind::kSetAttr;
  Ref<> target;
  std::string name;             // attribute, global, cell or method
  std::vector<Ref<>> values;    // kSetItem: key, value; kDelItem: key; kCall: arguments; else the value
  std::vector<Shadow> shadows;  // beside `values`
  Position at;
  // The nodes that run before it in the program. A handler of an op's error cannot observe whether one of the last
  // kind is done.
  size_t nodes_before = 0;
  static constexpr size_t kSeenByNobody = SIZE_MAX;
};

// Operands of a call in the order of its parameters, `self` of a bound method included.
struct Call {
  FrameState& f;
  FrameNote& note;
  PyObject* callable = nullptr;
  absl::InlinedVector<PyObject*, 8> args;  // borrowed; keyword values last
  absl::InlinedVector<Shadow, 8> shadows;
  absl::InlinedVector<PyObject*, 4> names;  // keyword names
  size_t positional() const { return args.size() - names.size(); }
};

class Recorder {
 public:
  Recorder(Store& store, FrameState& base, FrameNote& note, const WorldState& world);
  ~Recorder();

  // -- events (session.cc); may throw Break --
  void StartInstruction();                                  // of the entry frame
  void MarkInstruction(FrameState& f, FrameNote& note);     // of a frame above it, before its first event
  void BeginWithoutBefore(FrameState& f, FrameNote& note);  // … of which After or Raised is the first event
  void Before(FrameState& f, FrameNote& note, const Event& e);
  Shadow After(FrameState& f, FrameNote& note, const Event& e, PyObject* result);
  std::optional<Shadow> MarkedResult(FrameState& f, FrameNote& note, const Event& e, PyObject* result);
  void Raised(FrameState& f, FrameNote& note, const Event& e);
  // `left`, the entry frame, has returned or yielded: the recording continues in its caller, once that has the result.
  void ContinueIn(FrameState& caller, FrameNote& note, const FrameState& left, FrameEnd end, PyObject* result,
                  Shadow shadow);
  bool TakeResult(FrameState& f);  // the caller's next instruction; false: it is not where the call leads
  void EnterInlined(FrameState& f, FrameNote& note);
  void LeaveInlined(FrameState& f, FrameNote& note, FrameEnd end, PyObject* value, Shadow shadow);
  bool expects_frame(const FrameState& f) const;
  // module_calls.cc: takes a frame of nn.Module.__call__ from its first instruction to the call with which it passes
  // its arguments on. Returns false if it must be interpreted, and is unchanged.
  bool CrossModuleCall(FrameState& f, FrameNote& note);
  // … which begins with instructions that make cells: at once. Returns false if there are none to be made here.
  bool MakeCells(FrameState& f);
  bool observes_inner_frames() const;
  void ClearPending() { has_pending_ = false; }
  RepeatedCalls* repeated_calls() { return repeated_calls_.get(); }  // null: there are none
  // Self-check (self_check.h): what does not fit, or "".
  std::string FaultIn(const FrameState& f);
  std::string FaultOfAnswer(const FrameState& f, const Event& e) const;
  std::string FaultOfEnds();
  // object_ends.cc: while objects are watched, inner frames are observed too, and this comes before each instruction.
  bool watches_ends() const { return !watched_.empty(); }
  void LetGo();
  void MeetUnrecorded(const FrameState& f);
  void WatchAll();
  std::string MisfitOf(Segment& segment);  // after FinishReturn
  // What takes back what the recording has done; may be null. The recording must end now.
  std::unique_ptr<UndoLog> TakeUndo();

  // -- ends; null with `*why` set if the recording cannot be kept --
  std::shared_ptr<Segment> FinishReturn(PyObject* value, Shadow shadow, Break* why);
  std::shared_ptr<Segment> FinishBreak(const Break& reason, Break* why);
  const Position& BreakPosition();  // break_words/W1

  FrameState& base() { return *frames_.front(); }
  bool is_base(const FrameState& f) const { return &f == frames_.front(); }
  bool began_at_break() const { return began_at_break_; }
  // A block of inference mode has been entered: a segment that ends in it could not be resumed.
  bool is_in_inference_block() const { return state_now_.inference_mode != entry_state_.inference_mode; }
  bool ends_at_blocks = false;  // of inference mode: an earlier recording has ended in one, or the backend loses it
  int level() const { return static_cast<int>(callers_.size()); }
  AtenRecorder& aten() { return aten_; }
  int base_offset() const;  // of the entry frame's instruction at work
  bool may_be_undone() const { return undo_ != nullptr; }
  size_t node_count() const { return aten_.graph().nodes.size(); }
  size_t effect_count() const { return effects_.size(); }
  const std::vector<FrameState*>& frames() const { return frames_; }

  // -- knowledge (also for callables/) --
  static bool IsScalar(PyObject* object) {
    // The flags decide most objects: classes made by Python, and the containers.
    constexpr unsigned long kOthers = Py_TPFLAGS_HEAPTYPE | Py_TPFLAGS_TUPLE_SUBCLASS | Py_TPFLAGS_LIST_SUBCLASS |
                                      Py_TPFLAGS_DICT_SUBCLASS | Py_TPFLAGS_TYPE_SUBCLASS;
    return (Py_TYPE(object)->tp_flags & kOthers) == 0 && IsScalarType(Py_TYPE(object));
  }
  Known* Find(PyObject* object) { return objects_.Find(object); }
  Known& AddFresh(PyObject* object, Known::State state = Known::State::kFresh);
  Shadow FromSource(SourceId id, PyObject* object, bool pinned);
  Shadow AdoptResult(PyObject* object);  // Expect::kAny
  Shadow AdoptMade(PyObject* object, bool all = false);
  Shadow MeetSelf(PyObject* method, PyObject* self);
  void RefuseWrittenDict(PyObject* dict) const;  // iterators.cc
  // Of a dict of names whose items the trace has changed: a path by a name would find what it held at the entry.
  void RefuseMutatedDict(PyObject* dict) {
    if (has_mutated_dicts_ && IsMutatedDict(dict)) [[unlikely]]
      ThrowMutatedDict();
  }
  // For an object's own dict that another object has, too, and was written to by: that one holds the record.
  void RefuseSharedDict(PyObject* owner, PyObject* dict) const {
    if (!dict_writers_.empty()) [[unlikely]]
      ThrowIfShared(owner, dict);
  }
  void MeetConstant(PyObject* tuple);  // of the code
  bool IsConstantTuple(PyObject* object) const;
  void AdoptPinned(PyObject* object, const std::string& text = "");  // "": the callable's name
  void Touch(PyObject* object);                                      // type or identity of an object known by a source
  void ReadClassCell(FrameState& f);
  void Force(PyObject* object, Shadow shadow);  // fix the value of a scalar
  void ForceDeep(PyObject* object, Shadow shadow, bool tensors_allowed);
  void ForceArguments(const Call& call, size_t from, bool tensors_allowed);  // … from that one on
  struct DeepWalk;
  void ForceDeep(PyObject* object, Shadow shadow, DeepWalk* walk);
  void AdoptElements(PyObject* container);  // guard length or keys, make the elements known
  void Own(PyObject* container);            // before its first mutation
  // -- containers from outside, changed without reading all of them (outside_containers.cc) --
  Shadow* StoredItem(PyObject* dict, PyObject* key);  // what the trace has stored there; null if nothing
  // -- numbers in dicts of the trace's own (own_dicts.cc) --
  bool MayHoldOpen(PyObject* dict);
  void KeepValue(PyObject* dict, PyObject* key, Shadow shadow);
  bool StoreOwn(PyObject* dict, PyObject* key, PyObject* value, Shadow shadow);
  bool MergeOpen(PyObject* dict, PyObject* from);
  bool UpdateOwn(const Call& call);
  bool PopOwn(Call& call);
  void ViewDict(PyObject* dict, PyObject* method);
  void FixValues(PyObject* dict);
  PyObject* PlainKey(PyObject* key);
  // -- keys that are not fixed (open_keys.cc) --
  bool DecideKey(PyObject* table, PyObject* key, Shadow shadow);
  bool AddKey(PyObject* table, PyObject* key, Shadow shadow);
  void ForceKey(PyObject* key, Shadow shadow);
  bool ViewValues(PyObject* dict);
  bool StoreOutside(PyObject* container, PyObject* key, PyObject* value, Shadow shadow);
  bool AppendOutside(PyObject* list, PyObject* items, PyObject* item, Shadow shadow);
  void NoteOutsideChange(PyObject* container);
  void MarkMutated(PyObject* object);
  void MarkAdvanced(PyObject* object);  // an iterator that C code may take from
  // Of an iterator that existed before (iterators.cc), one that is told of can be taken from.
  bool IsMetIterator(PyObject* object) const;
  bool TakeNext(FrameNote& note, PyObject* iterator);  // before it is done; false: it is at its end
  Shadow ElementShadow(PyObject* container, Py_ssize_t index);
  SourceId SourceOf(PyObject* object);                          // of a known object or tensor; invalid if it has none
  void ReadTensor(PyObject* tensor, bool sizes, bool strides);  // Python relies on sizes or strides
  void ReadRank(PyObject* tensor);                              // … on the number of dimensions
  void ReadAllTensors(PyObject* object, bool strides);          // … of every tensor in it
  Spot Here() const { return {frames_.back()->code, frames_.back()->offset}; }
  GuardRecorder& guards() { return guards_; }
  void CountAutocastNesting(int change) { autocast_nesting_ += change; }
  // Context variables that the trace has set and not reset yet. A token is known by when it was made.
  bool IsContextSet() const { return !context_sets_.empty(); }
  bool IsContextSet(PyObject* variable) const { return LastContextSet(variable) != context_sets_.size(); }
  void SetContext(PyObject* variable) { context_sets_.push_back({variable, ++epoch_}); }
  bool ResetContext(PyObject* variable, const Known& token) {  // false: it is not of the variable's last set
    const size_t last = LastContextSet(variable);
    if (last == context_sets_.size() || context_sets_[last].epoch != token.epoch) return false;
    context_sets_.erase(context_sets_.begin() + static_cast<ptrdiff_t>(last));
    return true;
  }
  Operand Describe(PyObject* object, Shadow shadow);  // throws Break(escaping_object)
  ConstId AddConstant(PyObject* object);
  void AddEffect(Effect::Kind kind, PyObject* target, const std::string& name, std::vector<PyObject*> values,
                 std::vector<Shadow> shadows);
  void PushEffect(Effect::Kind kind, PyObject* target, const std::string& name, const std::vector<PyObject*>& values,
                  // for an operation that changes nothing that the trace or `undo_` knows
                  std::vector<Shadow> shadows);
  Shadow* WrittenShadow(PyObject* owner, PyObject* name);  // what the trace has stored there; null if nothing
  void SetWritten(PyObject* owner, PyObject* name, Shadow shadow);
  SourceId SourceOrPin(PyObject* object);

  // -- operations shared by opcodes and callables (attributes.cc, calls.cc, containers.cc) --
  void LoadAttribute(FrameNote& note, PyObject* owner, Shadow shadow, PyObject* name);
  void GenericLoad(FrameNote& note, PyObject* owner, PyObject* name);  // object.__getattribute__
  void StoreAttribute(FrameNote& note, PyObject* owner, PyObject* name, PyObject* value, Shadow shadow);
  void DeleteAttribute(FrameNote& note, PyObject* owner, PyObject* name);
  void ReadBufferRegistration(FrameNote& note, PyObject* owner, PyObject* name);
  bool GenericStore(PyObject* owner, PyObject* name, PyObject* value, Shadow shadow);  // object.__setattr__
  void GenericDelete(FrameNote& note, PyObject* owner, PyObject* name);                // object.__delattr__
  void Subscript(FrameNote& note, PyObject* container, PyObject* key, Shadow key_shadow, Shadow container_shadow);
  void StoreSubscript(FrameNote& note, PyObject* container, PyObject* key, PyObject* value, Shadow key_shadow,
                      Shadow value_shadow);
  void ItemOfRow(FrameNote& note, PyObject* row, PyObject* key);
  void Contains(FrameNote& note, PyObject* container, PyObject* item);
  void TruthOf(FrameNote& note, PyObject* object, Shadow shadow);
  void CompareValues(FrameNote& note, PyObject* a, Shadow sa, PyObject* b, Shadow sb, int py_compare_op);
  void CompareIdentity(PyObject* a, Shadow sa, PyObject* b, Shadow sb);
  void TorchCall(FrameNote& note, Call* call, const char* name);  // arguments of a dispatching C function
  void DataCall(Call& call, size_t data);                         // … that makes a tensor of Python data
  void ListCall(Call& call);                                      // x.tolist()
  // -- torch.autograd.Function (function_nodes.cc) --
  void CallFunction(Call& call);
  Shadow FunctionResult(FrameNote& note, const Event& e, PyObject* result);
  bool CheckFunction(const AtenRecorder::Mark& since, const std::vector<ValueId>& given,
                     const std::vector<at::Tensor>& results);
  std::vector<std::optional<Shadow>> OuterSizes(const at::Tensor& tensor, const AtenRecorder::Mark& since);
  void NoteSizes(ValueId value, const std::vector<std::optional<Shadow>>& sizes);
  // -- ops whose kernels are Python code (kernel_nodes.cc) --
  bool MayFollowKernel() const;  // a frame has come below an op
  void EnterKernel(FrameState& f, FrameNote& caller);
  void KernelResult(FrameNote& note);
  void CheckKernel(const AtenRecorder::FollowedOp& op);
  int64_t TakenFromOutside() const;
  // -- torch.utils.checkpoint (checkpoint_nodes.cc) --
  void CallCheckpoint(Call& call);
  bool AwaitsCheckpointed(PyCodeObject* code) const;  // the next frame of this code may be the checkpointed function's
  void CheckpointResult(FrameNote& note, PyObject* result);
  bool CheckCheckpointed(const AtenRecorder::Mark& since);
  bool KnowsNumbersSince(const AtenRecorder::Mark& since) const;
  bool ConvertTensor(Call& call, bool to_float);  // float(x), int(x); false: its number is no value of a graph
  // -- rows (rows.cc) --
  bool HasOpenItems(PyObject* row);
  bool LeavesContentOpen(PyObject* row);
  void ForceItems(PyObject* container);
  void KeepItems(FrameNote& note, std::initializer_list<PyObject*> rows);
  bool AppendItems(PyObject* list, PyObject* items, PyObject* item, Shadow shadow);
  bool StoreItem(PyObject* list, PyObject* key, PyObject* value, Shadow shadow);
  bool ChangeList(Call& call, const char* name);
  void MakesIterator(const Call& call);
  // -- numbers (numbers.cc, sizes.cc, number_links.cc) --
  bool numbers_open() const { return open_ != Open::kNone; }
  bool sizes_open() const { return open_ == Open::kAll; }
  enum class Open : uint8_t {
    kNone,      // all are constants
    kChanging,  // those are open for whose value a segment has missed; sizes and results are constants
    kAll,
  };
  static Open OpenNumbers(Store& store, bool has_marks);
  static bool HasMarkedArgument(const FrameState& base);
  bool LeavesOpen(PyObject* object, Shadow shadow);
  Shadow KeepOpen(PyObject* object, Shadow shadow, bool* open);
  Shadow SizeOf(PyObject* tensor, int64_t dim);
  Shadow SizeOf(ValueId tensor, int64_t dim);
  void FixRank(ValueId tensor);
  Shadow AddNumber(ScalarOp op, std::initializer_list<std::pair<PyObject*, Shadow>> operands);
  bool DecideNumbers(PyObject* a, Shadow sa, PyObject* b, Shadow sb, int py_compare_op, bool only_if_true);
  static bool IsNumber(PyObject* object) { return PyLong_CheckExact(object) || PyFloat_CheckExact(object); }
  void FixType(Shadow shadow);
  Shadow CountOfElements(PyObject* tensor);
  void Invoke(Call call);  // any call, by the tables
  void Mutate(Call& call, const CallableRow& row);
  bool MakesLeaves() const;  // a graph may make tensors that require grad
  Shadow ParameterResult(PyObject* parameter);
  void FixDefaults(PyFunctionObject* function);
  void ForceAll(const Event& e);
  void RegisterTensor(PyObject* object, SourceId id);
  // For an object of an extension type, from outside: its content cannot be guarded. Or of a class with such an
  // operator.
  bool IsForeign(PyObject* object);
  static bool IsOfPythonClass(PyObject* object);  // made by Python code, down to `object`
  // The class has an operator that is neither Python code nor that of a builtin base: C code that nobody tells of.
  static bool HasForeignOperator(PyObject* object) {
    return (Py_TYPE(object)->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0 && HasForeignOperator(Py_TYPE(object));
  }
  static void RefuseForeignOperator(PyObject* object) {
    if (HasForeignOperator(object)) [[unlikely]]
      ThrowForeignOperator(object);
  }
  // … and its parts, if it is a slice or sequence: C code reads the hash or index of all parts of a key.
  static void RefuseForeignKey(PyObject* key, int depth = 0);

  // -- which objects they are (identity.cc) --
  static bool IsIdentityKind(PyObject* object);
  // … but not by itself: modules, whose layers a segment shall fit alike. (Functions by their code: InvokePython.)
  bool IsExchangeable(PyObject* object) const;
  // Whether a path leads to it on which each object holds the next one, and none of them has been released. So it is alive
  // here in each replay.
  bool IsHeldByItsPath(PyObject* object);
  void Fix(Known& known);  // it is this very one
  // … if it existed before and is of C code, so that no source leads to what is in it.
  void FixContent(PyObject* object);
  bool IsFixed(PyObject* object);  // a scalar, a constant, or the very object by a guard
  // That it is a function, method or partial is all that a test for None, for truth or for its type asks: which one it is,
  // and so what a method binds, is none of the segment's business, and `obj.method` is another object each time. False:
  // it is something else, and nothing has been read.
  bool ReadKind(PyObject* object);
  void ReadSame(PyObject* a, PyObject* b);
  void ReadSameScalar(PyObject* a, Shadow sa, PyObject* b, Shadow sb);
  void ReadEqual(PyObject* a, PyObject* b, int depth = 0);          // a == b
  void ReadEqualElements(PyObject* a, PyObject* b, int depth = 0);  // … as C code reads it of elements
  void ReadSearch(PyObject* sequence, PyObject* item);
  void ReadKey(PyObject* table, PyObject* key);
  static void RefuseNan(PyObject* object);                   // where it is hashed, or looked for among others
  void ReadDistinct(const std::vector<PyObject*>& objects);  // all of them are keys of one table
  void ReadElements(std::initializer_list<PyObject*> containers);
  void ReadOrder(PyObject* set);
  void ReadLayout(PyObject* object);  // of a set that is copied, or taken from
  void ReadHash(PyObject* object);
  // Its id, which its hash is as well. It must be one that lives longer than a call: any other has another id each time.
  void ReadTensorAddress(PyObject* tensor);
  // The id of an object that is passed, which is not fixed. kNone if there is none.
  Shadow OpenAddress(PyObject* object);
  void ReadsAddress();  // what comes of it is another for another object of the kind
  void ReadPrinted(PyObject* object, Printed how, int depth = 0);
  void ReadIdentities(Reads reads, const Call& call);
  void ReadCallbacks(const Call& call);  // calls.cc: for C code that makes calls without events

  // Its attributes are looked up by object.__getattribute__.
  static bool HasGenericGet(PyTypeObject* type);

 private:
  SourceId AddressedBy(Shadow shadow) const;  // the object whose id the number is
  bool IsPassed(SourceId id, bool in_dicts) const;
  void FixAddress(SourceId source);
  bool IsOpenKey(PyObject* key, Shadow shadow);
  OpenKeys* OpenKeysOf(PyObject* table);  // null if all keys are fixed
  Shadow KeyShadow(PyObject* table, PyObject* key);
  bool DecideAmongKeys(const std::vector<std::pair<PyObject*, Shadow>>& keys, PyObject* key, Shadow shadow);
  bool DecideKeys(const Event& e);
  void KeepKeys(PyObject* table, const Event& e);
  void FixKeys(PyObject* table);
  void MeetOpenKeys(const Event& e);

  struct Decided {
    ValueId value;
    bool outcome;
  };
  struct Pending {  // a Python function that bytecode has just called
    PyObject* function = nullptr;
    std::vector<PyObject*> args;
    std::vector<Shadow> shadows;
    std::vector<PyObject*> names;
  };
  class Crossing;
  struct EntryState {  // of one frame; kept for the self-check only
    std::vector<Ref<>> objects;
    int nlocalsplus = 0;
    Ref<> function;
  };
  struct AwaitedResult {  // of the instruction that the base frame stands at
    bool is_awaited = false;
    PyObject* object = nullptr;  // compared only, never read; null: there is none, a loop ends
    Shadow shadow;
    int depth = 0, offset = 0;
  };
  struct SavedGenerator {  // generators.cc
    Ref<> generator;
    std::vector<Shadow> shadows;
    Ref<> function;
    bool is_left = false;  // its frame was the entry frame, or a caller in which the recording continued
    uint32_t epoch = 0;    // of one that existed before: when it was met

    PyCodeObject* code() const { return reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function.get())); }
  };

  void ForgetSince(const GuardRecorder::Mark& guards, const AtenRecorder::Mark& aten);
  void SetPinned(SourceId id, bool pinned) {
    if (pinned_.size() <= id.raw()) pinned_.resize(id.raw() + 16);
    pinned_[id.raw()] = pinned;
  }
  bool IsMutatedDict(PyObject* dict);
  [[noreturn]] static void ThrowMutatedDict();
  static bool HasForeignOperator(PyTypeObject* type);
  [[noreturn]] static void ThrowForeignOperator(PyObject* object);
  bool PartOfMethod(FrameNote& note, PyObject* method, PyObject* name);
  void Watch(PyObject* object);
  void NoteEnd(SourceId id);
  bool IsHeldByPath(SourceId id, PyObject* object) const;
  bool IsHeldByFrame(SourceId id) const;
  void TouchMetaclass(PyTypeObject* type);
  void FixDescriptorKind(PyObject* in_class);
  void RefuseKnownDict(PyObject* owner, PyObject* name);
  void NoteWriter(PyObject* owner);
  void ThrowIfShared(PyObject* owner, PyObject* dict) const;
  void HandOutDict(PyObject* owner, PyObject* dict);
  void ForceWritten(PyObject* owner);
  void WatchMade(PyObject* object);
  void NoteRelease(PyObject* object);
  void MeetRelease(PyObject* object);
  // May code run when it ends with all that it holds? `if_large`: the answer for more objects than are looked at.
  static bool HoldsAnEnd(PyObject* object, bool if_large = true);
  void MeetEffect(Effect::Kind kind, PyObject* target, const std::string& name, PyObject* key);
  Py_ssize_t CountInEffects(PyObject* object) const;
  Py_ssize_t CountOf(PyObject* object, Py_ssize_t in_effects);
  void WatchFrom(PyObject* object, Py_ssize_t in_effects);
  // garbage.cc
  bool DropGarbage(std::vector<Known*>* objects, bool backwards);
  void DropAllGarbage();
  bool DropIfGarbage(Known* known);
  void DropContainers(size_t from);
  bool DropContainer(Known* known);
  bool Settle(PyObject* object);
  void SettleMade();
  void Unsettle();
  void MeetStores(const FrameState& f, const Event& e);
  void MeetStore(PyObject* target, std::initializer_list<PyObject*> values);
  static bool IsScalarType(PyTypeObject* type);
  static bool IsOneOfScalarTypes(PyTypeObject* type);
  void Forget(PyObject* object);

  struct MetIterator {  // one that existed before
    SourceId source;
    SourceId left;  // how many items were left at the entry; none if it takes from other iterators
    bool was_at_end = false;
    bool lost = false;  // what was left at the entry is not known
    int64_t taken = 0;  // by the trace
  };
  struct Taken {  // what an iterator gives: one object, or a new tuple
    bool is_tuple = false;
    Shadow shadow;
    std::vector<Taken> parts;
  };
  struct OpenIterator {  // of the trace's own, over tuples and lists whose numbers or containers are not fixed
    enum class Gives : uint8_t { kItem, kTuple, kNumbered } gives = Gives::kItem;
    std::vector<PyObject*> rows;  // borrowed: the iterator holds them
    Py_ssize_t next = 0;
  };
  using Takes = absl::flat_hash_map<PyObject*, int64_t>;

  void MeetIterator(PyObject* iterator, SourceId source, int depth = 0);
  bool IsWrittenDict(PyObject* dict) const;
  bool Upcoming(PyObject* iterator, SourceId source, Takes* now, Taken* taken);
  bool UpcomingOfAll(PyObject* iterators, SourceId source, Takes* now, Taken* taken);
  bool UpcomingOfOne(PyObject* iterator, SourceId source, const MetIterator& note, int64_t ahead, Taken* taken);
  Shadow UpcomingCount(PyObject* iterator, SourceId source, int64_t skip, int64_t ahead);
  void ForceTaken(const Taken& taken);
  Shadow AdoptTaken(PyObject* object, const Taken& taken);
  void OpenIteratorOver(PyObject* iterator);
  Shadow TakeOpen(PyObject* iterator, PyObject* item);
  void CloseIterator(PyObject* iterator);

  // For the base frame and the lowest `depth` slots of its stack. `left`: the frame that has just ended, or null.
  void RootShadows(FrameState& f, int depth, const FrameState* left = nullptr);
  void KeepEntry(const FrameState& f);
  std::string FaultOf(PyObject* object, Shadow shadow);
  std::string FaultOfItems(PyObject* row, const Known& known);
  std::string FaultOfSource(PyObject* object, SourceId source);
  std::string FaultOfTensor(PyObject* object);
  std::string FaultOfNumber(PyObject* object, ValueId value);
  c10::IValue NumberAt(ValueId value);
  void FixCode(PyObject* function);
  void BindPending(FrameState& f);
  bool IsOpen(PyObject* callable);
  void InvokePython(Call& call, PyObject* function);
  Pending& ExpectFrame(PyObject* function);  // its arguments are for the caller to fill in
  bool PassOn(const Event& e);               // module_calls.cc; false: a call like any other
  void InvokeType(Call& call, PyTypeObject* type);
  void InvokePartial(Call& call);
  void InvokeCached(Call& call);
  SourceId GlobalsOf(FrameState& f);
  static PyObject* ModuleOf(PyObject* globals);  // borrowed; null if no module in sys.modules has this very dict
  void LoadGlobal(FrameState& f, FrameNote& note, const Event& e, PyObject* result, Shadow* out);
  // A global of the frame that no instruction of its own reads, or null.
  PyObject* ReadGlobal(FrameState& f, FrameNote& note, PyObject* name, Shadow* out);
  void RefuseForeign(const Event& e);
  void Import(FrameState& f, FrameNote& note, const Event& e);
  Shadow LoadDeref(FrameState& f, int slot, PyObject* result);
  void StoreDeref(FrameState& f, const Event& e);
  void ShareCell(FrameState& f, int slot);
  SourceId CellSource(FrameState& f, int slot);
  bool IsFixedFunction(const FrameState& f);
  SourceId ClosureCell(SourceId source, PyObject* function, int index);
  void MeetCell(FrameState& f, int slot);
  void ClassAttribute(FrameNote& note, PyTypeObject* type, PyObject* name);
  void AdoptOfClass(PyObject* object, PyTypeObject* type, PyObject* name);
  void InstanceAttribute(FrameNote& note, PyObject* owner, PyObject* name);
  // -- function_attributes.cc --
  bool FunctionAttribute(FrameNote& note, PyObject* function, PyObject* name);
  bool StoreFunctionAttribute(PyObject* function, PyObject* name, PyObject* value, Shadow shadow);
  // -- named_tuples.cc --
  void NamedTupleField(FrameNote& note, PyObject* owner, PyObject* field);
  bool InvokeReplace(Call& call);
  void TensorAttribute(FrameNote& note, PyObject* owner, PyObject* name);
  void ModuleAttribute(FrameNote& note, PyObject* owner, PyObject* name);
  void StoreTensorAttribute(PyObject* owner, PyObject* name, PyObject* value, Shadow shadow);
  void BinaryNumbers(FrameNote& note, const Event& e);
  bool JoinRows(FrameNote& note, PyObject* left, PyObject* right, bool in_place);
  Known* OpenList(PyObject* list, bool holds_open);
  bool EqualTuples(PyObject* a, PyObject* b);
  bool ScalarNode(FrameNote& note, const Event& e);
  bool IsDynamic(SourceId source);
  bool IsDynamic(ValueId value);
  void FixValue(ValueId value, const TensorRead& read, absl::flat_hash_set<ValueId>* seen);
  bool Express(PyObject* object, Shadow shadow, NumberExpr* expr, std::vector<SourceId>* sources);
  bool ExpressValue(ValueId value, NumberExpr* expr, std::vector<SourceId>* sources);
  std::optional<Shadow> TraceSize(ValueId value, int64_t dim, int depth);
  const std::vector<std::optional<SizeExpr>>& RuledSizesOf(ValueId value);
  Shadow UnlessFixed(Shadow shadow) const;
  bool DecideSqueeze(const Node& node);
  void ReadRankOfIndexed(PyObject* tensor, PyObject* key);
  std::optional<Shadow> ShadowOf(const SizeExpr& expr, int depth, int64_t* number);
  struct IntTerm {
    Shadow shadow;         // kNone: `constant`
    int64_t constant = 0;  // counts without a shadow only
    static IntTerm Of(int64_t constant) { return {Shadow(), constant}; }
    static IntTerm Of(Shadow shadow) { return {shadow, 0}; }
    bool is_constant() const { return shadow.kind == Shadow::Kind::kNone; }
    std::pair<int, int64_t> Key() const {
      return {static_cast<int>(shadow.kind), is_constant() ? constant : int64_t{shadow.id}};
    }
    bool operator==(const IntTerm& other) const { return Key() == other.Key(); }
  };
  Shadow Canonical(Shadow shadow) const;
  bool IsNotNegative(const IntTerm& term) const;
  std::optional<std::pair<IntTerm, IntTerm>> MadeBy(ScalarOp op, const IntTerm& term) const;
  std::optional<IntTerm> Simpler(ScalarOp op, const IntTerm& a, const IntTerm& b) const;
  std::optional<IntTerm> Gathered(ScalarOp op, const IntTerm& a, const IntTerm& b);
  std::optional<IntTerm> IntOp(ScalarOp op, IntTerm a, IntTerm b);
  void LeaveOpen(FrameNote& note, PyObject* object, Shadow shadow, OpenNumber at);
  bool LeaveDataOpen(FrameNote& note, PyObject* data, Shadow shadow, int depth);
  void LinkNumbers(FrameNote& note, const Event& e, PyObject* result);
  void LinkData(FrameNote& note, PyObject* result);
  Arg TensorOfNumber(OpenNumber* number, const Type& type);
  bool LinkIndexList(FrameNote& note, PyObject* tensor, PyObject* key, const std::vector<Node*>& made,
                     PyObject* result);
  Shadow ListElements(const FrameNote& note, PyObject* result);
  std::optional<IntTerm> IntInTensor(ValueId tensor);
  void LeaveElementOpen(FrameNote& note, PyObject* object, OpenNumber at);
  bool TakesElement(FrameNote& note, const Node& node);
  bool IsFinaliser(const FrameState& f) const;
  void LinkOperator(FrameNote& note, const std::vector<Node*>& made);
  void LinkCall(FrameNote& note, Node* node);
  bool LinkIndices(FrameNote& note, PyObject* tensor, PyObject* key, const std::vector<Node*>& made);
  void Covers(FrameNote& note, PyObject* tensor, int64_t dim, PyObject* stop, size_t item);
  void Link(OpenNumber* number, Node* node, size_t parameter);
  void ReadAddress(PyObject* object, int depth = 0);
  void ReadOrderOf(PyObject* element);
  Shadow UnpackedItem(const FrameNote& note, const Event& e, PyObject* result);
  Shadow TorchResult(FrameState& f, FrameNote& note, const Event& e, PyObject* result);
  bool GivesBack(const FrameNote& note, const Event& e, PyObject* result);
  bool ErrorsAreSeen() const;
  bool IsKnownToBeNew(const FrameNote& note, const Event& e, const AtenRecorder::KnownTensor& result);
  // Whether a graph may take something for granted: a run that finds it wrong must be able to start over (rollback.h).
  bool may_assume() const {
    return sizes_open() && speculates_ && (!aten_.writes_inputs() || aten_.written_storages() != nullptr);
  }
  void ReadListLength(const Node& node, const Event& e);
  static void RefuseUnknownLength(const Node& node);
  Operand DescribeFresh(PyObject* object, const Known& known);
  Operand EmptyTable(PyTypeObject* type, PyObject* table);
  void DescribeAttributes(PyObject* object, Operand* operand);
  void DescribeFunctionFields(PyObject* object, Operand* operand);
  Operand DescribeInstance(PyObject* object);
  Operand ConstantOperand(PyObject* object);
  void DescribeEffects(SegmentIr* ir);
  bool IsOutsideGenerator(PyObject* object) const;
  void MeetGenerator(PyObject* generator);
  void LeaveGenerator(const FrameState& left, PyObject* generator);
  bool IsInFrames(PyObject* generator) const;
  SnapshotFrame DescribeSuspended(PyObject* generator);
  Operand DescribeGenerator(PyObject* generator);
  void DescribeYields(SegmentIr* ir);
  SnapshotFrame DescribeFrame(FrameState& f, const Mark& mark, bool strict = false);
  Operand DescribeIfPossible(PyObject* object, Shadow shadow);
  void SetMark(FrameState& f, FrameNote& note);
  void ReadState();
  void DescribeState(SegmentIr* ir);
  std::shared_ptr<Segment> Freeze(std::shared_ptr<Segment> segment);
  void Compact(Segment* segment);
  void GuardAgainstAliases();
  void GuardAgainstSharedCells(size_t kept);
  void FixInputSizes(const SegmentIr& ir);
  void FixMarkedSizes();
  bool LeavesInputOpen(SourceId source) const;
  void DescribeExamples(Segment* segment) const;
  bool Decide(PyObject* tensor);  // decisions.cc; false: its truth cannot be a guard
  bool DecisionCone(ValueId value, std::vector<bool>* cone) const;
  void DescribeDecisions(Segment* segment);
  const Position& PositionOf(PyCodeObject* code, int offset);
  PlaceId PlaceOf(size_t frame);  // of `frames_`
  PlaceId PlaceOutside();         // of the calls of modules that the base frame is in
  void NamePaths();               // needs the lock
  SharedText ClassName(PyTypeObject* type);
  ScalarOp NumberOp(const Event& e);
  ValueId NumberValue(Shadow shadow);

  Store& store_;
  // Inlined ones, outermost first. The first is the base: the entry frame, or the caller in which the recording
  // continues.
  std::vector<FrameState*> frames_;
  Ref<> entry_code_, entry_globals_;
  std::string entry_function_;
  bool began_at_break_;
  std::vector<Segment::Caller> callers_;  // as in Segment; the last is the base frame
  AwaitedResult awaited_;
  GuardRecorder guards_;
  AtenRecorder aten_;
  EagerState entry_state_;
  uint16_t entry_backends_;  // as WorldState
  ObjectTable objects_;
  bool knows_ordered_dicts_ = false;        // one of `objects_` is or was an OrderedDict
  std::array<PyObject*, 64> fixed_code_{};  // functions that `guards_` has pinned, asked for last (FixCode)
  StableVector<Known> known_;               // where `objects_` points to
  std::vector<Known*> vacant_;              // of `known_`: of objects that are gone
  absl::flat_hash_map<_PyInterpreterFrame*, SavedGenerator> generators_;
  std::vector<PyObject*> outside_generators_;  // of `generators_`: those that existed before
  // object_ends.cc. Objects whose end runs code, and what they are reached through; kept alive by `guards_`.
  absl::flat_hash_set<PyObject*> ending_;
  // Those that their path may not hold any more, and generators of the trace's own, kept alive by `known_`: how many
  // references effects hold.
  absl::flat_hash_map<PyObject*, Py_ssize_t> watched_;
  bool watches_all_ = false;                 // all of `ending_` are watched
  absl::flat_hash_set<PyObject*> released_;  // what effects have taken from a place; compared only, never read
  std::vector<PyObject*> frame_ends_;        // of `ending_`: those that the base frame holds
  std::vector<Known*> containers_;  // of `known_` that the trace has made, and that may hold tensors in some way
  // garbage.cc. While objects are watched: those of `known_` that the trace has made, in two parts.
  std::vector<Known*> made_, settled_;
  bool settles_ = true;                    // no code has run that is not recorded
  size_t settles_at_ = 0, sweeps_at_ = 0;  // so many of `made_`, of `settled_`
  uint32_t dropped_generator_ = 0;         // when the generator was made with which the recording ends
  size_t made_from_ = 0;                   // of `known_`: from here on they are not in `made_` yet
  absl::flat_hash_map<PyObject*, MetIterator> iterators_;
  absl::flat_hash_map<PyObject*, OpenIterator> open_iterators_;
  std::vector<PyObject*> iterated_;  // by the operation at work, which makes such an iterator
  Taken taken_;                      // by the operation at work
  std::vector<bool> pinned_;         // by SourceId
  bool has_open_cells_ = false;      // of functions that are not fixed
  struct FixedCell {                 // … that are, met before there were such
    PyObject* function;
    int index;  // in its closure
  };
  absl::flat_hash_map<PyObject*, FixedCell> fixed_cells_;
  std::vector<PendingEffect> effects_;
  bool entry_is_handled_ = false;  // an exception at the entry reaches a handler of the frame
  std::vector<Decided> decisions_;
  std::vector<std::pair<int, SourceId>> bound_at_entry_;  // slots of the base frame; invalid: unread
  std::vector<PyObject*> base_cells_;                     // the entry frame's own
  bool has_open_keys_ = false;                            // some table has
  std::vector<Shadow> cells_;                             // content of those that have Shadow::Kind::kCell
  std::vector<Registration> kernels_;                     // as in Segment
  std::vector<Ref<>> constants_;
  absl::flat_hash_map<PyObject*, ConstId> constant_ids_;
  // Tuples that were met as constants of code, and those in them. The compiler makes equal ones one object, so a default
  // or a global may hold it as well.
  absl::flat_hash_map<PyObject*, Ref<>> code_tuples_;
  std::vector<PyObject*> mutated_sources_;
  absl::flat_hash_map<PyObject*, PyObject*>
      dict_writers_;                   // objects' own dicts, and by which object they were written to
  bool has_mutated_dicts_ = false;     // a dict is among them
  std::vector<Ref<>> computed_names_;  // keys of Known::written that are in no code
  Ref<> plain_keys_;                   // of OutsideChanges::stored: a dict, one object for all equal ones
  absl::flat_hash_map<uint32_t, SourceId> number_inputs_;  // graph inputs that are numbers: ValueId -> source
  absl::flat_hash_map<uint32_t, ValueId> number_values_;   // the other way round
  const bool speculates_;                                  // a graph may say what it takes for granted
  const bool has_marks_;                                   // an argument has: a contradiction is taken back
  const Open open_;                                        // numbers that may differ for a graph
  absl::flat_hash_map<std::tuple<ScalarOp, std::pair<int, int64_t>, std::pair<int, int64_t>>, Shadow> int_ops_;
  absl::flat_hash_set<ValueId> not_negative_;                               // of values of ints
  absl::flat_hash_map<std::pair<uint32_t, int64_t>, Shadow> traced_sizes_;  // of a value, along a dimension
  struct RuledSizes {
    std::vector<std::optional<SizeExpr>> of_dims;
    size_t naturals = 0;  // how many of `not_negative_` there were
  };
  std::unordered_map<uint32_t, RuledSizes> ruled_sizes_;  // of a value
  absl::flat_hash_map<std::pair<PyCodeObject*, int>, Position> positions_;
  absl::flat_hash_map<std::tuple<PyObject*, PyObject*, PyObject*>, SourceId> globals_read_;  // dict, builtins, name
  absl::flat_hash_map<std::pair<PyCodeObject*, PyObject*>, bool> stores_;                    // StoresAttribute
  absl::flat_hash_map<PyCodeObject*, PositionTable> tables_;                                 // of the codes met
  absl::flat_hash_set<ValueId> sizes_read_, strides_read_;  // values whose sizes follow from guarded facts
  absl::flat_hash_map<PyObject*, int64_t> labels_;          // containers described so far (-1: not finished)
  std::vector<PyObject*> labelled_;                         // in that order
  std::vector<Ref<>> described_;                            // objects made while describing
  int64_t next_label_ = 1;
  CollectorPause collector_;
  bool ends_with_break_ = false;
  int autocast_nesting_ = 0;
  struct ContextSet {
    PyObject* variable;  // fixed, and so kept
    uint32_t epoch;
  };
  std::vector<ContextSet> context_sets_;             // in their order
  size_t LastContextSet(PyObject* variable) const {  // their number, if there is none
    size_t i = context_sets_.size();
    while (i > 0 && context_sets_[i - 1].variable != variable) --i;
    return i > 0 ? i - 1 : context_sets_.size();
  }
  std::string entry_text_;
  std::unique_ptr<UndoLog> undo_;              // null: nothing can be taken back
  std::unique_ptr<FirstValues> first_values_;  // for backends that ask for them only
  const bool in_anomaly_mode_;
  std::unique_ptr<RepeatedCalls> repeated_calls_;
  Places places_;
  // For a recording that begins in the middle of a program:
  const FrameState* outermost_ = nullptr;  // the captured function's frame, once an op was recorded
  std::optional<PlaceId> outside_;         // the calls of modules that the base frame is in
  absl::flat_hash_map<PyTypeObject*, SharedText> class_names_;
  struct {  // module_calls.cc: what all calls of modules read, once one has (borrowed)
    PyObject* globals = nullptr;
    std::array<PyObject*, 4> hooks = {};
  } call_globals_;
  PyObject* without_hooks_ = nullptr;  // borrowed: of the last _wrapped_call_impl that was crossed, if it had one
  Pending pending_;
  bool has_pending_ = false;
  std::optional<CheckpointAtWork> checkpoint_;
  Mark mark_;  // where the segment is cut, once it ends with a break
  // Of the thread, as far as what runs could have changed them.
  EagerState state_now_;
  uint16_t backends_now_ = 0;
  uint32_t epoch_ = 1;
  std::vector<EntryState> entry_;                       // the entry frame, its caller …
  absl::flat_hash_map<uint32_t, c10::IValue> numbers_;  // by ValueId: what graph values of numbers came to
  Counted<"recordings"> counted_;

  friend class Session;
  friend class RepeatedCalls;
};

// Shadows and names of the operands of a call event.
Call CallOf(Recorder& recorder, FrameState& f, FrameNote& note, const Event& e);

// The arguments of `f(*args, **kwargs)`, after the ones in `call`: of a Call, or of a Python function that has been
// called.
template <class AnyCall>
void AddSpread(Recorder& recorder, const Event& e, AnyCall* call) {
  PyObject* args = e.in[1];
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i) {
    call->args.push_back(PyTuple_GET_ITEM(args, i));
    call->shadows.push_back(recorder.ElementShadow(args, i));
  }
  if (e.n < 3 || e.in[2] == nullptr) return;
  Py_ssize_t at = 0;
  PyObject *key, *value;
  while (PyDict_Next(e.in[2], &at, &key, &value)) {
    call->args.push_back(value);
    const Shadow* const open = recorder.StoredItem(e.in[2], key);
    call->shadows.push_back(open != nullptr ? *open : Shadow());
    call->names.push_back(key);
  }
}

}  // namespace frametap
