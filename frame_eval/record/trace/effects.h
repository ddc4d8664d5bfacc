// Effects: the observable changes of a recording, in their order, and how they can be taken back.
//   E1  Between two marks the list only grows. Rewind cuts it back.
//   E2  Objects, and not descriptions, are kept: a container that is stored first and filled later is stored as it is
//       at the end.
// Not here: what an effect means for the records (knowledge.h), its description (describe.h).
#pragma once

#include <Python.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "frame_eval/interpreter/shadow.h"
#include "frame_eval/record/trace/first_values.h"
#include "frame_eval/record/trace/undo.h"
#include "guards/ref.h"
#include "ir/graph/position.h"
#include "ir/segment/segment_ir.h"

namespace frametap {

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

struct Effects {
  using Mark = size_t;
  Mark Now() const { return pending.size(); }
  void Rewind(Mark mark) { pending.resize(mark); }

  std::vector<PendingEffect> pending;
  std::unique_ptr<UndoLog> undo;              // null: nothing can be taken back
  std::unique_ptr<FirstValues> first_values;  // for backends that ask for them only
};

}  // namespace frametap
