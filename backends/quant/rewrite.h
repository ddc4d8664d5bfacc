// Rewrite: a graph made from another one, node by node, and the facts that a rewrite needs.
//   W1  A new value knows its `origin`: the value of the graph we started from that it computes (perhaps in 8 bits).
//       Origins are handed on through a chain of rewrites; a value without a counterpart has none.
//   W2  The new graph has the same inputs in the same order and as many outputs, also if an input is no longer used.
// Not here: what to rewrite (normalise.cc, convert.cc, lower.cc).
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "ir/graph/graph.h"

namespace frametap::quant {

// Who reads each value; a graph output counts as one more reader.
struct Uses {
  explicit Uses(const Graph& graph);
  std::vector<std::vector<NodeId>> nodes;  // one entry for each use, in program order
  std::vector<int> outputs;
  size_t count(ValueId v) const { return nodes[v.raw()].size() + static_cast<size_t>(outputs[v.raw()]); }
  // The only reader, or an invalid id.
  NodeId sole(ValueId v) const { return count(v) == 1 && outputs[v.raw()] == 0 ? nodes[v.raw()][0] : NodeId(); }
};

// The arguments with `f` of each value in the place of the value.
template <class F>
std::vector<Arg> WithValues(std::vector<Arg> args, const F& f) {
  for (Arg& arg : args) {
    if (arg.kind == Arg::Kind::kValue) arg.value = f(arg.value);
    if (arg.kind == Arg::Kind::kList) arg.items = WithValues(std::move(arg.items), f);
  }
  return args;
}

class Rewrite {
 public:
  // `from_origin[v]` is the origin of value v of `from`. If it is null, each value is its own origin.
  Rewrite(const Graph& from, const std::vector<ValueId>* from_origin);

  Graph graph;
  std::vector<ValueId> origin;  // by value of `graph`

  ValueId at(ValueId old);  // the new value that stands for `old`; a constant is copied when first asked for
  void Map(ValueId old, ValueId now);
  bool has(ValueId old) const { return map_[old.raw()].valid(); }
  ValueId NewValue(const std::string& name, const Type& type, ValueId old_origin);  // makes the name unique
  ValueId AddConstant(const std::string& name, const at::Tensor& tensor);
  std::vector<Arg> Args(const std::vector<Arg>& old);
  // Copies a node with mapped arguments; its outputs stand for the old ones.
  NodeId Copy(const Node& node) { return CopyWith(node, Args(node.args)); }
  NodeId CopyWith(Node node, std::vector<Arg> args);  // … with these arguments, which are of the new graph
  struct Result {
    const std::string& name;
    const Type& type;
    ValueId old_origin;
  };
  // Adds a node. `state` and `where` are taken from `like`.
  std::vector<ValueId> EmitAll(const c10::OperatorHandle& op, std::vector<Arg> args,
                               std::initializer_list<Result> results, const Node& like);
  // Adds a one-output node.
  ValueId Emit(const c10::OperatorHandle& op, std::vector<Arg> args, const std::string& name, const Type& type,
               ValueId old_origin, const Node& like);
  // Adds a copy of `now`, which stands for `old`, in bfloat16 or float32.
  ValueId EmitConversion(ValueId now, c10::ScalarType to, ValueId old, const Node& like);
  void CopyOutputs();  // maps the outputs of `from`

 private:
  const Graph& from_;
  const std::vector<ValueId>* from_origin_;
  std::vector<ValueId> map_;
  std::vector<int> constant_;  // by value of `from`: index into its constants, or -1
  absl::flat_hash_set<std::string> names_;
};

// Which values may share memory, by schema and table (op_table/R2).
class Aliases {
 public:
  explicit Aliases(const Graph& graph);
  uint32_t root(ValueId v) const;
  bool same(ValueId a, ValueId b) const { return root(a) == root(b); }

 private:
  mutable std::vector<uint32_t> parent_;
};

bool IsUnderAutocast(const Graph& graph, const Node& node);

// The arguments a node writes to.
std::vector<ValueId> WrittenBy(const Node& node);

// By value: whether some node writes to memory that it may share.
std::vector<bool> WrittenMemory(const Graph& graph);

Type Retyped(Type type, c10::ScalarType dtype);
bool IsFloatTensor(const Type& type);  // f32 on the CPU

}  // namespace frametap::quant
