// Segment: the frozen product of one recording with guards, graph, effects, exit, and their run-time data.
//   X1  Immutable after publication, except the counters, `sizes_that_ran`, `free_rows`, the executable and the words.
//       All of these change under Python's lock.
//   X2  Constants are held strongly; objects of the recording call and weights are not.
// SegmentCache: all entry points of one compiled function.
#pragma once

#include <Python.h>

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "backends/backend.h"
#include "frame_eval/segment/entry_point.h"
#include "frame_eval/segment/graph_inputs.h"
#include "frame_eval/segment/places.h"
#include "frame_eval/segment/registrations.h"
#include "frame_eval/segment/weak_tensor.h"
#include "guards/check/guard_tree.h"
#include "guards/ref.h"
#include "ir/leaks.h"
#include "ir/segment/segment_ir.h"

namespace frametap {

// Beside the locals and the stack of a SnapshotFrame.
struct FrameContent {
  std::vector<Ref<>> locals, stack;
};

struct Segment : std::enable_shared_from_this<Segment> {
  SegmentIr ir;
  std::unique_ptr<GuardTree> guards;
  std::shared_ptr<Executable> executable;
  std::shared_ptr<Executable> decisions;                // null: none
  std::vector<Ref<>> constants;                         // by ConstId
  std::vector<Ref<>> effect_names;                      // beside ir.effects, interned: so that committing makes nothing
  std::vector<SourceId> input_sources;                  // beside ir.graph.inputs
  std::vector<std::unique_ptr<InputBuffer>> free_rows;  // that no run has (graph_inputs.h)
  std::vector<SourceId> operand_sources;                // sources that operands of exit and effects name, each once
  Examples examples;                                    // inputs of the recording, until the graph is compiled
  Places places;
  std::vector<PlaceId> node_places, decision_places;  // beside ir.graph.nodes, ir.decisions.graph.nodes
  std::vector<WeakTensor> weights;       // beside ir.graph.inputs: known where the input is a parameter or buffer
  bool restartable = true;               // no op writes to a tensor that existed before, none uses random numbers
  std::vector<uint32_t> written_inputs;  // inputs to whose memory ops write
  bool undoable = false;                 // not restartable, but rollback.h can make it so
  bool uses_random = false;
  bool refuted = false;   // a run found that what the graph takes for granted is not so: it fits no more
  bool given_up = false;  // its executable raised too often by itself (faults.h): plain Python runs its calls
  int faults = 0;
  size_t ops_met = 0;               // of the recording: as many as plain Python comes to (stress.h)
  bool raises_on_elements = false;  // an op after the first change may raise for some elements of its arguments
  bool errors_are_seen = false;     // … and the program would see more of it than an exception at the segment's start
  absl::flat_hash_set<uint64_t> sizes_that_ran;  // inputs of these sizes have run through
  std::vector<Registration> kernels;             // of ops whose kernels the recording followed (kernel_nodes.h)
  uint64_t hits = 0;
  double recording_seconds = 0;    // the call that was watched and the backend's work included
  std::vector<Ref<>> frame_codes;  // beside ir.exit.frames
  // The frames above the entry frame that the segment goes on in, nearest first: what they run, and the call at which
  // they stand. Its exit leaves that many frames.
  struct Caller {
    Ref<> code, globals;
    int offset = 0;
  };
  std::vector<Caller> callers;
  Ref<> code;     // the entry frame's code object
  Ref<> globals;  // of the entry frame's function: another one of the same code may have others
  int entry_offset = 0;

  // `ir` with the parts that are put in words when they are first needed, as most segments are never shown: guards,
  // sources, places of nodes, names of values, symbols of sizes.
  const SegmentIr& Shown();
  // Whether a handler, `finally` or `with` of the recorded frames waits for an exception of some op.
  bool ErrorsAreHandled() const;

