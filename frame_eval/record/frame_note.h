// FrameNote: what a recording, and the session around it, know about one frame.
#pragma once

#include <Python.h>

#include <bit>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/interpreter/tracer.h"
#include "frame_eval/record/trace/aten_recorder.h"
#include "frame_eval/record/trace/effects.h"
#include "frame_eval/record/trace/thread_changes.h"
#include "frame_eval/segment/places.h"
#include "frame_eval/segment/segment.h"
#include "frame_eval/state/aten_pause.h"
#include "guards/collect/guard_recorder.h"
#include "ir/graph/builtin_op.h"

namespace frametap {

struct ArrayCall;

// The kind of a result that After records; set by Before.
struct ResultSpec {
  enum class Kind : uint8_t {
    kAny,       // a scalar is constant; an object is known, or becomes fresh with its elements
    kSource,    // the object at `source`
    kShadow,    // `shadow`
    kTorch,     // results of recorded ops
    kItems,     // a fresh tuple whose elements have the shadows `items`
    kGivenRow,  // a fresh row of tuples that an iterator has given (Iteration::given)
    kGiven,     // one of several items that an iterator has given, with the shadows `items`
    kOpen,      // what an iterator over numbers that are not fixed has given
    kTaken,     // what an iterator that existed before has given (iterators.cc)
    kData,      // x.data: shares the memory of the graph value in `shadow`, and nothing else
    kPinned,    // an object that a class or module holds: known by identity
    kNothing,   // no result, or of no interest
  };
  Kind kind = Kind::kAny;
  SourceId source;
  bool pinned = false;
  Shadow shadow;
  std::vector<Shadow> items;
  PyObject* answer = nullptr;  // borrowed: the result itself, where finding out about it was the whole operation

  void SetShadow(Shadow known) {
    kind = Kind::kShadow;
    shadow = known;
  }
  void SetSource(SourceId id, bool is_pinned = false) {
    kind = Kind::kSource;
    source = id;
    pinned = is_pinned;
  }
  void SetItems(std::vector<Shadow> known) {
    kind = Kind::kItems;
    items = std::move(known);
  }
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
  Effects::Mark effects = 0;
  ThreadChanges::Mark thread;
  size_t decisions = 0;
  int offset = 0;
  int depth = 0;
  uint32_t epoch = 0;
};

// The values that a replayed exit puts into a frame before it continues.
struct FrameRestore {
  bool leaves = false;  // it returns `result`, and nothing else counts …
  Ref<> result;
  const SnapshotFrame* yields = nullptr;  // … or it yields, and stays with `content`
  std::shared_ptr<Segment> segment;
  size_t frame = 0;  // of the exit
  FrameContent content;
  std::vector<FrameRestore> above;  // the frames that this one calls first, outermost last
};

// A number that is not fixed, on its way to an op (symbolic_args.cc).
struct SymbolicNumber {
  PyObject* object = nullptr;  // borrowed
  Shadow shadow;
  int position = -1;         // of the argument, `self` included; -1: by name
  PyObject* name = nullptr;  // borrowed
  int item = -1;             // of a tuple or list; -1: the argument itself
  int part = -1;             // of a slice: start, stop, step
  bool linked = false;       // a node takes it
  ValueId tensor;            // valid: `object` is this tensor of one number, and the binding may take …
  Number element;            // … its element for it (x.view(t, 4), x.add(y, alpha=t))
  Shadow computed;           // what is known of the element without looking at the tensor …
  bool is_constant = false;  // … or that it is a constant
  bool is_taken = false;     // the binding has asked for it
};

// Findings of Before about an operation, for After. They stand together, as nearly each operation has none of them.
struct OperationMarks {
  bool converts = false;        // float(x), int(x) of a tensor
  bool calls_function = false;  // apply of torch.autograd.Function; its ops are behind `before_nodes`
  bool follows_kernel = false;  // … or an op, whose kernels' frames have come
  bool hides_ops = false;       // a block of inference mode begins or ends, x.data = y; the key of ops is off meanwhile
  bool makes_tensor = false;    // of the numbers in `open`, which are all that the data has (torch.tensor)
  bool makes_iterator = false;  // over rows of which something is not fixed (OpenIterator)
  bool makes_parameter = false;  // nn.Parameter(…)
  bool has_open_keys = false;    // a display of a dict or set (open_keys.cc)

