#include "ir/ops/size_rules.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_split.h"
#include "ir/graph/builtin_op.h"
#include "ir/ops/op_facts.h"
#include "ir/ops/op_rows.h"
#include "ir/ops/size_rules_call.h"

namespace frametap {
namespace ops {

Shape Like(const OpCall& call) { return call.First(); }
Shape Broadcast(const OpCall& call) { return BroadcastShape(call.TensorArgs()); }

// ---- Reductions ----

// Over `dim`, or over all dimensions if there is no such argument or it is None.
Shape Reduce(const OpCall& call) {
  const Shape x = call.First();
  const auto keep = call.Flag("keepdim");
  if (!x.known() || !keep) return Shape();
  std::vector<bool> reduced(x.rank(), true);
  if (!call.IsNone("dim")) {
    const auto dims = call.Dims("dim", x.rank());
    if (!dims) return Shape();
    // No dimensions are all of them to some ops and none to others.
    if (dims->empty()) return *keep ? Shape() : call.rank() == x.rank() ? x : Shape::OfRank0();
    reduced.assign(x.rank(), false);
    for (const int64_t dim : *dims) {
      if (dim < x.rank()) reduced[dim] = true;
    }
  }
  std::vector<Size> sizes;
  for (int64_t d = 0; d < x.rank(); ++d) {
    if (!reduced[d]) {
      sizes.push_back(x[d]);
    } else if (*keep) {
      sizes.push_back(1);
    }
  }
  return sizes;
}

// A loss that is not reduced. The size of a reduced one is not read.
Shape Loss(const OpCall& call) {
  if (call.rank() == 0) return Shape::OfRank0();
  return call.ConstInt("reduction") == 0 ? Broadcast(call) : Shape();
}

// A loss against classes: one number an example.
Shape ClassLoss(const OpCall& call) {
  if (call.rank() == 0) return Shape::OfRank0();
  return call.ConstInt("reduction") == 0 ? call.Tensor("target") : Shape();
}

Shape CosineSimilarity(const OpCall& call) {
  const Shape x = BroadcastShape({call.Tensor("x1"), call.Tensor("x2")});
  const auto dim = call.Dim("dim", x.rank());
  return dim ? x.Without(*dim) : Shape();
}

// ---- Products of matrices ----

Shape MatMul(const OpCall& call) {
  const std::vector<Shape> args = call.TensorArgs();
  if (args.size() != 2) return Shape();
  const Shape& a = args[0];
  const Shape& b = args[1];
  if (a.rank() < 1 || b.rank() < 1) return Shape();
  const Shape rows = a.rank() == 1 ? Shape::OfRank0() : Shape{a[-2]};
  const Shape columns = b.rank() == 1 ? Shape::OfRank0() : Shape{b[-1]};
  const Shape batch = BroadcastShape({a.Range(0, std::max<int64_t>(a.rank() - 2, 0)),  //
                                      b.Range(0, std::max<int64_t>(b.rank() - 2, 0))});
  return batch.Then(rows).Then(columns);
}

// The weight may be a vector.
Shape Linear(const OpCall& call) {
  const Shape w = call.Tensor("weight");
  return call.First().Range(0, -1).Then(w.Range(0, -1));
}

Shape Mm(const OpCall& call) { return {call.Tensor("self")[0], call.Tensor("mat2")[1]}; }
Shape AddMm(const OpCall& call) { return {call.Tensor("mat1")[0], call.Tensor("mat2")[1]}; }
Shape Bmm(const OpCall& call) { return call.Tensor("self").Range(0, 2).Then({call.Tensor("mat2")[2]}); }
Shape BaddBmm(const OpCall& call) { return call.Tensor("batch1").Range(0, 2).Then({call.Tensor("batch2")[2]}); }
Shape AddBmm(const OpCall& call) { return {call.Tensor("batch1")[1], call.Tensor("batch2")[2]}; }
Shape Histogram(const OpCall& call) { return {call.Int("bins")}; }

// With a row of matrices, one of both is a matrix whose rows or columns `offs` divides among them.
Shape GroupedMm(const OpCall& call) {
  const Shape a = call.Tensor("self");
  const Shape b = call.Tensor("mat2");
  if (a.rank() == 3 && b.rank() == 3) return {a[0], a[1], b[2]};
  if (a.rank() == 2 && b.rank() == 3) return {a[0], b[2]};
  if (a.rank() == 3 && b.rank() == 2) return {a[1], b[1]};
  if (a.rank() == 2 && b.rank() == 2) return {call.Tensor("offs")[0], a[0], b[1]};
  return Shape();
}

Shape Mv(const OpCall& call) { return {call.Tensor("self")[0]}; }

// A vector is added to nothing if the matrix is empty: it is the result then, whatever its size.
Shape AddMv(const OpCall& call) {
  const Shape added = call.First();
  const Shape mat = call.Tensor("mat");
  return {added.rank() == 1 ? Max(added[0], mat[0] * Min(mat[1], 1)) : mat[0]};
}

Shape Outer(const OpCall& call) { return {call.Tensor("self")[0], call.Tensor("vec2")[0]}; }
Shape AddR(const OpCall& call) { return {call.Tensor("vec1")[0], call.Tensor("vec2")[0]}; }
Shape Dot(const OpCall&) { return Shape::OfRank0(); }

Shape Inner(const OpCall& call) {
  const Shape a = call.Tensor("self");
  const Shape b = call.Tensor("other");
  if (a.rank() == 0 || b.rank() == 0) return Broadcast(call);
  return a.Range(0, -1).Then(b.Range(0, -1));
}

Shape TensorDot(const OpCall& call) {
  const auto rest = [&](const char* tensor, const char* dims_name) {
    const Shape x = call.Tensor(tensor);
    const auto dims = call.Dims(dims_name, x.rank());
    if (!dims) return Shape();
    std::vector<Size> sizes;
    for (int64_t d = 0; d < x.rank(); ++d) {
      if (std::find(dims->begin(), dims->end(), d) == dims->end()) sizes.push_back(x[d]);
    }
    return Shape(std::move(sizes));
  };
  return rest("self", "dims_self").Then(rest("other", "dims_other"));
}

// "bij,bjk->bik". Without an arrow or with an ellipsis there is no answer.
Shape Einsum(const OpCall& call) {
  auto equation = call.Text("equation");
  const auto operands = call.List("tensors");
  if (!equation || !operands) return Shape();
  equation->erase(std::remove(equation->begin(), equation->end(), ' '), equation->end());
  const std::vector<std::string> sides = absl::StrSplit(*equation, "->");
  const std::vector<std::string> terms = absl::StrSplit(sides[0], ',');
  if (sides.size() != 2 || equation->find('.') != std::string::npos || terms.size() != operands->size()) return Shape();
  std::map<char, std::vector<Size>> sizes_of;  // a dimension of size 1 is broadcast
  for (size_t i = 0; i < terms.size(); ++i) {
    if ((*operands)[i].rank() != static_cast<int64_t>(terms[i].size())) return Shape();
    for (size_t d = 0; d < terms[i].size(); ++d) sizes_of[terms[i][d]].push_back((*operands)[i][d]);
  }
  std::vector<Size> result;
  for (const char label : sides[1]) {
    const auto it = sizes_of.find(label);
    if (it == sizes_of.end()) return Shape();
    result.push_back(BroadcastSize(it->second));
  }
  return result;
}

// The rows of CDist are points.
Shape CDist(const OpCall& call) {
  const Shape a = call.Tensor("x1");
  const Shape b = call.Tensor("x2");
  if (a.rank() < 2 || b.rank() < 2) return Shape();
  return BroadcastShape({a.Range(0, -2), b.Range(0, -2)}).Then({a[-2], b[-2]});
}

Shape Bilinear(const OpCall& call) { return call.First().Range(0, -1).Then({call.Tensor("weight")[0]}); }

Shape One(const OpCall& call) { return Shape({1}); }

}  // namespace ops

namespace {

// Z3
bool ReturnsWhatItWrites(const c10::FunctionSchema& schema) {
  if (schema.arguments().empty() || schema.returns().size() != 1) return false;
  const c10::AliasInfo* const written = schema.arguments()[0].alias_info();
  const c10::AliasInfo* const returned = schema.returns()[0].alias_info();
  return written != nullptr && returned != nullptr && written->isWrite() && *written == *returned;
}

SizeRule* RuleOf(const c10::OperatorHandle& op) {
  SizeRule* const rule = OpRowOf(op).sizes;
  if (rule != nullptr || !ReturnsWhatItWrites(op.schema()) || FactsOf(op).changes_metadata) return rule;
  return ops::Like;
}

std::optional<size_t> OutputIndex(const Node& node, ValueId value) {
  const auto it = std::find(node.outputs.begin(), node.outputs.end(), value);
  if (it == node.outputs.end()) return std::nullopt;
  return it - node.outputs.begin();
}

}  // namespace

std::vector<std::optional<SizeExpr>> SizesOf(const Graph& graph, ValueId value,
                                             const absl::flat_hash_set<ValueId>& naturals) {
  const Value& asked = graph.value(value);
  const int64_t rank = static_cast<int64_t>(asked.type.sizes.size());
  if (asked.type.kind != Type::Kind::kTensor || !asked.def.valid()) return {};
  const Node* node = &graph.node(asked.def);
  ValueId result = value;
  int64_t item = -1;
  if (node->builtin_op == BuiltinOp::kListItem) {
    const Arg& list = node->args[0];
    const Arg& index = node->args[1];
    if (list.kind != Arg::Kind::kValue || index.kind != Arg::Kind::kConst || !index.constant.isInt()) {
      return {};
    }
    result = list.value;
    item = index.constant.toInt();
    if (item < 0 || !graph.value(result).def.valid()) return {};
    node = &graph.node(graph.value(result).def);
  }
  if (node->is_scalar()) return {};
  SizeRule* const rule = RuleOf(*node->op);
  const auto output = OutputIndex(*node, result);
  if (rule == nullptr || !output) return {};
  const Shape shape = rule(OpCall(graph, *node, *output, item, rank, naturals));
  // A rule that comes to another rank has misread its arguments.
  std::vector<std::optional<SizeExpr>> sizes;
  if (shape.rank() != rank) return sizes;
  sizes.reserve(shape.sizes().size());
  for (const Size& size : shape.sizes()) sizes.push_back(size.expr());
  return sizes;
}

bool HasSizeRule(const c10::OperatorHandle& op) { return RuleOf(op) != nullptr; }

std::vector<std::string> OpsWithSizeRules() {
  std::vector<std::string> names;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (op && name.getNamespace() == "aten" && HasSizeRule(*op)) names.push_back(c10::toString(name));
  }
  return names;
}

}  // namespace frametap
