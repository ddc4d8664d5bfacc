// SegmentIr: the text-able part of a segment with entry, guards, graph, effects, exit. Runtime objects (guard tree,
// executable, pins) live in frame_eval/segment/segment.h and refer to this by index.
//   T1  print(parse(t)) == t for every text t that the printer can produce.
//   T2  parse(print(s)) == s up to what the text leaves out (file names, tensor data of constants, callers, scopes,
//       recorded sizes that follow from numbers of the graph).
//   T3  verify(s) holds for every segment that is frozen, and for every text that parses.
// Not here: what the guards mean at run time (guards/).
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph/graph.h"
#include "ir/graph/ids.h"
#include "ir/graph/position.h"
#include "ir/segment/predicate.h"
#include "ir/segment/reason.h"
#include "ir/segment/source.h"
#include "ir/segment/state.h"

namespace frametap {

struct SnapshotFrame;

// Operand: the origin of the value of a slot, an effect or a result; a tree for objects that the trace built.
struct Operand {
  enum class Kind : uint8_t {
#define OPERAND(kind, word) kind,
#include "ir/segment/operands.def"
#undef OPERAND
  };

  Kind kind = Kind::kNull;
  ValueId value;
  SourceId source;
  ConstId constant;
  std::string text;                // the printed form (kConst), or the name of the type (kNew)
  int64_t index = 0;               // kShared: label
  int64_t label = -1;              // a container that occurs again (kShared) carries a label: `&1=[…]`
  std::vector<std::string> names;  // kNew: attribute names of the last names.size() items
  std::vector<Operand> items;
  std::vector<SnapshotFrame> frame;  // kGenerator: none or one
};

struct GuardLine {
  SourceId source;
  std::optional<Predicate> predicate;  // none if the line is only a path
  ValueId binds;                       // the graph input that reads this source
  Position why;                        // the line that made the guard; printed only in the verbose form
};

// Branches on tensors that a few ops compute from whole numbers and flags of the call (masks, token ids). The graph is
// run before the segment's own: the segment fits only if its outputs are as true as they were.
struct Decisions {
  std::vector<SourceId> sources;  // beside graph.inputs
  Graph graph;
  std::vector<bool> outcomes;  // beside graph.outputs
};

struct SnapshotFrame {
  std::string function;
  int line = 0;
  int offset = 0;  // byte offset of the instruction to continue with: the breaking one, or the call; not printed
  std::vector<std::pair<std::string, Operand>> locals;  // live ones only
  std::vector<int> slots;                               // same order: index into localsplus
  std::vector<Operand> stack;                           // bottom first
  bool is_over() const { return line == 0; }            // a generator's that is at its end
};

// An observable change. Which parts it has is in effects.def.
struct Effect {
  enum class Kind : uint8_t {
#define EFFECT(kind, word, parts, meaning) kind,
#include "ir/segment/effects.def"
#undef EFFECT
  };
  Kind kind = Kind::kSetAttr;
  Operand target;
  std::string name;  // of an attribute, global or method
  StateSwitch state = StateSwitch::kGradMode;
  Operand key, value;
  SnapshotFrame frame;
  Position at;
};

struct Exit {
  enum class Kind : uint8_t {
#define EXIT(kind, word, meaning) kind,
#include "ir/segment/exits.def"
#undef EXIT
  };
  Kind kind = Kind::kReturn;
  Position at;
  Reason reason = Reason::internal_error;  // kResume: a break
  std::string detail;                      // kResume: the callable, attribute or type ("numpy.asarray")
  Operand result;                          // kReturn
  // kResume: the entry frame first; each stands at its call of the next one, the last at the breaking instruction.
  std::vector<SnapshotFrame> frames;
};

struct SegmentIr {
  std::string name;      // "step#0"
  std::string function;  // "step"
  std::string entry;     // "start" or "12:7"
  SourceTable sources;
  std::vector<GuardLine> guards;  // in read order
  std::vector<StateFact> state;   // that a text shows
  Decisions decisions;
  Graph graph;
  std::vector<Effect> effects;
  Exit exit;
};

struct PrintOptions {
  bool positions = true;  // "@ forward:12:7"
  bool types = true;
  bool guard_lines = false;  // the line that made each guard
};

}  // namespace frametap
