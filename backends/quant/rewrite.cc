#include "backends/quant/rewrite.h"

#include <c10/util/Exception.h>

#include "backends/quant/op_table.h"
#include "backends/quant/operators.h"
#include "ir/passes/writes.h"

namespace frametap::quant {

Uses::Uses(const Graph& graph) : nodes(graph.values.size()), outputs(graph.values.size(), 0) {
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    ForEachUse(graph.nodes[i].args, [&](ValueId v) { nodes[v.raw()].push_back(NodeId(i)); });
  }
  for (ValueId v : graph.outputs) ++outputs[v.raw()];
}

Rewrite::Rewrite(const Graph& from, const std::vector<ValueId>* from_origin)
    : from_(from), from_origin_(from_origin), map_(from.values.size()) {
  graph.states = from.states;
  for (ValueId v : from.inputs) {
    const Value& value = from.value(v);
    names_.insert(value.name);
    const ValueId now = graph.AddInput(value.name, value.type);
    origin.resize(graph.values.size());
    Map(v, now);
  }
  constant_.assign(from.values.size(), -1);
  for (size_t i = 0; i < from.constants.size(); ++i) constant_[from.constants[i].first.raw()] = static_cast<int>(i);
}

ValueId Rewrite::at(ValueId old) {
  if (!map_[old.raw()].valid() && constant_[old.raw()] >= 0) {
    Map(old, AddConstant(from_.value(old).name, from_.constants[constant_[old.raw()]].second));
  }
  TORCH_CHECK(old.valid() && map_[old.raw()].valid(), "a value is used before it is defined");
  return map_[old.raw()];
}

void Rewrite::Map(ValueId old, ValueId now) {
  map_[old.raw()] = now;
  if (!origin[now.raw()].valid()) origin[now.raw()] = from_origin_ ? (*from_origin_)[old.raw()] : old;
}

ValueId Rewrite::NewValue(const std::string& name, const Type& type, ValueId old_origin) {
  std::string unique = name;
  for (int i = 1; !names_.insert(unique).second; ++i) unique = name + "_" + std::to_string(i);
  const ValueId now = graph.NewValue(unique, type);
  origin.resize(graph.values.size());
  if (old_origin.valid()) origin[now.raw()] = from_origin_ ? (*from_origin_)[old_origin.raw()] : old_origin;
  return now;
}

ValueId Rewrite::AddConstant(const std::string& name, const at::Tensor& tensor) {
  std::string unique = name;
  for (int i = 1; !names_.insert(unique).second; ++i) unique = name + "_" + std::to_string(i);
  // Not Graph::AddConstant, which copies: nothing else writes to these, and packed weights need not survive a copy.
  const ValueId now = graph.NewValue(unique, Type::Of(tensor));
  graph.constants.emplace_back(now, tensor);
  origin.resize(graph.values.size());
  return now;
}

std::vector<Arg> Rewrite::Args(const std::vector<Arg>& old) {
  return WithValues(old, [this](ValueId v) { return at(v); });
}

NodeId Rewrite::CopyWith(Node node, std::vector<Arg> args) {
  node.args = std::move(args);
  for (ValueId& output : node.outputs) {
    const Value& value = from_.value(output);
    const ValueId now = NewValue(value.name, value.type, output);
    Map(output, now);
    output = now;
  }
  return graph.AddNode(std::move(node));
}

std::vector<ValueId> Rewrite::EmitAll(const c10::OperatorHandle& op, std::vector<Arg> args,
                                      std::initializer_list<Result> results, const Node& like) {
  Node node;
  node.op = op;
  node.args = std::move(args);
  node.state = like.state;
  node.where = like.where;
  for (const auto& [name, type, old_origin] : results) node.outputs.push_back(NewValue(name, type, old_origin));
  std::vector<ValueId> made(node.outputs.begin(), node.outputs.end());
  graph.AddNode(std::move(node));
  return made;
}

ValueId Rewrite::Emit(const c10::OperatorHandle& op, std::vector<Arg> args, const std::string& name, const Type& type,
                      ValueId old_origin, const Node& like) {
  return EmitAll(op, std::move(args), {{name, type, old_origin}}, like)[0];
}

