#include "backends/quant/linears.h"

#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "backends/quant/op_table.h"
#include "backends/quant/operators.h"

namespace frametap::quant {
namespace {

bool IsTransposition(const Node& node) {
  return Is(node, "aten::t") || Is(node, "aten::numpy_T") || Is(node, "aten::mT") ||
         Is(node, "aten::transpose", "int") || Is(node, "aten::permute");
}

// The tensor with its dimensions in this order, once for all graphs that have it.
at::Tensor InOrder(const at::Tensor& tensor, const std::vector<int64_t>& dims, FrozenWeights* frozen) {
  const auto make = [&] { return FrozenWeights::Tensors{tensor.detach().permute(dims).contiguous()}; };
  return FrozenWeights::Of(frozen, absl::StrCat("in order ", absl::StrJoin(dims, " ")), {tensor}, make)[0];
}

// Returns the transposed tensor, or none if the node is of another kind or not all of its arguments are fixed.
std::optional<at::Tensor> Transposed(const Node& node, const std::vector<at::Tensor>& known, FrozenWeights* frozen) {
  if (!IsTransposition(node)) return std::nullopt;
  const auto input = TensorArg(node, "self");
  if (!input || !known[input->raw()].defined()) return std::nullopt;
  const at::Tensor& tensor = known[input->raw()];
  std::vector<int64_t> dims(tensor.dim());
  std::iota(dims.begin(), dims.end(), 0);
  if (Is(node, "aten::permute")) {
    const auto order = ConstInts(FindArg(node, "dims"));
    if (!order) return std::nullopt;
    dims = *order;
  } else if (Is(node, "aten::transpose", "int")) {
    const auto a = ConstInt(FindArg(node, "dim0")), b = ConstInt(FindArg(node, "dim1"));
    if (!a || !b || tensor.dim() == 0) return std::nullopt;
    std::swap(dims[(*a + tensor.dim()) % tensor.dim()], dims[(*b + tensor.dim()) % tensor.dim()]);
  } else if (tensor.dim() != 2) {
    return std::nullopt;
  } else {
    std::swap(dims[0], dims[1]);
  }
  return InOrder(tensor, dims, frozen);
}

struct Product {
  Arg input;
  at::Tensor weight;  // (in, out)
  at::Tensor bias;    // undefined: none
};

std::optional<Product> ProductOf(const Graph& graph, const Node& node, const std::vector<at::Tensor>& known) {
  const bool is_addmm = Is(node, "aten::addmm");
  if (!is_addmm && !Is(node, "aten::matmul") && !Is(node, "aten::mm")) return std::nullopt;
  const auto input = TensorArg(node, is_addmm ? "mat1" : "self");
  const auto weight = TensorArg(node, is_addmm ? "mat2" : Is(node, "aten::mm") ? "mat2" : "other");
  if (!input || !weight || known[input->raw()].defined()) return std::nullopt;
  Product product{Arg::Of(*input), known[weight->raw()], at::Tensor()};
  if (!product.weight.defined() || product.weight.dim() != 2 || product.weight.scalar_type() != at::kFloat ||
      !IsFloatTensor(graph.value(*input).type) || graph.value(*input).type.sizes.empty()) {
    return std::nullopt;
  }
  if (!is_addmm) return product;
  if (ConstNumber(FindArg(node, "beta")) != 1.0 || ConstNumber(FindArg(node, "alpha")) != 1.0) return std::nullopt;
  const auto bias = TensorArg(node, "self");
  if (!bias) return std::nullopt;
  product.bias = known[bias->raw()];
  const bool is_row = product.bias.defined() && product.bias.dim() == 1 &&
                      product.bias.size(0) == product.weight.size(1) && product.bias.scalar_type() == at::kFloat;
  return is_row ? std::optional(product) : std::nullopt;
}

}  // namespace

Step MakeLinears(const Graph& graph, const std::vector<ValueId>& origin, const std::vector<at::Tensor>& given,
                 FrozenWeights* frozen) {
  Step step{Rewrite(graph, &origin), std::vector<Fate>(graph.nodes.size())};
  Rewrite& out = step.rewrite;
  const c10::OperatorHandle linear = FindOperator("aten::linear");
  std::vector<at::Tensor> known = given;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (const std::optional<at::Tensor> transposed = Transposed(node, known, frozen)) {
      const ValueId result = node.outputs[0];
      known[result.raw()] = *transposed;
      out.Map(result, out.AddConstant(graph.value(result).name, *transposed));
      step.fates[i].folded = "computed once, of a frozen weight";
      continue;
    }
    const std::optional<Product> product = ProductOf(graph, node, known);
    if (!product) {
      step.fates[i].now = out.Copy(node);
      continue;
    }
    const Value& result = graph.value(node.outputs[0]);
    const ValueId weight = out.AddConstant(result.name + "_weight", InOrder(product->weight, {1, 0}, frozen));
    const Arg bias = product->bias.defined() ? Arg::Of(out.AddConstant(result.name + "_bias", product->bias.detach()))
                                             : Arg::Const(c10::IValue());
    std::vector<Arg> input = out.Args({product->input});
    out.Map(node.outputs[0],
            out.Emit(linear, {input[0], Arg::Of(weight), bias}, result.name, result.type, node.outputs[0], node));
    step.fates[i].now = NodeId(out.graph.nodes.size() - 1);
  }
  out.CopyOutputs();
  return step;
}

}  // namespace frametap::quant
