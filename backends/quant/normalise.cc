#include "backends/quant/normalise.h"

#include <ATen/core/grad_mode.h>

#include <bit>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "backends/quant/attention_chains.h"
#include "backends/quant/convolution.h"
#include "backends/quant/curve_chains.h"
#include "backends/quant/decomposed.h"
#include "backends/quant/linears.h"
#include "backends/quant/op_table.h"
#include "backends/quant/pieces.h"
#include "backends/quant/states.h"

namespace frametap::quant {
namespace {

// Whether the out-of-place form of an in-place op gives the same dtype.
bool IsOfFloats(const Graph& graph, const Node& node) {
  if (Is(node, "aten::masked_fill_", "Scalar")) return IsFloatTensor(graph.value(node.outputs[0]).type);
  bool all = true;
  ForEachUse(node.args, [&](ValueId v) {
    const Type& t = graph.value(v).type;
    all = all && (t.kind != Type::Kind::kTensor || IsFloatTensor(t));
  });
  return all;
}

// The out-of-place form of an in-place op: the same name without the underscore, with the same arguments.
std::optional<c10::OperatorHandle> OutOfPlace(const Node& node) {
  if (node.is_scalar() || node.outputs.size() != 1) return std::nullopt;
  const c10::OperatorName& name = node.op->operator_name();
  if (name.name.size() < 2 || name.name.back() != '_' || name.name.compare(0, 6, "aten::") != 0) return std::nullopt;
  auto found = c10::Dispatcher::singleton().findSchema(
      c10::OperatorName(name.name.substr(0, name.name.size() - 1), name.overload_name));
  if (!found) return std::nullopt;
  const auto& mine = node.op->schema().arguments();
  const auto& theirs = found->schema().arguments();
  if (mine.size() != theirs.size() || found->schema().returns().size() != 1) return std::nullopt;
  for (size_t i = 0; i < mine.size(); ++i) {
    if (mine[i].name() != theirs[i].name() || (i > 0 && mine[i].alias_info() != nullptr)) return std::nullopt;
  }
  return found;
}

}  // namespace

Step RemoveWrites(const Graph& graph, const std::vector<ValueId>& origin) {
  Step step{Rewrite(graph, &origin), std::vector<NodeDisposition>(graph.nodes.size())};
  Rewrite& out = step.rewrite;
  const Aliases aliases(graph);
  std::vector<int> last_use(graph.values.size(), -1);
  std::vector<bool> outside(graph.values.size(), false);  // by alias root: memory of an input or a constant
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    ForEachUse(graph.nodes[i].args, [&](ValueId v) { last_use[v.raw()] = static_cast<int>(i); });
  }
  for (ValueId v : graph.outputs) last_use[v.raw()] = static_cast<int>(graph.nodes.size());
  for (ValueId v : graph.inputs) outside[aliases.root(v)] = true;
  for (const auto& [v, tensor] : graph.constants) outside[aliases.root(v)] = true;

  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const OpRow* row = RowOf(node);
    if (row != nullptr && row->family == Family::kDropout && ConstBool(FindArg(node, "train")) == false &&
        node.args[0].kind == Arg::Kind::kValue) {
      out.Map(node.outputs[0], out.at(node.args[0].value));
      step.fates[i].folded = "dropout does nothing in eval mode";
      continue;
    }
    if (Is(node, "aten::detach_") && node.args[0].kind == Arg::Kind::kValue) {
      out.Map(node.outputs[0], out.at(node.args[0].value));
      step.fates[i].folded = "no gradients are computed";
      continue;
    }
    const auto form = OutOfPlace(node);
    if (form && node.args[0].kind == Arg::Kind::kValue) {
      const ValueId self = node.args[0].value;
      std::string why;
      if (outside[aliases.root(self)]) why = "it may write to memory that existed before the graph";
      if (!IsOfFloats(graph, node)) why = "it mixes dtypes";
      for (size_t v = 0; v < graph.values.size() && why.empty(); ++v) {
        const ValueId other(v);
        if (other == self || other == node.outputs[0] || !out.has(other)) continue;  // not defined before this node
        if (aliases.same(other, self) && last_use[v] > static_cast<int>(i)) {
          why = absl::StrCat("it writes to memory that is read later as %", graph.value(other).name);
        }
      }
      if (why.empty()) {
        Node now = node;
        now.op = form;
        step.fates[i].now = out.Copy(now);
        // Whoever reads the overwritten value from here on reads the result.
        out.Map(self, out.at(node.outputs[0]));
        continue;
      }
      step.fates[i].note = why;
    }
    step.fates[i].now = out.Copy(node);
  }
  out.CopyOutputs();
  return step;
}

