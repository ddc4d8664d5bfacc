#include "backends/quant/attention_chains.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "backends/quant/op_table.h"
#include "backends/quant/operators.h"

namespace frametap::quant {
namespace {

// The factors of a product of matrices, [batch..., rows, inner] and [batch..., inner, columns].
struct Factors {
  ValueId a, b;
  bool is_b_transposed = false;  // `b` is [batch..., columns, inner]
};

// Reads an equation such as "b h i d, b h j d -> b h i j".
std::optional<Factors> FactorsOf(absl::string_view equation, ValueId a, ValueId b) {
  const std::string letters = absl::StrReplaceAll(equation, {{" ", ""}});
  const std::vector<absl::string_view> sides = absl::StrSplit(letters, absl::MaxSplits("->", 1));
  const std::vector<absl::string_view> factors = absl::StrSplit(sides[0], ',');
  if (sides.size() != 2 || factors.size() != 2) return std::nullopt;
  const absl::string_view left = factors[0], right = factors[1], result = sides[1];
  const size_t rank = left.size();
  if (rank < 3 || right.size() != rank || result.size() != rank) return std::nullopt;
  const absl::string_view batch = left.substr(0, rank - 2);
  const std::string rows(1, left[rank - 2]), inner(1, left[rank - 1]), columns(1, result[rank - 1]);
  const std::string all = absl::StrCat(batch, rows, inner, columns);
  const bool is_plain = std::all_of(all.begin(), all.end(), [&](char c) {
    return absl::ascii_isalpha(static_cast<unsigned char>(c)) && std::count(all.begin(), all.end(), c) == 1;
  });
  if (!is_plain || result != absl::StrCat(batch, rows, columns)) return std::nullopt;
  if (right == absl::StrCat(batch, inner, columns)) return Factors{a, b};
  if (right == absl::StrCat(batch, columns, inner)) return Factors{a, b, true};
  return std::nullopt;
}

std::optional<Factors> FactorsOf(const Graph& graph, const Node& node) {
  const bool is_einsum = Is(node, "aten::einsum");
  if (!is_einsum && !Is(node, "aten::matmul") && !Is(node, "aten::bmm")) return std::nullopt;
  const std::vector<Arg>& args = is_einsum ? node.args[1].items : node.args;
  const auto is_value = [](const Arg& arg) { return arg.kind == Arg::Kind::kValue; };
  if (args.size() < 2 || !is_value(args[0]) || !is_value(args[1])) return std::nullopt;
  const ValueId a = args[0].value, b = args[1].value;
  const size_t rank = graph.value(a).type.sizes.size();
  if ((rank != 3 && rank != 4) || graph.value(b).type.sizes.size() != rank) return std::nullopt;
  if (!is_einsum) return Factors{a, b};
  const bool is_known = args.size() == 2 && node.args[0].kind == Arg::Kind::kConst && node.args[0].constant.isString();
  return is_known ? FactorsOf(node.args[0].constant.toStringRef(), a, b) : std::nullopt;
}

// The number that a node multiplies its first argument by.
std::optional<double> FactorOf(const Node& node) {
  const bool is_quotient = Is(node, "aten::div", "Tensor");
  if (!is_quotient && !Is(node, "aten::mul", "Tensor")) return std::nullopt;
  const auto number = ConstNumber(&node.args[1]);
  if (!number || node.args[0].kind != Arg::Kind::kValue) return std::nullopt;
  return is_quotient ? 1 / *number : *number;
}

struct Chain {
  ValueId query, key, value;
  ValueId mask;                    // may be invalid
  bool is_key_transposed = false;  // [batch..., features, keys]
  bool is_scaled = false;
  double scale = 1, fill = 0;
  std::vector<NodeId> links;  // without the last one
};

class Finder {
 public:
  explicit Finder(const Graph& graph) : graph_(graph), uses_(graph), aliases_(graph) {
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      for (const ValueId v : WrittenBy(graph.nodes[i])) writes_.emplace_back(NodeId(i), v);
    }
    is_live_.assign(graph.nodes.size(), true);
    for (size_t i = graph.nodes.size(); i-- > 0;) {
      const Node& node = graph.nodes[i];
      const OpRow* const row = RowOf(node);
      const bool does_nothing_else =
          row != nullptr && row->family != Family::kDropout && WrittenBy(node).empty() && !node.outputs.empty();
      is_live_[i] = !does_nothing_else || std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) {
        return uses_.outputs[v.raw()] > 0 || CountReaders(v) > 0;
      });
    }
  }

  bool IsLive(NodeId n) const { return is_live_[n.raw()]; }

  std::optional<Chain> EndingAt(NodeId last) const {
    const auto product = FactorsOf(graph_, graph_.node(last));
    if (!product || product->is_b_transposed || IsUnderAutocast(graph_, graph_.node(last))) return std::nullopt;
    Chain chain;
    chain.value = product->b;
    const NodeId softmax = SkipConversions(product->a, &chain);
    if (!softmax.valid() || !IsOverKeys(graph_.node(softmax))) return std::nullopt;
    chain.links.push_back(softmax);
    if (!TakeScores(graph_.node(softmax).args[0].value, &chain)) return std::nullopt;
    TakeFactors(&chain.query, &chain);
    TakeFactors(&chain.key, &chain);
    if (chain.is_key_transposed) chain.is_key_transposed = !TakeTranspose(&chain);
    TakeFactors(&chain.key, &chain);
    for (const ValueId v : {chain.query, chain.key, chain.value}) {
      if (!IsFloatTensor(graph_.value(v).type) || IsWritten(v, last)) return std::nullopt;
    }
    if (chain.mask.valid() && IsWritten(chain.mask, last)) return std::nullopt;
    return chain;
  }

 private:
  size_t CountReaders(ValueId v) const {
    const auto& readers = uses_.nodes[v.raw()];
    return static_cast<size_t>(
        std::count_if(readers.begin(), readers.end(), [&](NodeId n) { return is_live_[n.raw()]; }));
  }

  // H4
  bool IsWritten(ValueId v, NodeId before) const {
    const NodeId def = graph_.value(v).def;
    return std::any_of(writes_.begin(), writes_.end(), [&](const auto& write) {
      const auto& [node, memory] = write;
      return node < before && (!def.valid() || def < node) && aliases_.same(memory, v);
    });
  }

  size_t RankOf(ValueId v) const { return graph_.value(v).type.sizes.size(); }

  // H1. The node that makes the value, if the value has one reader.
  NodeId LinkAt(ValueId v) const {
    const NodeId def = graph_.value(v).def;
    if (!def.valid() || uses_.outputs[v.raw()] > 0 || CountReaders(v) != 1) return NodeId();
    const Node& node = graph_.node(def);
    const bool is_plain = node.outputs.size() == 1 && !node.is_scalar() && !node.args.empty() &&
                          (node.args[0].kind == Arg::Kind::kValue || FactorsOf(graph_, node)) &&
                          IsFloatTensor(graph_.value(v).type) && !IsUnderAutocast(graph_, node);
    return is_plain ? def : NodeId();
  }

  // The node that makes the value, before conversions to the type that it has already.
  NodeId SkipConversions(ValueId v, Chain* chain) const {
    NodeId n = LinkAt(v);
    while (n.valid() && IsConversionToFloat(graph_.node(n))) {
      chain->links.push_back(n);
      n = LinkAt(graph_.node(n).args[0].value);
    }
    return n;
  }

  bool IsConversionToFloat(const Node& node) const {
    return Is(node, "aten::to", "dtype") && ConstInt(FindArg(node, "dtype")) == static_cast<int64_t>(at::kFloat) &&
           ConstBool(FindArg(node, "copy")) == false && IsNone(FindArg(node, "memory_format")) &&
           IsFloatTensor(graph_.value(node.args[0].value).type);
  }

  bool IsOverKeys(const Node& node) const {
    if (!Is(node, "aten::softmax", "int") && !Is(node, "aten::_softmax")) return false;
    const auto dim = ConstInt(FindArg(node, "dim"));
    if (!dim || (*dim != -1 && *dim != static_cast<int64_t>(RankOf(node.outputs[0])) - 1)) return false;
    const Arg* const dtype = FindArg(node, "dtype");  // of the result, which is float32
    return dtype != nullptr || ConstBool(FindArg(node, "half_to_float")) == false;
  }

  // Goes from the softmax back to the product, so that the program runs these ops in the reverse order.
  bool TakeScores(ValueId scores, Chain* chain) const {
    while (true) {
      const NodeId n = LinkAt(scores);
      if (!n.valid()) return false;
      const Node& node = graph_.node(n);
      chain->links.push_back(n);
      if (const auto product = FactorsOf(graph_, node)) {
        chain->query = product->a;
        chain->key = product->b;
        chain->is_key_transposed = !product->is_b_transposed;
        return true;
      }
      if (Is(node, "aten::baddbmm")) return TakeProductWithMask(node, chain);
      if (const auto factor = FactorOf(node)) {
        chain->scale *= *factor;
        chain->is_scaled = true;
      } else if (!TakeMask(node, chain)) {
        return false;
      }
      const bool is_second = Is(node, "aten::add", "Tensor") && node.args[0].value == chain->mask;
      scores = node.args[is_second ? 1 : 0].value;
    }
  }

  bool TakeProductWithMask(const Node& node, Chain* chain) const {
    const auto beta = ConstNumber(FindArg(node, "beta")), alpha = ConstNumber(FindArg(node, "alpha"));
    const auto query = TensorArg(node, "batch1"), key = TensorArg(node, "batch2");
    if (beta != 1.0 || !alpha || !query || !key || !TakeMask(node.args[0].value, chain)) return false;
    chain->scale = *alpha;
    chain->query = *query;
    chain->key = *key;
    chain->is_key_transposed = true;
    return true;
  }

  // A factor that was met before is applied after the mask, which the op cannot do.
  bool TakeMask(ValueId mask, Chain* chain) const {
    if (chain->mask.valid() || chain->is_scaled || !IsFloatTensor(graph_.value(mask).type)) return false;
    chain->mask = mask;
    return true;
  }

  bool TakeMask(const Node& node, Chain* chain) const {
    if (Is(node, "aten::masked_fill", "Scalar")) {
      const auto mask = TensorArg(node, "mask");
      const auto fill = ConstNumber(FindArg(node, "value"));
      if (chain->mask.valid() || chain->is_scaled || !mask || !fill || !(*fill < 0)) return false;
      chain->mask = *mask;
      chain->fill = *fill;
      return true;
    }
    if (!Is(node, "aten::add", "Tensor") || ConstNumber(FindArg(node, "alpha")) != 1.0) return false;
    if (node.args[1].kind != Arg::Kind::kValue) return false;
    const ValueId a = node.args[0].value, b = node.args[1].value;
    return a != b && TakeMask(LeadsToScores(a) ? b : a, chain);
  }

  bool LeadsToScores(ValueId v) const {
    NodeId n = LinkAt(v);
    while (n.valid() && FactorOf(graph_.node(n))) n = LinkAt(graph_.node(n).args[0].value);
    return n.valid() && FactorsOf(graph_, graph_.node(n));
  }

  void TakeFactors(ValueId* v, Chain* chain) const {
    while (true) {
      const NodeId n = LinkAt(*v);
      const auto factor = n.valid() ? FactorOf(graph_.node(n)) : std::nullopt;
      if (!factor) return;
      chain->scale *= *factor;
      chain->links.push_back(n);
      *v = graph_.node(n).args[0].value;
    }
  }

  bool TakeTranspose(Chain* chain) const {
    const NodeId n = graph_.value(chain->key).def;
    if (!n.valid() || !Is(graph_.node(n), "aten::transpose", "int")) return false;
    const Node& node = graph_.node(n);
    const auto rank = static_cast<int64_t>(RankOf(chain->key));
    const auto a = ConstInt(&node.args[1]), b = ConstInt(&node.args[2]);
    if (!a || !b || node.args[0].kind != Arg::Kind::kValue) return false;
    const auto from_end = [&](int64_t dim) { return dim < 0 ? -dim : rank - dim; };
    if (std::minmax(from_end(*a), from_end(*b)) != std::minmax<int64_t>(1, 2)) return false;
    if (LinkAt(chain->key).valid()) chain->links.push_back(n);
    chain->key = node.args[0].value;
    return true;
  }

  const Graph& graph_;
  const Uses uses_;
  const Aliases aliases_;
  std::vector<std::pair<NodeId, ValueId>> writes_;
  std::vector<bool> is_live_;  // by node
};

