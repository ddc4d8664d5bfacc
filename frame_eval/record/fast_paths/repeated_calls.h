// RepeatedCalls: calls of modules that repeat one of the same recording. A model is made of layers of a few classes.
// The record of one call (reads of its module, ops with their arguments) is kept, and the next call is not
// interpreted. The reads of the first must hold for it, too, and the ops run on its own weights. The recording gets
// the same content as from interpretation. That takes a fraction of the time, and less than plain Python.
//   P1  A call is repeated only where its code cannot see a difference. The class must be the same, and all reads of
//       the module (GuardRecorder::Repeat). Objects that were one must be one again, and none of them was known
//       before. All facts of tensors other than elements must be the same. Only `requires_grad` of an argument may
//       differ, if the code has read it of no tensor. The thread's state must be the same. Arguments that are not
//       tensors must be identical. The trace has changed nothing so far.
//   P2  A call is repeated only if it did nothing except read, run pure ops of ATen (they may draw random numbers on
//       the CPU) and return one of their results or an argument. Its outcome must not rest on an address (Invalidate). No
//       call is repeated while ends of objects are noted.
//   P3  Facts of values that the call has asked for are asked for again, of the values now: what they rest on is guarded.
//   P4  A misfit is taken back, random numbers too, and the call is interpreted. Ops may have run twice then.
//   P5  Self-check: every other repetition is taken back, the call is interpreted, and both must have said the same.
// Not here: the second call of one module, which is interpreted.
#pragma once

#include <Python.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "frame_eval/record/trace.h"
#include "guards/kinds/tensor.h"

namespace frametap {

// For tests. Gives whether calls were repeated before.
bool RepeatModuleCalls(bool on);
uint64_t RepeatedModuleCalls();  // so many were

class RepeatedCalls {
 public:
  explicit RepeatedCalls(Trace& trace) : trace_(trace) {}
  // None if calls are not repeated here, in no recording that begins now.
  static std::unique_ptr<RepeatedCalls> For(Trace& trace);

  // A module is about to be called (Op::kCall). Returns its result if it could be repeated, or null if the call is
  // made and kept.
  Ref<> Call(const FrameNote& note, const Event& e);
  void Returned(const FrameNote& note, const Event& e, PyObject* result);  // of any call
  void Invalidate();                                                       // the calls at work cannot be repeated
  void Forget() { open_.clear(); }                                         // … are not seen to return, or raise
  void DropFrom(size_t nodes);                                             // nodes from this one on are going
  const std::string& fault() const { return fault_; }                      // self-check

  // An object that is known by a source is at hand, `by_path` or as a result of code. It may lead to the called
  // module, or be that module by another path than the call's. Reads through it then look like reads of the module.
  void Meet(const ObjectRecord& known, bool by_path) {
    if (!open_.empty() && known.state == ObjectRecord::State::kSource) [[unlikely]]
      MeetSource(known.source, by_path);
  }

  // Reads of tensors and values meanwhile.
  void NoteRequiresGrad() {
    for (Open& call : open_) call.memo.asks_grad = true;
  }
  void NoteRead(SourceId source, ValueId value, bool sizes, bool strides) {
    Note({Read::Kind::kTensor, source, value, sizes, strides, 0, Shadow()});
  }
  void NoteRank(SourceId source, ValueId value) { Note({Read::Kind::kRank, source, value, false, false, 0, Shadow()}); }
  void NoteSize(SourceId source, ValueId value, int64_t dim, Shadow size) {
    if (open_.empty()) return;
    const bool is_ranked = reads_.size() > open_.back().memo.from.reads && reads_.back().kind == Read::Kind::kRank;
    if (is_ranked && reads_.back().value == value) reads_.pop_back();  // a size asks for the rank by itself
    Note({Read::Kind::kSize, source, value, false, false, dim, size});
  }

 private:
  struct Read {
    enum class Kind : uint8_t { kTensor, kRank, kSize } kind;
    SourceId source;  // of a tensor that existed before
    ValueId value;    // of a known tensor: may be invalid
    bool sizes, strides;
    int64_t dim;
    Shadow size;
  };
  // All facts of a strided tensor other than its elements. `Numbers`: Sizes, or a view of the sizes of an existing
  // tensor.
  template <class Numbers>
  struct FactsIn {
    TensorGuard::Basics basics{};
    Numbers sizes, strides;
    int64_t offset = 0;

