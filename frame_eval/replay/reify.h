// Reifier: makes objects of operands, and commits effects, after the graph of a segment has run.
//   Z1  Everything that can fail is made before the first effect is committed.
//   Z2  A container that occurs twice is made once (labels), and so is a number: NaN is found by identity.
#pragma once

#include <Python.h>

#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "frame_eval/segment/segment.h"

namespace frametap {

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

}  // namespace frametap
