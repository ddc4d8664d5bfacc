#include "ir/text/symbolic_sizes.h"

#include <algorithm>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "ir/graph/builtin_op.h"
#include "ir/ops/op_facts.h"
#include "ir/ops/size_rules.h"
#include "ir/symbols/formula.h"

namespace frametap {
namespace {

class Finder {
 public:
  explicit Finder(const Graph& graph) : graph_(graph), sizes_(graph.values.size()) {}

  SymbolicSizes Find() {
    for (size_t id = 0; id < graph_.values.size(); ++id) sizes_[id] = Recorded(ValueId(id));
    for (const SizeSymbol& symbol : graph_.symbols) {
      const int64_t hint = graph_.value(symbol.tensor).type.sizes[symbol.dim];
      const Formula formula = Declare("s", &size_symbols_, hint);
      sizes_[symbol.tensor.raw()][symbol.dim] = formula;
      if (!symbol.number.valid()) continue;
      numbers_.insert_or_assign(symbol.number, formula);
      naturals_.insert(symbol.number);
    }
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (node.is_scalar() && node.builtin_op != BuiltinOp::kListItem) {
        FindNumber(node);
      } else if (IsFixed(node)) {
        fixed_lists_.insert(node.outputs.begin(), node.outputs.end());
      } else {
        for (const ValueId output : node.outputs) FindSizes(NodeId(i), output);
      }
    }
    SymbolicSizes out;
    out.symbols = std::move(symbols_);
    out.fresh = std::move(fresh_);
    for (const Sizes& sizes : sizes_) {
      out.sizes.emplace_back();
      for (const std::optional<Formula>& size : sizes) out.sizes.back().push_back(size ? size->Text() : "?");
    }
    return out;
  }

 private:
  using Sizes = std::vector<std::optional<Formula>>;  // none if it is unknown

  Sizes Recorded(ValueId id) const {
    Sizes out;
    for (const int64_t size : graph_.value(id).type.sizes) {
      out.push_back(size < 0 ? std::nullopt : std::optional(Formula::Constant(size)));
    }
    return out;
  }

  Formula Declare(const char* letter, int* count, int64_t hint) {
    symbols_.emplace_back(absl::StrCat(letter, (*count)++), hint);
    hints_[symbols_.back().first] = hint;
    return Formula::Symbol(symbols_.back().first, true);
  }

  void FindSizes(NodeId node, ValueId output) {
    const Type& type = graph_.value(output).type;
    if (type.kind != Type::Kind::kTensor) return;
    const std::vector<std::optional<SizeExpr>> rules = SizesOf(graph_, output, naturals_);
    for (size_t dim = 0; dim < type.sizes.size(); ++dim) {
      const bool is_ruled = dim < rules.size() && rules[dim];
      std::optional<Formula> size = is_ruled ? FormulaOf(*rules[dim]) : std::nullopt;
      if (type.sizes[dim] >= 0 && (!size || !ComesTo(*size, type.sizes[dim]))) {
        size = Declare("u", &unpredicted_, type.sizes[dim]);
        if (!is_ruled && (fresh_.empty() || fresh_.back() != node)) fresh_.push_back(node);
      }
      sizes_[output.raw()][dim] = size;
    }
  }

  // Nothing that it is given differs from call to call: neither do the sizes of its results.
  bool IsFixed(const Node& node) const {
    if (node.op && FactsOf(*node.op).data_dependent_size) return false;
    bool fixed = true;
    ForEachUse(node.args, [&](ValueId use) {
      const Type::Kind kind = graph_.value(use).type.kind;
      if (kind == Type::Kind::kTensorList) {
        fixed = fixed && fixed_lists_.contains(use);
      } else if (kind == Type::Kind::kTensor) {
        for (const std::optional<Formula>& size : sizes_[use.raw()]) fixed = fixed && (!size || size->constant());
      } else {
        fixed = false;
      }
    });
    return fixed;
  }