namespace {

struct Affine {
  at::Tensor weight;
  at::Tensor bias;
};

// M3. In double: the folded weight is then the nearest float. `groups`: of a transposed convolution, whose outputs are
// in the second dimension, group by group; 0 for all others.
Affine FoldBatchNorm(int64_t groups, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& gamma,
                     const at::Tensor& beta, const at::Tensor& mean, const at::Tensor& variance, double eps) {
  const auto wide = [](const at::Tensor& t) { return t.detach().to(at::kDouble); };
  at::Tensor factor = wide(variance).add(eps).rsqrt();
  if (gamma.defined()) factor = factor.mul(wide(gamma));
  std::vector<int64_t> sizes = weight.sizes().vec();
  if (groups > 0) {
    sizes[0] /= groups;
    sizes.insert(sizes.begin(), groups);
  }
  std::vector<int64_t> shape(sizes.size(), 1);
  shape[0] = groups > 0 ? groups : -1;
  if (groups > 0) shape[2] = -1;
  at::Tensor shift = wide(mean).mul(factor).neg();
  if (bias.defined()) shift = shift.add(wide(bias).mul(factor));
  if (beta.defined()) shift = shift.add(wide(beta));
  const at::Tensor scaled = wide(weight).reshape(sizes).mul(factor.view(shape)).view(weight.sizes());
  return {scaled.to(at::kFloat).contiguous(weight.suggest_memory_format()), shift.to(at::kFloat)};
}

std::vector<at::Tensor> KnownOf(const Graph& graph, const std::vector<at::Tensor>& weights) {
  std::vector<at::Tensor> known(graph.values.size());
  for (size_t i = 0; i < graph.inputs.size() && i < weights.size(); ++i) known[graph.inputs[i].raw()] = weights[i];
  for (const auto& [v, tensor] : graph.constants) known[v.raw()] = tensor;
  return known;
}

void FindWritten(NormalizedGraph* normal) {
  const Graph& graph = normal->graph;
  const Aliases aliases(graph);
  std::vector<NodeId> last(graph.values.size());  // by alias root
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (ValueId v : WrittenBy(graph.nodes[i])) last[aliases.root(v)] = NodeId(i);
  }
  normal->written.assign(graph.values.size(), false);
  normal->rewritten.assign(graph.values.size(), false);
  normal->writer.assign(graph.values.size(), "");
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const NodeId writer = last[aliases.root(ValueId(v))], def = graph.values[v].def;
    if (!writer.valid()) continue;
    normal->written[v] = true;
    const bool is_state = def.valid() && IsState(graph.node(def));  // states/T1
    normal->rewritten[v] = !is_state && (!def.valid() || def < writer);
    normal->writer[v] = NameWithPlace(graph.node(writer));
  }
}

// An optional tensor argument that is None or frozen. Returns false if it is neither.
bool Frozen(const Node& node, const char* name, const std::vector<at::Tensor>& known, at::Tensor* out) {
  const Arg* arg = FindArg(node, name);
  if (arg == nullptr || IsNone(arg)) return true;
  if (arg->kind == Arg::Kind::kConst && arg->constant.isTensor()) {
    *out = arg->constant.toTensor();
    return true;
  }
  if (arg->kind != Arg::Kind::kValue) return false;
  *out = known[arg->value.raw()];
  return out->defined();
}

bool AreFloat(std::initializer_list<at::Tensor> tensors) {
  for (const at::Tensor& t : tensors) {
    if (t.defined() && t.scalar_type() != at::kFloat) return false;
  }
  return true;
}

