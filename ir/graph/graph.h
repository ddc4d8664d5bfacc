// Graph: SSA over ATen operators. A node applies one op to values and constants and defines values.
//   G1  A value is defined once: as an input, as a constant, or as an output of one node; before its first use.
//   G2  Arguments are in schema order and complete (defaults are filled in); the printer leaves defaults out.
//   G3  Order is program order. In-place ops are ordinary nodes; nothing may move across a node that writes to what it
//       reads.
// Not here: text (print.cc, parse.h), checks (verify.cc), guards, how it is run (backends/).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <utility>
#include <vector>

#include "ir/block_pool.h"
#include "ir/dcheck.h"
#include "ir/graph/ids.h"
#include "ir/graph/position.h"
#include "ir/graph/type.h"

namespace frametap {

// An op outside of the dispatcher: arithmetic on Python numbers that are graph values, and access to the elements of
// an op's list result. (The recorder adds one kListItem node for each element.) See ir/graph/builtin_op.h.
enum class BuiltinOp : uint8_t {
  kNone,
  kIntAdd,
  kIntSub,
  kIntMul,
  kIntNeg,
  kFloatAdd,
  kFloatSub,
  kFloatMul,
  kFloatDiv,
  kFloatNeg,
  kListItem,  // list.item(%tensors, 2): an element of a kTensorList value, as a tensor value of its own
  kIntFloorDiv,
  kIntMod,
  kIntTrueDiv,  // of two ints: a float
  kIntMin,
  kIntMax,
  kIntAbs,
  kFloatFloorDiv,
  kFloatMod,
  kFloatPow,
  kFloatMin,
  kFloatMax,
  kFloatAbs,
  kFloatSqrt,
  kFloatOf,     // float(n)
  kIntOf,       // int(x): towards zero
  kIntFloor,    // math.floor(x)
  kIntCeil,     // math.ceil(x)
  kIntRound,    // round(x): to even where it is halfway
  kFloatRound,  // round(x, n): to n decimal places
  kIntPow,      // of an exponent that is not negative
  kIntAnd,
  kIntOr,
  kIntXor,
  kIntLshift,
  kIntRshift,
  kIntInvert,
  kFloatExp,
  kFloatLog,
  kFloatLog2,
  kFloatCos,
  kFloatSin,
  kIntBroadcast,  // of two sizes that are broadcast with each other: the one that is not 1
  kSize,          // size(%tensor, 0): how large a dimension is
  kContiguous,    // contiguous(%tensor): true; raises AssumptionFails if it is not
  kAnother,       // another(%tensor, %tensor): true; raises AssumptionFails if they are one and the same
};

// An argument of a node: a value, a constant, or a list that holds at least one value.
struct Arg {
  enum class Kind : uint8_t { kConst, kValue, kList };

  Kind kind = Kind::kConst;
  ValueId value;           // kValue
  c10::IValue constant;    // kConst; None included
  std::vector<Arg> items;  // kList: each kValue or kConst(None) or kConst

  static Arg Of(ValueId id) {
    Arg a;
    a.kind = Kind::kValue;
    a.value = id;
    return a;
  }
  static Arg Const(c10::IValue v) {
    Arg a;
    a.constant = std::move(v);
    return a;
  }
  static Arg List(std::vector<Arg> items) {
    Arg a;
    a.kind = Kind::kList;
    a.items = std::move(items);
    return a;
  }
};

// Thread state under which an op ran and must run again.
struct EagerState {
  bool grad_mode = true;
  bool inference_mode = false;
  bool autocast_cpu = false;
  bool autocast_cache = true;
  c10::ScalarType autocast_cpu_dtype = c10::ScalarType::BFloat16;
  // For a node: how often the program had emptied autocast's cache since the entry. A weight that is cast once has
  // another gradient than one that is cast twice. The text leaves it out.
  uint16_t autocast_cleared = 0;

  friend bool operator==(const EagerState& a, const EagerState& b) = default;
};

struct Node {
  std::optional<c10::OperatorHandle> op;  // empty: `builtin_op` says what it is
  BuiltinOp builtin_op = BuiltinOp::kNone;
  std::vector<Arg> args;         // G2
  std::vector<ValueId> outputs;  // one for each return of the schema; one for a scalar op
  StateId state;                 // into Graph::states
  WherePtr where;                // may be null (made by a pass, or parsed without a position)

  bool is_scalar() const { return !op.has_value(); }
  std::string op_name() const;  // "aten.add.Tensor", "aten.relu", "int.add"
};

struct Value {
  std::string name;  // without '%', and unique in the graph; empty until it is named
  Type type;
  NodeId def;  // invalid for inputs and constants
};

// A size that may differ from call to call: `s0` in the text is the first. Only in graphs that are shown
// (symbolic_sizes.h); who runs a graph does not need them.
struct SizeSymbol {
  ValueId tensor;  // an input
  size_t dim = 0;
  ValueId number;  // the input that reads this size as an int, if there is one
};

struct Graph {
  std::vector<Value, PoolAllocator<Value>> values;
  std::vector<ValueId> inputs;
  std::vector<std::pair<ValueId, at::Tensor>> constants;  // tensors made from Python data while recording
  std::vector<Node, PoolAllocator<Node>> nodes;
  std::vector<ValueId> outputs;
  std::vector<EagerState> states;   // at least one; states[0] is the state at the entry
  std::vector<SizeSymbol> symbols;  // what they were stands in the tensors' types

  Graph() : states(1) {}

  ValueId NewValue(std::string name, Type type, NodeId def = NodeId());
  ValueId AddInput(std::string name, Type type);
  void NameResults();  // of nodes, by their numbers: 0, 1, …
  ValueId AddConstant(std::string name, at::Tensor tensor);
  StateId AddState(const EagerState& state);  // finds an equal one
  NodeId AddNode(Node node);                  // sets def of the outputs

  const Value& value(ValueId id) const {
    FT_DCHECK(id.raw() < values.size());
    return values[id.raw()];
  }
  Value& value(ValueId id) { return const_cast<Value&>(std::as_const(*this).value(id)); }
  const Node& node(NodeId id) const {
    FT_DCHECK(id.raw() < nodes.size());
    return nodes[id.raw()];
  }
};

template <class F>
void ForEachUseIn(const Arg& arg, F&& f) {
  if (arg.kind == Arg::Kind::kValue) f(arg.value);
  if (arg.kind != Arg::Kind::kList) return;
  for (const Arg& item : arg.items) ForEachUseIn(item, f);
}

// Returns the graph without unused inputs and constants and without nodes that are not kept, both by number. It has no
// outputs, and names of constants only. `now`: the values of the whole graph in it.
Graph PartOf(Graph whole, const std::vector<bool>& used, const std::vector<bool>& kept, std::vector<ValueId>* now);

// Calls `f(ValueId)` for every value an argument list uses, lists included.
template <class F>
void ForEachUse(const std::vector<Arg>& args, F&& f) {
  for (const Arg& a : args) ForEachUseIn(a, f);
}

}  // namespace frametap