    static FactsIn Of(PyObject* tensor);
    friend bool operator==(const FactsIn&, const FactsIn&) = default;
  };
  using Facts = FactsIn<Sizes>;
  using FactsNow = FactsIn<c10::IntArrayRef>;
  struct Argument {
    Ref<> scalar;  // null: a tensor
    Shadow shadow;
    const c10::TensorImpl* impl = nullptr;  // compared only
    SourceId source;                        // of a tensor that existed before the recording, and
    bool unread = false;                    // … nothing was read of it before the call (and but sizes in it)
    ValueId value;                          // of one that existed: invalid if no op has taken it
    Facts facts;

    bool existed() const { return source.valid(); }
  };
  // For the thread.
  struct ThreadStateSnapshot {
    EagerState state;
    uint16_t backends;
    int autocast_nesting;
    friend bool operator==(const ThreadStateSnapshot&, const ThreadStateSnapshot&) = default;
  };
  // A call, as it was made.
  struct CallSignature {
    PyTypeObject* type = nullptr;
    SourceId module;
    bool pinned = false;  // as ObjectRecord's
    GuardRecorder::Said said = GuardRecorder::Said::kMore;
    Ref<> names;  // of its last arguments; null: none
    std::vector<Argument> args;
    ThreadStateSnapshot thread_state;
  };
  struct TraceMark {
    GuardRecorder::Mark guards;
    AtenRecorder::Mark aten;
    Places::Mark places;
    size_t reads = 0;
  };
  // The outcome.
  struct MemoEntry {
    CallSignature signature;
    TraceMark from, to;
    PlaceId site = kNowhere;
    int given_back = -1;  // argument
    bool is_random = false;
    bool asks_grad = false;  // whether a tensor requires grad
    ValueId result;          // if none was given back
    enum class Use : uint8_t { kUnknown, kGood, kNone } use = Use::kUnknown;
    GuardRecorder::Part part;  // kGood; as are these
    // Beside part.sources. Of which it was read which one it is, or what is known by a source that is not in the part, is
    // the same object again; another one is as new as it was, or that of the source before which was the same, too.
    struct Meeting {
      enum class Kind : uint8_t { kScalar, kShared, kNew, kAgain } kind = Kind::kScalar;
      SourceId first;
    };
    std::vector<Meeting> meetings;
    std::vector<Read> reads;
    // Nodes, each after the one before, and values that are not needed after them, by their numbers relative to
    // from.aten.values.
    std::vector<std::pair<size_t, size_t>> last_uses;
    uint32_t times = 0, misfits = 0, checks = 0;
  };
  // Everything one call recorded; the self-check compares two of these.
  struct TraceSlice {
    std::vector<std::array<uint64_t, 4>> guards;
    size_t values = 0;  // that there were before
    std::vector<Node> made;
    std::vector<PlaceId> places;
    int given_back = -1;
    ValueId result;
  };
  struct Open {
    const FrameNote* note;
    size_t depth;
    MemoEntry memo;
    std::optional<TraceSlice> expected;
  };
  class Attempt;

  void Note(const Read& read) {
    if (!open_.empty()) reads_.push_back(read);
  }
  void MeetSource(SourceId source, bool by_path);
  bool MayRepeat() const;
  TraceMark Now() const;
  ThreadStateSnapshot ThreadStateNow() const;
  std::optional<CallSignature> SignatureOf(const Event& e) const;
  bool AreAlike(const MemoEntry& memo, const CallSignature& is) const;
  bool IsGood(MemoEntry* memo);
  static int ArgumentOf(const CallSignature& signature, const Read& read);
  static int GivenBack(const Event& e, PyObject* result);
  bool HasGoodNodes(MemoEntry* memo) const;
  TraceSlice SliceSince(const TraceMark& moment, PyObject* result, const Event& e) const;
  std::string Difference(const TraceSlice& expected, const TraceSlice& got) const;

  Trace& trace_;
  std::vector<Open> open_;  // calls at work, outermost first
  std::vector<Read> reads_;
  absl::flat_hash_map<PyTypeObject*, std::vector<std::unique_ptr<MemoEntry>>> memos_;
  std::string fault_;
};

}  // namespace frametap
