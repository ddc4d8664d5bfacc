#include "backends/quant/linears.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/stack.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <bit>
#include <iomanip>
#include <numeric>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "backends/quant/frozen_einsum.h"
#include "backends/quant/op_table.h"
#include "backends/quant/operators.h"
#include "backends/reference/boxing.h"
#include "ir/ops/op_facts.h"

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

at::Tensor Times(const at::Tensor& tensor, double factor, FrozenWeights* frozen) {
  if (factor == 1.0) return tensor;
  const auto make = [&] { return FrozenWeights::Tensors{tensor.detach().mul(factor)}; };
  return FrozenWeights::Of(frozen, absl::StrCat("times ", std::bit_cast<uint64_t>(factor)), {tensor}, make)[0];
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

// Whether it is a list of tensors, or of tensors that may be None.
bool HoldsTensors(const c10::Type& type) {
  const c10::TypePtr element = ElementType(type);
  return element != nullptr &&
         (element->kind() == c10::TypeKind::TensorType ||
          (element->kind() == c10::TypeKind::OptionalType &&
           element->castRaw<c10::OptionalType>()->getElementType()->kind() == c10::TypeKind::TensorType));
}

struct Product {
  Arg input;
  at::Tensor weight;           // (in, out)
  at::Tensor bias;             // undefined: none
  double alpha = 1, beta = 1;  // of addmm
};

// The matrix that all matrices of a batch are equal to.
at::Tensor OneOf(const at::Tensor& batch) {
  if (!batch.defined() || batch.dim() != 3 || batch.size(0) == 0 || batch.scalar_type() != at::kFloat) return {};
  const at::Tensor first = batch.select(0, 0);
  return batch.stride(0) == 0 || batch.size(0) == 1 || batch.equal(first.expand_as(batch)) ? first : at::Tensor();
}

std::optional<Product> ProductOf(const Graph& graph, const Node& node, const std::vector<at::Tensor>& known) {
  const bool is_addmm = Is(node, "aten::addmm"), is_bmm = Is(node, "aten::bmm");
  if (!is_addmm && !is_bmm && !Is(node, "aten::matmul") && !Is(node, "aten::mm")) return std::nullopt;
  const auto input = TensorArg(node, is_addmm ? "mat1" : "self");
  const auto weight = TensorArg(node, Is(node, "aten::matmul") ? "other" : "mat2");
  if (!input || !weight || known[input->raw()].defined()) return std::nullopt;
  Product product{Arg::Of(*input), known[weight->raw()], at::Tensor()};
  if (is_bmm) product.weight = OneOf(product.weight);
  if (!product.weight.defined() || product.weight.dim() != 2 || product.weight.scalar_type() != at::kFloat ||
      !IsFloatTensor(graph.value(*input).type) || graph.value(*input).type.sizes.empty()) {
    return std::nullopt;
  }
  if (!is_addmm) return product;
  const auto beta = ConstNumber(FindArg(node, "beta")), alpha = ConstNumber(FindArg(node, "alpha"));
  if (!beta || !alpha) return std::nullopt;
  product.beta = *beta;
  product.alpha = *alpha;
  const auto bias = TensorArg(node, "self");
  if (!bias) return std::nullopt;
  product.bias = known[bias->raw()];
  const bool is_row = product.bias.defined() && product.bias.dim() == 1 &&
                      product.bias.size(0) == product.weight.size(1) && product.bias.scalar_type() == at::kFloat;
  return is_row ? std::optional(product) : std::nullopt;
}

bool IsInOrder(const std::vector<int64_t>& dims) { return std::is_sorted(dims.begin(), dims.end()); }

Type Permuted(const Type& type, const std::vector<int64_t>& dims) {
  Type now = type;
  for (size_t i = 0; i < dims.size(); ++i) now.sizes[i] = type.sizes[static_cast<size_t>(dims[i])];
  return now;
}

// Emits a linear layer between views (L4). Returns the layer.
NodeId EmitEinsum(const Graph& graph, const Node& node, const FrozenEinsum& einsum, FrozenWeights* frozen,
                  Rewrite* out) {
  const Value& result = graph.value(node.outputs[0]);
  const at::Tensor ordered = InOrder(einsum.weight, einsum.weight_order, frozen);
  const at::IntArrayRef outputs = ordered.sizes().slice(0, static_cast<size_t>(einsum.outputs));
  const int64_t rows = c10::multiply_integers(outputs);
  const auto matrix = FrozenWeights::Of(frozen, absl::StrCat("matrix of ", rows, " rows"), {ordered}, [&] {
    return FrozenWeights::Tensors{ordered.view({rows, -1})};
  });
  struct Part {
    const char *op, *overload;
    std::vector<Arg> args;  // after the first one, which is the result of the part before
    Type type;
  };
  std::vector<Part> parts;
  Type type = graph.value(einsum.input).type;
  const auto permute = [&](const std::vector<int64_t>& dims) {
    if (IsInOrder(dims)) return;
    type = Permuted(type, dims);
    parts.push_back({"aten::permute", "", {Arg::Const(dims)}, type});
  };
  permute(einsum.input_order);
  type.sizes.resize(type.sizes.size() - static_cast<size_t>(einsum.contracted) + 1);
  if (einsum.contracted > 1) {
    type.sizes.back() = ordered.numel() / rows;
    parts.push_back({"aten::flatten", "using_ints", {Arg::Const(-einsum.contracted), Arg::Const(int64_t{-1})}, type});
  }
  type.sizes.back() = rows;
  const size_t layer = out->graph.nodes.size() + parts.size();
  const ValueId weight = out->AddConstant(result.name + "_weight", matrix[0]);
  parts.push_back({"aten::linear", "", {Arg::Of(weight), Arg::Const(c10::IValue())}, type});
  if (einsum.outputs > 1) {
    type.sizes.pop_back();
    type.sizes.insert(type.sizes.end(), outputs.begin(), outputs.end());
    parts.push_back({"aten::unflatten", "int", {Arg::Const(int64_t{-1}), Arg::Const(outputs.vec())}, type});
  }
  if (!IsInOrder(einsum.in_memory)) {
    permute(einsum.in_memory);
    parts.push_back({"aten::contiguous", "", {Arg::Const(static_cast<int64_t>(at::MemoryFormat::Contiguous))}, type});
  }
  permute(einsum.from_memory);
  ValueId now = out->at(einsum.input);
  for (Part& part : parts) {
    part.args.insert(part.args.begin(), Arg::Of(now));
    now = out->Emit(FindOperator(part.op, part.overload), std::move(part.args),
                    &part == &parts.back() ? result.name : result.name + "_part", part.type, ValueId(), node);
  }
  out->Map(node.outputs[0], now);
  return NodeId(layer);
}

// Ops on frozen tensors alone whose results only layers read, as weights and biases (L2).
class WeightOps {
 public:
  WeightOps(const Graph& graph, const std::vector<at::Tensor>& known) : graph_(graph), uses_(graph) {
    is_frozen_.resize(graph.values.size());
    for (size_t v = 0; v < known.size(); ++v) is_frozen_[v] = known[v].defined();
    makes_weight_.assign(graph.nodes.size(), false);
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      makes_weight_[i] = OnFrozenAlone(graph.nodes[i]);
      for (const ValueId v : graph.nodes[i].outputs) is_frozen_[v.raw()] = makes_weight_[i];
    }
    for (size_t i = graph.nodes.size(); i-- > 0;) {
      if (makes_weight_[i]) makes_weight_[i] = OnlyLayersRead(graph.nodes[i]);
    }
  }

  bool contains(NodeId n) const { return makes_weight_[n.raw()]; }
  bool is_output(ValueId v) const { return uses_.outputs[v.raw()] > 0; }

 private:
  bool OnFrozenAlone(const Node& node) const {
    if (node.is_scalar() || node.outputs.empty() || node.args.empty()) return false;
    const c10::FunctionSchema& schema = node.op->schema();
    if (schema.is_mutable() || schema.returns().size() != node.outputs.size() || FactsOf(*node.op).random ||
        IsUnderAutocast(graph_, node) || Is(node, "frametap::dequantize_per_channel")) {  // L3
      return false;
    }
    for (const ValueId v : node.outputs) {
      const Type& type = graph_.value(v).type;
      if (type.kind != Type::Kind::kTensor || !type.device.is_cpu()) return false;
    }
    // A change of the weight's memory by an op of the graph leaves no frozen tensor at all (normalise/M4).
    for (size_t i = 0; i < node.args.size(); ++i) {
      const Arg& arg = node.args[i];
      if (arg.kind == Arg::Kind::kValue && !is_frozen_[arg.value.raw()]) return false;
      if (arg.kind == Arg::Kind::kList && !HoldsTensors(*schema.arguments()[i].type())) return false;
      for (const Arg& item : arg.items) {
        if (item.kind != Arg::Kind::kValue || !is_frozen_[item.value.raw()]) return false;
      }
    }
    return true;
  }

  bool OnlyLayersRead(const Node& node) const {
    bool any = false;
    for (const ValueId v : node.outputs) {
      for (const NodeId reader : uses_.nodes[v.raw()]) {
        if (!makes_weight_[reader.raw()] && !IsWeightOf(graph_.node(reader), v)) return false;
        any = true;
      }
      // A result of several that the graph gives as well would be made by another run of the op.
      if (node.outputs.size() > 1 && is_output(v)) return false;
    }
    return any;
  }

  static bool IsWeightOf(const Node& node, ValueId v) {
    if (MayBeLinear(node)) return TensorArg(node, Is(node, "aten::addmm") ? "mat1" : "self") != v;
    return IsLayer(node) && TensorArg(node, "input") != v;
  }

  const Graph& graph_;
  const Uses uses_;
  std::vector<bool> is_frozen_;     // by value
  std::vector<bool> makes_weight_;  // by node
};

}  // namespace