// The node that `norm` can be folded into, or why there is none.
NodeId FoldTarget(const Graph& graph, const Uses& uses, const std::vector<at::Tensor>& known, const Node& norm,
                  FrozenWeights* frozen, std::string* why, Affine* affine) {
  const auto input = TensorArg(norm, "input");
  if (!input || !graph.value(*input).def.valid()) {
    *why = "there is no convolution or linear before it to fold it into";
    return NodeId();
  }
  const NodeId target = graph.value(*input).def;
  const Node& before = graph.node(target);
  const OpRow* row = RowOf(before);
  if (row == nullptr || (row->family != Family::kConv && row->family != Family::kLinear)) {
    *why = absl::StrCat("it comes after ", NameWithPlace(before),
                        "; only a convolution or a linear right before it can take it in");
    return NodeId();
  }
  if (uses.count(*input) != 1) {
    *why = absl::StrCat("the result of ", NameWithPlace(before), " is read by others too");
    return NodeId();
  }
  if (FindArg(norm, "training") != nullptr && ConstBool(FindArg(norm, "training")) != false) {
    *why = "it is in training mode; call eval() before capturing";
    return NodeId();
  }
  for (size_t i = 1; i < norm.outputs.size(); ++i) {
    if (uses.count(norm.outputs[i]) == 0) continue;
    *why = "its statistics are read";
    return NodeId();
  }
  if (row->family == Family::kLinear && graph.value(*input).type.sizes.size() != 2) {
    *why = "the linear before it has more than two dimensions, so that their channels differ";
    return NodeId();
  }
  at::Tensor weight, bias, gamma, beta, mean, variance;
  const auto eps = ConstNumber(FindArg(norm, "eps"));
  if (!Frozen(before, "weight", known, &weight) || !weight.defined() || !Frozen(before, "bias", known, &bias) ||
      !Frozen(norm, "weight", known, &gamma) || !Frozen(norm, "bias", known, &beta) ||
      !Frozen(norm, "running_mean", known, &mean) || !Frozen(norm, "running_var", known, &variance) ||
      !mean.defined() || !variance.defined() || !eps) {
    *why = "its parameters, or the parameters of the op before it, are not frozen";
    return NodeId();
  }
  if (!AreFloat({weight, bias, gamma, beta, mean, variance})) {
    *why = "its parameters are not float32";
    return NodeId();
  }
  const int64_t groups = IsTransposedConvolution(before) ? ConstInt(FindArg(before, "groups")).value_or(0) : 0;
  if (IsTransposedConvolution(before) && groups == 0) {
    *why = "the transposed convolution before it has groups that are not constant";
    return NodeId();
  }
  const auto folded = FrozenWeights::Of(frozen, absl::StrCat("folded ", std::bit_cast<uint64_t>(*eps), " ", groups),
                                        {weight, bias, gamma, beta, mean, variance}, [&] {
                                          const Affine made =
                                              FoldBatchNorm(groups, weight, bias, gamma, beta, mean, variance, *eps);
                                          return FrozenWeights::Tensors{made.weight, made.bias};
                                        });
  *affine = {folded[0], folded[1]};
  return target;
}

Step FoldNorms(const Graph& graph, const std::vector<ValueId>& origin, const std::vector<at::Tensor>& known,
               FrozenWeights* frozen) {
  Step step{Rewrite(graph, &origin), std::vector<NodeDisposition>(graph.nodes.size())};
  Rewrite& out = step.rewrite;
  const Uses uses(graph);
  std::vector<NodeId> norm_of(graph.nodes.size());
  std::vector<Affine> affine_of(graph.nodes.size());
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const OpRow* row = RowOf(graph.nodes[i]);
    if (row == nullptr || row->family != Family::kBatchNorm) continue;
    Affine affine;
    const NodeId target = FoldTarget(graph, uses, known, graph.nodes[i], frozen, &step.fates[i].note, &affine);
    if (!target.valid()) continue;
    step.fates[i].folded = absl::StrCat("folded into the weight of ", NameWithPlace(graph.node(target)));
    norm_of[target.raw()] = NodeId(i);
    affine_of[target.raw()] = affine;
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (!step.fates[i].folded.empty()) continue;
    if (!norm_of[i].valid()) {
      step.fates[i].now = out.Copy(node);
      continue;
    }
    const ValueId result = graph.node(norm_of[i]).outputs[0];
    const std::string name = graph.value(result).name;
    std::vector<Arg> args = out.Args(node.args);
    const ValueId weight = out.AddConstant(name + "_weight", affine_of[i].weight);
    const ValueId bias = out.AddConstant(name + "_bias", affine_of[i].bias);
    args[FindArg(node, "weight") - node.args.data()] = Arg::Of(weight);
    args[FindArg(node, "bias") - node.args.data()] = Arg::Of(bias);
    const ValueId now = out.Emit(*node.op, std::move(args), name, graph.value(result).type, result, node);
    out.Map(result, now);
    step.fates[i].now = NodeId(out.graph.nodes.size() - 1);
  }
  out.CopyOutputs();
  return step;
}