bool ReadsFolded(const Graph& graph, const Node& node, const std::vector<NodeDisposition>& fates) {
  bool reads = false;
  ForEachUse(node.args, [&](ValueId v) {
    const NodeId def = graph.value(v).def;
    reads = reads || (def.valid() && !fates[def.raw()].folded.empty());
  });
  return reads;
}

}  // namespace

Step NameAttention(const Graph& graph, const std::vector<ValueId>& origin) {
  Step step{Rewrite(graph, &origin), std::vector<NodeDisposition>(graph.nodes.size())};
  Rewrite& out = step.rewrite;
  const Finder finder(graph);
  absl::flat_hash_map<NodeId, Chain> found;  // by the last link
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    auto chain = finder.IsLive(NodeId(i)) ? finder.EndingAt(NodeId(i)) : std::nullopt;
    if (!chain) continue;
    for (const NodeId n : chain->links) {
      step.fates[n.raw()].folded = absl::StrCat("part of attention, which ends in ", NameWithPlace(graph.nodes[i]));
    }
    found.emplace(NodeId(i), *std::move(chain));
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (!finder.IsLive(NodeId(i)) && ReadsFolded(graph, node, step.fates)) {
      step.fates[i].folded = "nothing reads its result";
    }
    if (!step.fates[i].folded.empty()) continue;
    const auto at = found.find(NodeId(i));
    if (at == found.end()) {
      step.fates[i].now = out.Copy(node);
      continue;
    }
    const Chain& chain = at->second;
    const ValueId result = node.outputs[0];
    const Value &value = graph.value(result), &key = graph.value(chain.key);
    ValueId rows = out.at(chain.key);
    if (chain.is_key_transposed) {
      Type type = key.type;
      std::swap(type.sizes[type.sizes.size() - 1], type.sizes[type.sizes.size() - 2]);
      rows = out.Emit(FindOperator("aten::transpose", "int"), {Arg::Of(rows), Arg::Const(-1), Arg::Const(-2)}, key.name,
                      type, ValueId(), node);
    }
    std::vector<Arg> args{
        Arg::Of(out.at(chain.query)), Arg::Of(rows),
        Arg::Of(out.at(chain.value)), chain.mask.valid() ? Arg::Of(out.at(chain.mask)) : Arg::Const(c10::IValue()),
        Arg::Const(chain.fill),       Arg::Const(chain.scale)};
    out.Map(result,
            out.Emit(FindOperator("frametap::attention_chain"), std::move(args), value.name, value.type, result, node));
    step.fates[i].now = NodeId(out.graph.nodes.size() - 1);
  }
  out.CopyOutputs();
  return step;
}

}  // namespace frametap::quant