std::optional<std::vector<at::Tensor>> ComputedOnce(const Graph& graph, const Node& node,
                                                    const std::vector<at::Tensor>& known, FrozenWeights* frozen) {
  std::ostringstream what;
  what << std::setprecision(17) << "result of " << node.op_name();
  FrozenWeights::Tensors from;
  const auto take = [&](ValueId v) {
    from.push_back(known[v.raw()]);
    what << " tensor";
    return from.back().defined();
  };
  torch::jit::Stack stack;
  const auto& parameters = node.op->schema().arguments();
  for (size_t i = 0; i < node.args.size(); ++i) {
    const Arg& arg = node.args[i];
    if (arg.kind == Arg::Kind::kValue) {
      if (!take(arg.value)) return std::nullopt;
      stack.emplace_back(from.back().detach());
    } else if (arg.kind == Arg::Kind::kList) {
      c10::impl::GenericList list(ElementType(*parameters[i].type()));
      for (const Arg& item : arg.items) {
        if (!take(item.value)) return std::nullopt;
        list.push_back(from.back().detach());
      }
      what << " in a list";
      stack.emplace_back(std::move(list));
    } else {
      stack.push_back(Box(arg.constant, BoxingFor(*parameters[i].type())));
      what << " " << arg.constant;
    }
  }
  try {
    const FrozenWeights::Tensors results = FrozenWeights::Of(frozen, what.str(), from, [&] {
      node.op->callBoxed(stack);
      FrozenWeights::Tensors made;
      for (const c10::IValue& result : stack) made.push_back(result.toTensor().contiguous());
      return made;
    });
    for (size_t i = 0; i < results.size(); ++i) {
      const Type& type = graph.value(node.outputs[i]).type;
      if (results[i].scalar_type() != type.dtype || results[i].layout() != at::kStrided) return std::nullopt;
    }
    return results;
  } catch (const c10::Error&) {  // the op raises where it stands, too
    return std::nullopt;
  }
}

