#include "backends/quant/pieces.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "backends/quant/op_table.h"
#include "backends/quant/operators.h"

namespace frametap::quant {
namespace {

struct Piece {
  c10::OperatorHandle op;
  std::vector<Arg> args;  // of the graph before
};

Piece Slice(const Node& list, int64_t dim, int64_t begin, int64_t end) {
  return {FindOperator("aten::slice", "Tensor"),
          {list.args[0], Arg::Const(dim), Arg::Const(begin), Arg::Const(end), Arg::Const(int64_t{1})}};
}

std::optional<Piece> PieceOf(const Node& list, int64_t index) {
  const auto dim = ConstInt(FindArg(list, "dim"));
  if (!dim || index < 0 || list.args[0].kind != Arg::Kind::kValue) return std::nullopt;
  if (Is(list, "aten::unbind", "int")) {
    return Piece{FindOperator("aten::select", "int"), {list.args[0], Arg::Const(*dim), Arg::Const(index)}};
  }
  if (Is(list, "aten::chunk")) {
    const auto chunks = ConstInt(FindArg(list, "chunks"));
    if (!chunks) return std::nullopt;
    return Piece{FindOperator("frametap::chunk_piece"),
                 {list.args[0], Arg::Const(*chunks), Arg::Const(*dim), Arg::Const(index)}};
  }
  if (Is(list, "aten::split", "Tensor")) {
    const auto size = ConstInt(FindArg(list, "split_size"));
    return size ? std::optional(Slice(list, *dim, index * *size, (index + 1) * *size)) : std::nullopt;
  }
  const bool has_sizes = Is(list, "aten::split_with_sizes") || Is(list, "aten::split", "sizes");
  const auto sizes = ConstInts(FindArg(list, Is(list, "aten::split", "sizes") ? "split_size" : "split_sizes"));
  if (!has_sizes || !sizes || static_cast<size_t>(index) >= sizes->size()) return std::nullopt;
  const int64_t begin = std::accumulate(sizes->begin(), sizes->begin() + index, int64_t{0});
  return Slice(list, *dim, begin, begin + (*sizes)[static_cast<size_t>(index)]);
}

// The node that makes the list of which `item` takes an element, or an invalid id.
NodeId ListOf(const Graph& graph, const Node& item) {
  if (item.builtin_op != BuiltinOp::kListItem || item.args[0].kind != Arg::Kind::kValue) return NodeId();
  return graph.value(item.args[0].value).def;
}

absl::flat_hash_map<NodeId, Piece> FindPieces(const Graph& graph) {
  absl::flat_hash_map<NodeId, Piece> pieces;  // by the node that takes the element
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const NodeId list = ListOf(graph, graph.nodes[i]);
    const auto index = list.valid() ? ConstInt(&graph.nodes[i].args[1]) : std::nullopt;
    if (!index || graph.node(list).is_scalar()) continue;
    if (auto piece = PieceOf(graph.node(list), *index)) pieces.emplace(NodeId(i), *std::move(piece));
  }
  return pieces;
}

}  // namespace

Step TakePieces(const Graph& graph) {
  Step step{Rewrite(graph, nullptr), std::vector<NodeDisposition>(graph.nodes.size())};
  Rewrite& out = step.rewrite;
  const Uses uses(graph);
  const auto pieces = FindPieces(graph);
  const auto is_gone = [&](const Node& node) {  // E2
    if (node.is_scalar() || node.outputs.size() != 1) return false;
    const auto& readers = uses.nodes[node.outputs[0].raw()];
    return graph.value(node.outputs[0]).type.kind == Type::Kind::kTensorList && !readers.empty() &&
           uses.outputs[node.outputs[0].raw()] == 0 &&
           std::all_of(readers.begin(), readers.end(), [&](NodeId reader) { return pieces.contains(reader); });
  };
  std::vector<bool> gone;
  for (const Node& node : graph.nodes) gone.push_back(is_gone(node));
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (gone[i]) {
      step.fates[i].folded = "its pieces are taken one by one";
      continue;
    }
    const auto piece = pieces.find(NodeId(i));
    if (piece != pieces.end() && gone[ListOf(graph, node).raw()]) {
      const Value& value = graph.value(node.outputs[0]);
      const ValueId now = out.Emit(piece->second.op, out.Args(piece->second.args), value.name, value.type,
                                   node.outputs[0], graph.node(ListOf(graph, node)));
      out.Map(node.outputs[0], now);
      step.fates[i].now = NodeId(out.graph.nodes.size() - 1);
      continue;
    }
    step.fates[i].now = out.Copy(node);
  }
  out.CopyOutputs();
  return step;
}

}  // namespace frametap::quant
