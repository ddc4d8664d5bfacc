#include "backends/quant/curve_chains.h"

#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "backends/quant/op_table.h"
#include "backends/quant/operators.h"
#include "backends/reference/boxing.h"

namespace frametap::quant {
namespace {

struct OpName {
  const char* name;
  const char* overload;
};

constexpr OpName kLinks[] = {{"aten::mul", "Tensor"},        {"aten::add", "Tensor"},  {"aten::sub", "Tensor"},
                             {"aten::div", "Tensor"},        {"aten::rsub", "Scalar"}, {"aten::neg", ""},
                             {"aten::pow", "Tensor_Scalar"}, {"aten::square", ""},     {"aten::tanh", ""},
                             {"aten::sigmoid", ""},          {"aten::erf", ""},        {"aten::exp", ""},
                             {"aten::reciprocal", ""},       {"aten::softplus", ""}};

constexpr size_t kMostLinks = 16;

// G2.
at::Tensor Points() {
  std::vector<float> points{0, std::numeric_limits<float>::quiet_NaN()};
  constexpr int kSteps = 32, kNear = 12;
  for (int i = 1; i <= kSteps * kNear; ++i) points.push_back(static_cast<float>(i) / kSteps);
  for (int i = -80; i <= 80; ++i) points.push_back(std::exp2(static_cast<float>(i) / 2));
  const size_t half = points.size();
  for (size_t i = 0; i < half; ++i) points.push_back(-points[i]);
  const at::Tensor tensor = at::empty({static_cast<int64_t>(points.size())}, at::kFloat);
  std::copy(points.begin(), points.end(), tensor.mutable_data_ptr<float>());
  return tensor;
}

bool Agree(const at::Tensor& points, const at::Tensor& a, const at::Tensor& b) {
  constexpr float kRounding = 2e-6f;
  if (a.sizes() != points.sizes() || a.scalar_type() != at::kFloat) return false;
  const at::Tensor left = a.contiguous();
  const float* const x = points.const_data_ptr<float>();
  const float* const f = left.const_data_ptr<float>();
  const float* const g = b.const_data_ptr<float>();
  return std::all_of(x, x + points.numel(), [&](const float& at) {
    const float mine = f[&at - x], theirs = g[&at - x];
    if (std::isnan(theirs) || std::isinf(theirs)) return std::isnan(theirs) ? std::isnan(mine) : mine == theirs;
    return std::abs(mine - theirs) <= kRounding * (std::abs(theirs) + std::min(1.0f, std::abs(at)));
  });
}

// An op that a chain may be, with the arguments after its first one and with its results on the points.
struct Curve {
  c10::OperatorHandle op;
  std::vector<c10::IValue> rest;
  at::Tensor results;
};

std::vector<Curve> CurvesOn(const at::Tensor& points) {
  std::vector<Curve> curves;
  const auto add = [&](const char* name, std::vector<c10::IValue> rest) {
    const c10::OperatorHandle op = FindOperator(name);
    torch::jit::Stack stack{points};
    stack.insert(stack.end(), rest.begin(), rest.end());
    op.callBoxed(stack);
    curves.push_back({op, std::move(rest), stack[0].toTensor()});
  };
  add("aten::gelu", {"tanh"});
  add("aten::gelu", {"none"});
  for (const char* name : {"aten::silu", "aten::sigmoid", "aten::mish"}) add(name, {});
  return curves;
}

class Chains {
 public:
  Chains(const Graph& graph, const std::vector<bool>& written) : graph_(graph), written_(written), uses_(graph) {
    for (size_t i = 0; i < graph.nodes.size(); ++i) is_link_.push_back(IsLink(graph.nodes[i]));
  }

  struct Found {
    ValueId input;
    const Curve* curve;
    std::vector<NodeId> links;  // without the last one
  };

  // The longest chain that ends with this node and is a curve.
  std::optional<Found> EndingAt(NodeId last) {
    if (!is_link_[last.raw()]) return std::nullopt;
    const std::vector<NodeId> cone = ConeOf(last);
    if (cone.size() < 2) return std::nullopt;
    // Those that are defined first begin the longest chains.
    std::vector<ValueId> inputs;
    for (const NodeId n : cone) ForEachUse(graph_.node(n).args, [&](ValueId v) { inputs.push_back(v); });
    std::sort(inputs.begin(), inputs.end());
    inputs.erase(std::unique(inputs.begin(), inputs.end()), inputs.end());
    for (const ValueId input : inputs) {
      std::vector<NodeId> links;
      if (!IsFloatTensor(graph_.value(input).type) || written_[input.raw()] || !Collect(last, input, cone, &links))
        continue;
      if (links.size() < 2) continue;
      std::sort(links.begin(), links.end());
      if (const Curve* const curve = CurveOf(input, links)) {
        links.pop_back();
        return Found{input, curve, std::move(links)};
      }
    }
    return std::nullopt;
  }