// `fates` leads to nodes of the graph that the next step began with.
void Follow(const std::vector<NodeDisposition>& next_step, std::vector<NodeDisposition>* fates) {
  for (NodeDisposition& fate : *fates) {
    if (!fate.now.valid()) continue;
    const NodeDisposition& next = next_step[fate.now.raw()];
    fate.now = next.now;
    if (!next.folded.empty()) fate.folded = next.folded;
    if (!next.note.empty()) fate.note = next.note;
    fate.is_int8 = fate.is_int8 || next.is_int8;
  }
}

// M4. Fills in the frozen tensors, and which values are written by which op.
void FindKnown(const std::vector<at::Tensor>& weights, NormalizedGraph* normal) {
  normal->known = KnownOf(normal->graph, weights);
  FindWritten(normal);
  for (size_t v = 0; v < normal->known.size(); ++v) {
    if (normal->written[v]) normal->known[v] = at::Tensor();
  }
}

}  // namespace

void GoOn(Step step, const std::vector<at::Tensor>& weights, NormalizedGraph* normal) {
  normal->graph = std::move(step.rewrite.graph);
  normal->origin = std::move(step.rewrite.origin);
  FindKnown(weights, normal);
  Follow(step.fates, &normal->fates);
}

ValueId NormalizedGraph::WithOrigin(ValueId v) const {
  const auto is_view = [&](NodeId n) { return n.valid() && FamilyOf(graph.node(n)) == Family::kShape; };
  ValueId made = v;
  while (!origin[made.raw()].valid() && is_view(graph.value(made).def)) {
    made = graph.node(graph.value(made).def).args[0].value;
  }
  const NodeId def = graph.value(made).def;
  const size_t next = def.valid() ? def.raw() + 1 : graph.nodes.size();
  for (size_t n = next; n < graph.nodes.size() && !origin[made.raw()].valid(); ++n) {
    if (is_view(NodeId(n)) && graph.nodes[n].args[0].value == made) made = graph.nodes[n].outputs[0];
  }
  return origin[made.raw()].valid() ? made : v;
}

at::Tensor NormalizedGraph::FrozenFloat(const Node& node, const char* name) const {
  const auto value = TensorArg(node, name);
  if (!value) return at::Tensor();
  const at::Tensor& tensor = known[value->raw()];
  const bool is_float = tensor.defined() && tensor.scalar_type() == at::kFloat && tensor.device().is_cpu();
  return is_float ? tensor : at::Tensor();
}

absl::StatusOr<NormalizedGraph> NormaliseOps(const Graph& graph, const std::vector<at::Tensor>& weights,
                                             FrozenWeights* frozen) {
  if (weights.size() != graph.inputs.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the graph has ", graph.inputs.size(), " inputs, but ",
                                                   weights.size(), " entries of weights were given"));
  }
  const at::NoGradGuard no_grad;
  try {
    NormalizedGraph normal;
    Step pieces = TakePieces(graph);
    normal.fates = std::move(pieces.fates);
    GoOn(RemoveWrites(pieces.rewrite.graph, pieces.rewrite.origin), weights, &normal);
    if (HasDecomposed(normal.graph)) {
      normal.has_bytes = true;
      GoOn(TakeDecomposed(normal.graph, normal.origin, normal.known, normal.written, frozen), weights, &normal);
    }
    GoOn(NameCurves(normal.graph, normal.origin, normal.written), weights, &normal);
    GoOn(NameAttention(normal.graph, normal.origin), weights, &normal);
    return normal;
  } catch (const c10::Error& e) {
    return absl::InternalError(absl::StrCat("normalising the graph: ", e.what_without_backtrace()));
  }
}

absl::StatusOr<NormalizedGraph> Normalise(const Graph& graph, const std::vector<at::Tensor>& weights,
                                          FrozenWeights* frozen) {
  auto normal = NormaliseOps(graph, weights, frozen);
  if (!normal.ok()) return normal;
  const at::NoGradGuard no_grad;
  try {
    GoOn(MakeLinears(normal->graph, normal->origin, normal->known, frozen), weights, &*normal);
    GoOn(FoldNorms(normal->graph, normal->origin, normal->known, frozen), weights, &*normal);
    return normal;
  } catch (const c10::Error& e) {
    return absl::InternalError(absl::StrCat("normalising the graph: ", e.what_without_backtrace()));
  }
}

}  // namespace frametap::quant