ValueId Rewrite::EmitConversion(ValueId now, c10::ScalarType to, ValueId old, const Node& like) {
  const Value& value = from_.value(old);
  const Arg none = Arg::Const(c10::IValue());
  return Emit(FindOperator("aten::_to_copy"),
              {Arg::Of(now), Arg::Const(static_cast<int64_t>(to)), none, none, none, Arg::Const(false), none},
              value.name + (to == at::kBFloat16 ? "_half" : "_float"), Retyped(value.type, to), old, like);
}

void Rewrite::CopyOutputs() {
  for (ValueId v : from_.outputs) graph.outputs.push_back(at(v));
}

bool IsUnderAutocast(const Graph& graph, const Node& node) {
  return node.state.valid() && graph.states[node.state.raw()].autocast_cpu;
}

std::vector<ValueId> WrittenBy(const Node& node) {
  std::vector<ValueId> written;
  if (node.is_scalar()) return written;
  const auto& arguments = node.op->schema().arguments();
  for (size_t i = 0; i < node.args.size() && i < arguments.size(); ++i) {
    if (arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite()) {
      ForEachUse({node.args[i]}, [&](ValueId v) { written.push_back(v); });
    }
  }
  return written;
}

std::vector<bool> WrittenMemory(const Graph& graph) {
  const Aliases aliases(graph);
  std::vector<bool> is_root_written(graph.values.size(), false), is_written;
  for (const Node& node : graph.nodes) {
    for (const ValueId v : WrittenBy(node)) is_root_written[aliases.root(v)] = true;
  }
  for (size_t v = 0; v < graph.values.size(); ++v) is_written.push_back(is_root_written[aliases.root(ValueId(v))]);
  return is_written;
}

namespace {

// Returns whether the op gives its elements another type, so that its result is new memory.
bool IsConversion(const Graph& graph, const Node& node) {
  if (node.op->operator_name().name != "aten::to" || node.args[0].kind != Arg::Kind::kValue) return false;
  const Type& from = graph.value(node.args[0].value).type;
  const Type& to = graph.value(node.outputs[0]).type;
  return from.kind == Type::Kind::kTensor && to.kind == Type::Kind::kTensor && from.dtype != to.dtype;
}

}  // namespace

Aliases::Aliases(const Graph& graph) : parent_(graph.values.size()) {
  for (size_t i = 0; i < parent_.size(); ++i) parent_[i] = static_cast<uint32_t>(i);
  const auto join = [&](ValueId a, ValueId b) { parent_[root(a)] = root(b); };
  for (const Node& node : graph.nodes) {
    if (node.builtin_op == BuiltinOp::kListItem) ForEachUse(node.args, [&](ValueId v) { join(v, node.outputs[0]); });
    if (node.is_scalar()) continue;
    const OpRow* row = RowOf(node);
    if ((row != nullptr && row->fresh) || IsConversion(graph, node)) continue;
    const auto& schema = node.op->schema();
    // Results that are not annotated: results of an op that writes are its written arguments; others may be any
    // argument.
    const bool writes = !WrittenBy(node).empty();
    for (size_t o = 0; o < node.outputs.size() && o < schema.returns().size(); ++o) {
      const auto* annotated = schema.returns()[o].alias_info();
      for (size_t i = 0; i < node.args.size() && i < schema.arguments().size(); ++i) {
        const auto* argument = schema.arguments()[i].alias_info();
        const bool written = argument != nullptr && argument->isWrite();
        ForEachUse({node.args[i]}, [&](ValueId v) {
          const bool joined = annotated == nullptr || annotated->beforeSets().empty()
                                  ? (writes ? written : MayShareMemory(graph, node, i, v))
                                  : argument != nullptr && argument->beforeSets() == annotated->beforeSets();
          if (joined) join(v, node.outputs[o]);
        });
      }
    }
  }
}

uint32_t Aliases::root(ValueId v) const {
  uint32_t r = v.raw();
  while (parent_[r] != r) r = parent_[r] = parent_[parent_[r]];
  return r;
}

Type Retyped(Type type, c10::ScalarType dtype) {
  type.dtype = dtype;
  type.requires_grad = false;
  return type;
}

bool IsFloatTensor(const Type& type) {
  return type.kind == Type::Kind::kTensor && type.dtype == c10::ScalarType::Float && type.device.is_cpu();
}

}  // namespace frametap::quant