 private:
  bool IsLink(const Node& node) const {
    const auto is_named = [&](const OpName& op) { return Is(node, op.name, op.overload); };
    if (std::none_of(std::begin(kLinks), std::end(kLinks), is_named) || IsUnderAutocast(graph_, node)) return false;
    const ValueId result = node.outputs[0];
    const bool has_known_args = std::all_of(node.args.begin(), node.args.end(), [&](const Arg& arg) {
      return arg.kind == Arg::Kind::kConst ||
             (arg.kind == Arg::Kind::kValue && graph_.value(arg.value).type.sizes == graph_.value(result).type.sizes &&
              IsFloatTensor(graph_.value(arg.value).type));
    });
    return has_known_args && IsFloatTensor(graph_.value(result).type) && !written_[result.raw()];
  }

  // The node, and the links before it whose results nothing outside of the cone reads (G1). In reverse order.
  std::vector<NodeId> ConeOf(NodeId last) const {
    std::vector<NodeId> cone{last};
    const auto is_inside = [&](NodeId n) { return std::find(cone.begin(), cone.end(), n) != cone.end(); };
    for (size_t i = last.raw(); i-- > 0 && cone.size() < kMostLinks;) {
      if (!is_link_[i]) continue;
      const ValueId result = graph_.nodes[i].outputs[0];
      const auto& readers = uses_.nodes[result.raw()];
      const bool is_read_inside = !readers.empty() && std::all_of(readers.begin(), readers.end(), is_inside);
      if (is_read_inside && uses_.outputs[result.raw()] == 0) cone.push_back(NodeId(i));
    }
    return cone;
  }

  // Collects the nodes of the cone between `input` and `n`. Returns false if they read another value.
  bool Collect(NodeId n, ValueId input, const std::vector<NodeId>& cone, std::vector<NodeId>* links) const {
    if (std::find(cone.begin(), cone.end(), n) == cone.end()) return false;
    if (std::find(links->begin(), links->end(), n) != links->end()) return true;
    links->push_back(n);
    bool reads_input_alone = true;
    ForEachUse(graph_.node(n).args, [&](ValueId v) {
      if (v == input || !reads_input_alone) return;
      const NodeId def = graph_.value(v).def;
      reads_input_alone = def.valid() && Collect(def, input, cone, links);
    });
    return reads_input_alone;
  }

  const Curve* CurveOf(ValueId input, const std::vector<NodeId>& links) const {
    absl::flat_hash_map<ValueId, at::Tensor> results{{input, points_}};
    for (const NodeId n : links) {
      const Node& node = graph_.node(n);
      torch::jit::Stack stack;
      const auto& parameters = node.op->schema().arguments();
      for (size_t i = 0; i < node.args.size(); ++i) {
        const Arg& arg = node.args[i];
        if (arg.kind == Arg::Kind::kValue) {
          stack.emplace_back(results.at(arg.value));
        } else {
          stack.push_back(Box(arg.constant, BoxingFor(*parameters[i].type())));
        }
      }
      node.op->callBoxed(stack);
      results[node.outputs[0]] = stack[0].toTensor();
    }
    const at::Tensor& made = results.at(graph_.node(links.back()).outputs[0]);
    const auto found = std::find_if(curves_.begin(), curves_.end(),
                                    [&](const Curve& curve) { return Agree(points_, made, curve.results); });
    return found == curves_.end() ? nullptr : &*found;
  }

  const Graph& graph_;
  const std::vector<bool>& written_;
  const Uses uses_;
  std::vector<bool> is_link_;  // by node
  const at::Tensor points_ = Points();
  const std::vector<Curve> curves_ = CurvesOn(points_);
};

}  // namespace

Step NameCurves(const Graph& graph, const std::vector<ValueId>& origin, const std::vector<bool>& written) {
  Step step{Rewrite(graph, &origin), std::vector<NodeDisposition>(graph.nodes.size())};
  Rewrite& out = step.rewrite;
  Chains chains(graph, written);
  absl::flat_hash_map<NodeId, Chains::Found> found;  // by the last link
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    if (!step.fates[i].folded.empty()) continue;  // part of a longer one
    auto chain = chains.EndingAt(NodeId(i));
    if (!chain) continue;
    for (const NodeId n : chain->links) {
      step.fates[n.raw()].folded = absl::StrCat("part of ", chain->curve->op.operator_name().name, ", which ends in ",
                                                NameWithPlace(graph.nodes[i]));
    }
    found.emplace(NodeId(i), *std::move(chain));
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (!step.fates[i].folded.empty()) continue;
    const Node& node = graph.nodes[i];
    const auto chain = found.find(NodeId(i));
    if (chain == found.end()) {
      step.fates[i].now = out.Copy(node);
      continue;
    }
    std::vector<Arg> args{Arg::Of(out.at(chain->second.input))};
    for (const c10::IValue& value : chain->second.curve->rest) args.push_back(Arg::Const(value));
    const ValueId result = node.outputs[0];
    const Value& value = graph.value(result);
    out.Map(result, out.Emit(chain->second.curve->op, std::move(args), value.name, value.type, result, node));
    step.fates[i].now = NodeId(out.graph.nodes.size() - 1);
  }
  out.CopyOutputs();
  return step;
}

}  // namespace frametap::quant
