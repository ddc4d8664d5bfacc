// Reifier: makes objects of operands, and commits effects, after the graph of a segment has run.
//   Z1  Everything that can fail is made before the first effect is committed.
//   Z2  A container that occurs twice is made once (labels), and so is a number: NaN is found by identity.
#pragma once

#include <Python.h>

#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "frame_eval/segment.h"

namespace frametap {

// The way in which a kNew operand is made again. items: [content] or the parts named, then the slots of an instance (a
// descriptor and its value). After them, one for each of `names`: the entries of its __dict__.
enum class NewKind : int64_t {
  kObject,     // object.__new__(type), attributes
  kDict,       // an instance of a dict subclass: content, attributes
  kTuple,      // an instance of a tuple subclass: content, attributes
  kFunction,   // code, globals, qualname, defaults, kwdefaults, closure; attributes
  kPartial,    // func, args, keywords; attributes
  kRange,      // start, stop, step
  kFrozenSet,  // its elements, in the order in which it gives them
  kDeque,      // content, maxlen
  kProxy,      // the dict
  kHashed,     // a dict, set or frozenset: the hashes that its keys gave in the recording, and its items
};

class Reifier {
 public:
  // Right after the hit: takes the objects at the sources that operands name, before other threads check the same
  // segment.
  explicit Reifier(const Segment& segment);
  void set_outputs(std::vector<c10::IValue> outputs) { outputs_ = std::move(outputs); }  // as segment.ir.graph.outputs

  Ref<> Make(const Operand& operand);  // empty with a Python exception; a kNull operand gives an empty Ref without one
  bool Prepare();                      // makes all operands of the effects
  bool Commit();                       // performs the effects in order
  bool MakeContent(const SnapshotFrame& frame, FrameContent* content);  // false with a Python exception
  // After Prepare: how the frame of a generator that runs is left, which is then not Commit's. Null if no effect says.
  const SnapshotFrame* TakeYield(const _PyInterpreterFrame* of, FrameContent* content);

 private:
  Ref<> MakeNew(const Operand& operand);
  Ref<> MakeGenerator(const Operand& operand);
  Ref<> FromValue(ValueId id);
  bool Fill(const Operand& operand, size_t first, std::vector<Ref<>>* items);

  struct Made {
    Ref<> target, key, value;
    FrameContent content;
  };

  const Segment& segment_;
  std::vector<c10::IValue> outputs_;
  std::vector<Ref<>> sources_;  // as segment.operand_sources
  absl::flat_hash_map<int64_t, Ref<>> shared_;
  absl::flat_hash_map<int64_t, Ref<>> numbers_;  // by their values of the graph
  // Positions of iterators are set after the effects: a list may have grown by these.
  std::vector<std::pair<Ref<>, Ref<>>> states_;
  std::vector<Made> effects_;
};

// The method that an effect on `target` calls. That of a container is its builtin type's: a class made of that may have
// overridden it, and what the override did is in the graph and the other effects.
Ref<> EffectMethod(PyObject* target, PyObject* name);

// Decision `i` as a guard shows it: on the first tensor that it reads.
GuardLine DecisionLine(Segment& segment, size_t i);

// After a hit of the segment's guards: returns whether its branches on tensors have the recorded outcomes
// (decisions.cc). A miss is reported in `miss`, which may be null.
bool DecisionsHold(Segment& segment, MissReport* miss);

// Tells executables whether kernels were registered from Python (A3 of ir/ops/below_autograd.h): before one is made or run.
void NotePythonKernels();

// How a run of a graph ended. But for the first three nothing was changed, so that plain Python may run instead.
enum class Ran : uint8_t {
  kThrough,
  kRaised,    // with a Python exception
  kBroken,    // with one that is a fault (faults.h)
  kFault,     // likewise
  kOpRaised,  // an op did, run as recorded: the exception is pending
  kUndone,    // for a reason that is not reported; a Python exception may be pending
  kRefused,   // not run: what it writes could not be taken back (rollback.h)
};

// Gathers inputs (so: right after the hit), runs the graph (without Python's lock where the executable allows it).
Ran RunGraph(Segment& segment, std::vector<c10::IValue>* outputs);

}  // namespace frametap