bool MayBeLinear(const Node& node) {
  return Is(node, "aten::matmul") || Is(node, "aten::mm") || Is(node, "aten::bmm") || Is(node, "aten::addmm") ||
         Is(node, "aten::einsum");
}

Step MakeLinears(const Graph& graph, const std::vector<ValueId>& origin, const std::vector<at::Tensor>& given,
                 FrozenWeights* frozen) {
  Step step{Rewrite(graph, &origin), std::vector<NodeDisposition>(graph.nodes.size())};
  Rewrite& out = step.rewrite;
  const c10::OperatorHandle linear = FindOperator("aten::linear");
  std::vector<at::Tensor> known = given;
  const WeightOps weight_ops(graph, known);
  absl::flat_hash_map<ValueId, ValueId> handed_out;  // results of weight ops that the graph gives, too: a tensor a run
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    std::optional<std::vector<at::Tensor>> computed;
    if (weight_ops.contains(NodeId(i))) computed = ComputedOnce(graph, node, known, frozen);
    if (computed) {
      const bool is_output = weight_ops.is_output(node.outputs[0]);
      if (is_output) step.fates[i].now = out.Copy(node);
      for (size_t o = 0; o < node.outputs.size(); ++o) {
        const ValueId result = node.outputs[o];
        known[result.raw()] = (*computed)[o];
        if (is_output) handed_out[result] = out.at(result);
        out.Map(result, out.AddConstant(graph.value(result).name, (*computed)[o]));
      }
      if (!is_output) step.fates[i].folded = "computed once, of frozen weights";
      continue;
    }
    if (const std::optional<at::Tensor> transposed = Transposed(node, known, frozen)) {
      const ValueId result = node.outputs[0];
      known[result.raw()] = *transposed;
      out.Map(result, out.AddConstant(graph.value(result).name, *transposed));
      step.fates[i].folded = "computed once, of a frozen weight";
      continue;
    }
    if (Is(node, "aten::einsum")) {
      const std::optional<FrozenEinsum> einsum = FrozenEinsumOf(graph, node, known);
      step.fates[i].now = einsum ? EmitEinsum(graph, node, *einsum, frozen, &out) : out.Copy(node);
      continue;
    }
    const std::optional<Product> product = ProductOf(graph, node, known);
    if (!product) {
      step.fates[i].now = out.Copy(node);
      continue;
    }
    const Value& result = graph.value(node.outputs[0]);
    const at::Tensor matrix = Times(InOrder(product->weight, {1, 0}, frozen), product->alpha, frozen);
    const ValueId weight = out.AddConstant(result.name + "_weight", matrix);
    const Arg bias =
        product->bias.defined()
            ? Arg::Of(out.AddConstant(result.name + "_bias", Times(product->bias.detach(), product->beta, frozen)))
            : Arg::Const(c10::IValue());
    std::vector<Arg> input = out.Args({product->input});
    out.Map(node.outputs[0],
            out.Emit(linear, {input[0], Arg::Of(weight), bias}, result.name, result.type, node.outputs[0], node));
    step.fates[i].now = NodeId(out.graph.nodes.size() - 1);
  }
  for (const ValueId v : graph.outputs) {
    const auto handed = handed_out.find(v);
    out.graph.outputs.push_back(handed == handed_out.end() ? out.at(v) : handed->second);
  }
  return step;
}

}  // namespace frametap::quant