  bool any() const { return std::bit_cast<uint64_t>(*this) != 0; }
};

// Notes about one operation, from Before to After.
struct OperationState {
  bool in_event = false;          // between Before and After: frames that come now belong to the recording
  bool own_effect = false;        // what the operation itself does was written down as an effect
  bool opaque_operation = false;  // frames that the operation starts do not belong to the recording
  ResultSpec expect;
  // The result of the last Python frame called from here.
  PyObject* returned = nullptr;  // compared only, never read
  Shadow returned_shadow;
  // For the running C function that dispatches (TorchCall): its name, its arguments, and the parts of them that wait
  // for the node.
  const char* torch_name = "";
  size_t torch_positional = 0;
  uint64_t torch_ints = 0;  // bit i: positional argument i is an int
  int unpacks = 0;          // the argument of the instruction that unpacks
  absl::InlinedVector<SymbolicNumber, 2> open;
  bool is_index = false;  // x[…] of a tensor
  OperationMarks marks;
  PyObject* listed = nullptr;         // borrowed: the tensor whose elements are asked for (x.tolist())
  PyObject* collects = nullptr;       // borrowed: the generator whose items the result has, and nothing else (tuple(g))
  std::shared_ptr<ArrayCall> arrays;  // the call of NumPy that is at work (array_nodes.h)
  size_t nodes_before = 0;
  AtenRecorder::Mark before_nodes;  // of the function, or of the kernel
  size_t effects_before = 0, decisions_before = 0, mutated_before = 0;
  int64_t taken_before = 0;  // from iterators that existed before
  // Arguments of a class's call that are open for its __new__ alone (InvokeType), and the class. Anything else that
  // comes to see them fixes them.
  absl::InlinedVector<Shadow, 4> for_new;
  PyTypeObject* called_type = nullptr;  // borrowed

  // Drops what an operation has left that raised, or that a recording saw begin which was given up since.
  void ForgetOperands() {
    open.clear();
    for_new.clear();
    called_type = nullptr;
    is_index = false;
    marks = OperationMarks();
    listed = nullptr;
    collects = nullptr;
    arrays.reset();
  }
};

// Notes about a frame while it is part of a recording. They end with it (FrameNote::Part): another recording must not
// believe them.
struct FrameRecord {
  bool is_clean = true;                  // nothing has been noted
  bool inlined = false;                  // part of the recording
  bool direct = false;                   // called by bytecode of the frame below: shadows came with the call
  std::optional<Places::Module> module;  // that it calls
  PlaceId place = kNowhere;              // where it stands, if `place_offset` is its offset
  int place_offset = -1;
  bool to_cross = false;         // its first instruction is where a call of a module is crossed
  bool passes_on = false;        // it was: it stands at the call with which it passes its arguments on
  size_t containers_before = 0;  // of ObjectRecords::containers
  // An exit can rebuild this frame by making its caller's call again (direct_calls.h). The entry frame needs no rebuilding.
  bool rebuildable = false;
  bool marked = false;  // `mark` is the mark of the instruction at work
  Mark mark;
  OperationState op;
};

// Notes of the session about a frame, while nothing records: where a segment may begin, and what an exit puts into it.
struct EntryState {
  // For a frame that an exception of the program may leave (IsCaughtAt of session_parts.h).
  struct Handling {
    int handlers = 0;        // of the frame, when it was raised
    bool has_begun = false;  // the frame handles it
    bool is_first = false;   // … and the next instruction is the first to do so
  };
  std::optional<Handling> handling;
  bool at_entry = false;  // the next instruction is an entry point
  bool skip_one = false;  // the breaking instruction is to run before the next entry
  int wait_offset = -1;   // the same, once the frame gets there
  std::unique_ptr<FrameRestore> restore;
  // Frames that an exit continues in and that have not come yet: this one calls the last.
  std::vector<FrameRestore> awaited;
};

struct FrameNote : FrameRecord {
  // The frame becomes part of a recording.
  void Join() {
    if (!is_clean) Part();
    is_clean = false;
    inlined = true;
  }
  // The recording has ended, or lets go of the frame.
  void Part() {
    static const FrameRecord nothing = {};
    static_cast<FrameRecord&>(*this) = nothing;
  }

  EntryState entry;
  // As long as the frame lives:
  FrameState* caller = nullptr;        // the frame of the session that was the innermost one when this one came
  std::optional<AtenPause> suspended;  // a frame without a caller (a finaliser): its ops are not recorded
  int lifted = 0;                      // … pauses that are lifted while it runs (checkpoint_nodes.h, kernel_nodes.h)
  bool is_kernel = false;              // of an op: the dispatcher has called it
};

inline FrameNote& NoteOf(const FrameState& f) { return *static_cast<FrameNote*>(f.tracer_data); }

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

}  // namespace frametap