 private:
  bool shown_ = false, errors_are_handled_ = false;
  Counted<"segments"> counted_;
};

// One line of a compiled function's history.
struct LogEntry {
  enum class Kind : uint8_t {
#define LOG_KIND(kind, word, asked) kind,
#include "frame_eval/segment/log_kinds.def"
#undef LOG_KIND
  };
  Kind kind;
  std::string segment;  // name of the segment recorded, missed or ended
  std::string reason;   // row name
  std::string text;     // in words
  std::string advice;
  Position at;
  MissReport miss;
  std::string inside = {};  // as in Break
};

constexpr std::string_view WordOf(LogEntry::Kind kind) {
  constexpr std::string_view kWords[] = {
#define LOG_KIND(kind, word, asked) word,
#include "frame_eval/segment/log_kinds.def"
#undef LOG_KIND
  };
  return kWords[static_cast<size_t>(kind)];
}

// Which numbers may differ from call to call without a new recording.
enum class Dynamic : uint8_t {
  kNever,   // none; sizes and strides of every input are guarded
  kAuto,    // sizes, arguments, and what has been seen to change
  kAlways,  // all that ops take as they are
};

struct Options {
  bool fullgraph = false;
  Dynamic dynamic = Dynamic::kAuto;
  int segment_limit = 64;  // of one entry point
  // Modules and functions are guarded by which they are: a segment belongs to these parameters only.
  bool by_identity = false;
  // Where the backend approximates, the recorded call is taken back and replayed, so that it has the values of all
  // other calls. Segments are never too many: at the limit, all are forgotten.
  bool answers_by_replay = false;
  bool strict = false;  // a fault of a replay (faults.h) is an error
};

class SegmentCache {
 public:
  static constexpr int kMaxDenials = 3;
  static constexpr size_t kMaxLog = 4096;

  SegmentCache(Ref<> function, std::shared_ptr<Backend> backend, Options options)
      : function_(std::move(function)), backend_(std::move(backend)), options_(options) {}

  EntryPoint* Find(PyCodeObject* code, int offset);  // null if there is none
  EntryPoint& FindOrAdd(PyCodeObject* code, int offset);
  void Publish(std::shared_ptr<Segment> segment);
  void Hit(Segment& segment);
  void MoveToFront(PyCodeObject* code, int offset, const Segment& segment, const Roots& roots);  // it was hit
  std::vector<std::shared_ptr<Segment>> segments() const { return order_; }
  void Reset();
  void Log(LogEntry entry);
  // A call that continues in plain Python from here: logged the first time. A position is worked out then only.
  void LeftAlone(Reason reason, PyCodeObject* code, int offset);
  int Traverse(visitproc visit, void* arg) const;

  PyObject* function() const { return function_.get(); }
  Backend& backend() { return *backend_; }
  std::shared_ptr<Backend> shared_backend() const { return backend_; }
  const Options& options() const { return options_; }
  std::deque<LogEntry>& log() { return log_; }
  std::string NextName(const std::string& function);
  bool FirstTold(const std::string& what) { return told_.insert(what).second; }
  // Notes a place, by the name of its source, for which a segment has missed: a number, an object or a length. It is left
  // open from then on.
  void NoteChanging(const std::string& source) {
    changing_.insert(source);
    changing_hashes_.insert(HashOf(source));
  }
  bool IsChanging(const std::string& source) const { return changing_.contains(source); }
  // Returns false if no such place has the hash (HashOf): most names need not be made.
  bool MayBeChanging(uint64_t hash) const { return changing_hashes_.contains(hash); }
  bool has_changing_numbers() const { return !changing_.empty(); }
  // A segment whose backend takes sizes for constants has missed for one: the next leave them open.
  void NoteOtherSizes() { other_sizes_ = true; }
  bool has_other_sizes() const { return other_sizes_; }
  // Functions under functools.lru_cache whose entries later recordings guard by which objects they are.
  void NoteByIdentity(PyObject* cached);
  bool IsByIdentity(PyObject* cached) const;
  // Whether graphs may take for granted what a run has to find out; not any more once that was not so.
  bool speculates() const { return speculates_; }
  void StopSpeculating() { speculates_ = false; }

  uint64_t recordings = 0;
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t faults = 0;           // exceptions of replays that the program does not raise (faults.h)
  double recording_seconds = 0;  // of recordings that were given up, too

 private:
  using Key = std::pair<PyCodeObject*, int>;
  Ref<> function_;
  std::shared_ptr<Backend> backend_;
  Options options_;
  absl::flat_hash_map<Key, std::unique_ptr<EntryPoint>> entries_;
  absl::flat_hash_map<PyCodeObject*, Ref<>> codes_;  // keeps keys alive
  std::vector<std::shared_ptr<Segment>> order_;
  absl::flat_hash_map<std::string, int> names_;
  std::deque<LogEntry> log_;
  absl::flat_hash_set<std::string> told_, changing_;
  absl::flat_hash_set<uint64_t> changing_hashes_;
  absl::flat_hash_map<PyObject*, Ref<>> by_identity_;  // with weak references
  bool speculates_ = true;
  bool other_sizes_ = false;
  Counted<"stores of segments"> counted_;
};

}  // namespace frametap