  void FindNumber(const Node& node) {
    std::optional<Formula> number;
    if (node.builtin_op == BuiltinOp::kSize) {
      const auto dim = static_cast<size_t>(node.args[1].constant.toInt());
      const Sizes& sizes = sizes_[node.args[0].value.raw()];
      if (dim < sizes.size()) number = sizes[dim];
    } else if (RowOf(node.builtin_op).result == Type::Kind::kInt) {
      std::vector<Formula> operands;
      for (const Arg& arg : node.args) {
        if (arg.kind != Arg::Kind::kValue && !arg.constant.isInt()) return;
        const bool is_value = arg.kind == Arg::Kind::kValue;
        operands.push_back(is_value ? NumberOf(arg.value) : Formula::Constant(arg.constant.toInt()));
      }
      operands.resize(2);
      number = Apply(node.builtin_op, operands[0], operands[1]);
    }
    if (!number) return;
    if (number->natural()) naturals_.insert(node.outputs[0]);
    numbers_.insert_or_assign(node.outputs[0], *number);
  }

  Formula NumberOf(ValueId id) const {
    const auto it = numbers_.find(id);
    return it != numbers_.end() ? it->second : Formula::Symbol("%" + graph_.value(id).name, naturals_.contains(id));
  }

  std::optional<Formula> FormulaOf(const SizeExpr& expr) const {
    switch (expr.kind) {
      case SizeExpr::Kind::kConst:
        return Formula::Constant(expr.number);
      case SizeExpr::Kind::kSizeOf: {
        const Sizes& sizes = sizes_[expr.value.raw()];
        const auto dim = static_cast<size_t>(expr.number);
        return dim < sizes.size() ? sizes[dim] : std::nullopt;
      }
      case SizeExpr::Kind::kValue:
        return NumberOf(expr.value);
      case SizeExpr::Kind::kOp:
        break;
    }
    const std::optional<Formula> a = FormulaOf(expr.operands->first), b = FormulaOf(expr.operands->second);
    return a && b ? Apply(expr.op, *a, *b) : std::nullopt;
  }

  // Returns none if the formula would be longer than people read.
  static std::optional<Formula> Apply(BuiltinOp op, const Formula& a, const Formula& b) {
    constexpr size_t kMostNodes = 20;
    std::optional<Formula> formula = Formula::Of(op, a, b);
    return formula && formula->nodes() <= kMostNodes ? formula : std::nullopt;
  }

  // Y3; a formula with numbers of the graph cannot be asked.
  bool ComesTo(const Formula& size, int64_t recorded) const {
    bool is_known = true;
    const std::optional<int64_t> value = size.Evaluate([&](const std::string& symbol) -> std::optional<int64_t> {
      const auto it = hints_.find(symbol);
      is_known = is_known && it != hints_.end();
      return it != hints_.end() ? std::optional(it->second) : std::nullopt;
    });
    return !is_known || value == recorded;
  }

  const Graph& graph_;
  std::vector<Sizes> sizes_;  // by ValueId
  absl::flat_hash_map<ValueId, Formula> numbers_;
  absl::flat_hash_set<ValueId> naturals_;
  absl::flat_hash_set<ValueId> fixed_lists_;  // results of fixed nodes: lists are asked for
  std::vector<std::pair<std::string, int64_t>> symbols_;
  std::vector<NodeId> fresh_;
  absl::flat_hash_map<std::string, int64_t> hints_;
  int size_symbols_ = 0, unpredicted_ = 0;
};

}  // namespace

SymbolicSizes SizesInSymbols(const Graph& graph) { return Finder(graph).Find(); }

SymbolicSizes RecordedSizes(const Graph& graph) {
  SymbolicSizes out;
  for (const Value& value : graph.values) {
    out.sizes.emplace_back();
    for (const int64_t size : value.type.sizes) out.sizes.back().push_back(size < 0 ? "?" : absl::StrCat(size));
  }
  return out;
}

}  // namespace frametap
