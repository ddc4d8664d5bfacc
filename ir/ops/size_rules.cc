#include "ir/ops/size_rules.h"

#include <algorithm>
#include <map>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "ir/graph/builtin_op.h"
#include "ir/ops/size_rules_call.h"

namespace frametap {

Shape Like(const OpCall& call) { return call.First(); }

namespace {

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

constexpr SizeRow kRows[] = {
    // Pointwise.
    {Broadcast, R"(
      abs absolute acos acosh angle arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh bitwise_not ceil
      celu clamp clamp_max clamp_min clip conj_physical cos cosh deg2rad digamma elu erf erfc erfinv exp exp2 expm1 fix
      floor frac gelu hardshrink hardsigmoid hardswish hardtanh i0 isfinite isinf isnan isneginf isposinf isreal
      leaky_relu lgamma log log10 log1p log2 log_sigmoid logical_not logit mish mvlgamma nan_to_num neg negative
      polygamma positive rad2deg reciprocal relu relu6 round round.decimals rrelu rsqrt selu sgn sigmoid sign signbit
      silu sin sinc sinh softplus softshrink special_digamma special_entr special_erf special_erfc special_erfcx
      special_erfinv special_exp2 special_expit special_expm1 special_gammaln special_i0 special_i0e special_i1
      special_i1e special_log1p special_log_ndtr special_logit special_ndtr special_ndtri special_psi special_round
      special_sinc sqrt square tan tanh threshold trunc)"},
    {Broadcast, R"(
      __and__.Scalar __and__.Tensor __lshift__.Scalar __lshift__.Tensor __or__.Scalar __or__.Tensor __rshift__.Scalar
      __rshift__.Tensor __xor__.Scalar __xor__.Tensor add.Scalar add.Tensor arctan2 atan2 bitwise_and.Scalar
      bitwise_and.Scalar_Tensor bitwise_and.Tensor bitwise_left_shift.Scalar_Tensor bitwise_left_shift.Tensor
      bitwise_left_shift.Tensor_Scalar bitwise_or.Scalar bitwise_or.Scalar_Tensor bitwise_or.Tensor
      bitwise_right_shift.Scalar_Tensor bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar bitwise_xor.Scalar
      bitwise_xor.Scalar_Tensor bitwise_xor.Tensor clamp.Tensor clamp_max.Tensor clamp_min.Tensor clip.Tensor complex
      copysign.Scalar copysign.Tensor cross div.Scalar div.Scalar_mode div.Tensor div.Tensor_mode divide.Scalar
      divide.Scalar_mode divide.Tensor divide.Tensor_mode eq.Scalar eq.Tensor float_power.Scalar
      float_power.Tensor_Scalar float_power.Tensor_Tensor floor_divide floor_divide.Scalar fmax fmin fmod.Scalar
      fmod.Tensor gcd ge.Scalar ge.Tensor greater.Scalar greater.Tensor greater_equal.Scalar greater_equal.Tensor
      gt.Scalar gt.Tensor heaviside hypot igamma igammac isclose lcm ldexp.Tensor le.Scalar le.Tensor less.Scalar
      less.Tensor less_equal.Scalar less_equal.Tensor linalg_cross logaddexp logaddexp2 logical_and logical_or
      logical_xor lt.Scalar lt.Tensor max.other maximum min.other minimum mul.Scalar mul.Tensor multiply.Scalar
      multiply.Tensor ne.Scalar ne.Tensor nextafter not_equal.Scalar not_equal.Tensor polar pow.Scalar pow.Tensor_Scalar
      pow.Tensor_Tensor remainder.Scalar remainder.Scalar_Tensor remainder.Tensor rsub.Scalar rsub.Tensor
      special_xlog1py special_xlogy special_zeta sub.Scalar sub.Tensor subtract.Scalar subtract.Tensor
      true_divide.Scalar true_divide.Tensor xlogy.Scalar_Other xlogy.Scalar_Self xlogy.Tensor)"},
    {Broadcast, R"(
      addcdiv addcmul lerp.Scalar lerp.Tensor masked_fill.Scalar masked_fill.Tensor where.Scalar where.ScalarOther
      where.ScalarSelf where.self)"},
    {Like, R"(
      __iand__.Scalar __iand__.Tensor __ilshift__.Scalar __ilshift__.Tensor __ior__.Scalar __ior__.Tensor
      __irshift__.Scalar __irshift__.Tensor __ixor__.Scalar __ixor__.Tensor abs_ acos_ acosh_ add_.Scalar add_.Tensor
      addcdiv_ addcmul_ asin_ asinh_ atan2_ atan_ atanh_ bitwise_and_.Scalar bitwise_and_.Tensor bitwise_not_
      bitwise_or_.Scalar bitwise_or_.Tensor bitwise_xor_.Scalar bitwise_xor_.Tensor ceil_ celu_ clamp_ clamp_.Tensor
      clamp_max_ clamp_max_.Tensor clamp_min_ clamp_min_.Tensor clip_ conj_physical_ copysign_.Scalar copysign_.Tensor
      cos_ cosh_ deg2rad_ digamma_ div_.Scalar div_.Scalar_mode div_.Tensor div_.Tensor_mode divide_.Scalar
      divide_.Tensor elu_ eq_.Scalar eq_.Tensor erf_ erfc_ erfinv_ exp2_ exp_ expm1_ fill_.Scalar fill_.Tensor
      float_power_.Scalar floor_ floor_divide_.Scalar floor_divide_.Tensor fmod_.Scalar fmod_.Tensor frac_ ge_.Scalar
      ge_.Tensor gelu_ gt_.Scalar gt_.Tensor hardsigmoid_ hardswish_ hardtanh_ hypot_ i0_ ldexp_ le_.Scalar le_.Tensor
      leaky_relu_ lerp_.Scalar lerp_.Tensor lgamma_ log10_ log1p_ log2_ log_ logical_and_ logical_not_ logical_or_
      logical_xor_ logit_ lt_.Scalar lt_.Tensor masked_fill_.Scalar masked_fill_.Tensor mish_ mul_.Scalar mul_.Tensor
      multiply_.Scalar multiply_.Tensor nan_to_num_ ne_.Scalar ne_.Tensor neg_ negative_ nextafter_ pow_.Scalar
      pow_.Tensor rad2deg_ reciprocal_ relu6_ relu_ remainder_.Scalar remainder_.Tensor round_ round_.decimals rsqrt_
      selu_ sgn_ sigmoid_ sign_ silu_ sin_ sinc_ sinh_ sqrt_ square_ sub_.Scalar sub_.Tensor subtract_.Scalar
      subtract_.Tensor tan_ tanh_ threshold_ true_divide_.Scalar true_divide_.Tensor trunc_ xlogy_.Scalar_Other
      xlogy_.Tensor zero_)"},

    // Copies and conversions.
    {Like, R"(
      _conj _conj_physical _neg_view _to_copy alias alias_copy clone conj contiguous copy copy_ data detach detach_
      detach_copy imag lift lift_fresh lift_fresh_copy real requires_grad_ resolve_conj resolve_neg to.device to.dtype to.dtype_layout
      to.other type_as fill.Scalar fill.Tensor)"},
    {Like, R"(
      empty_like full_like ones_like rand_like randint_like randint_like.low_dtype randn_like zeros_like)"},

    // Along a dimension, or by an index, without a change of shape.
    {Like, R"(
      argsort argsort.stable cummax cummin cumprod cumprod_ cumsum cumsum_ diagonal_scatter fft_fftshift fft_ifftshift
      flip fliplr flipud index_add index_add_ index_copy index_copy_ index_fill.int_Scalar index_fill.int_Tensor
      index_fill_.int_Scalar index_fill_.int_Tensor index_put index_put_ log_softmax.int logcumsumexp masked_scatter_
      msort roll scatter.reduce scatter.src scatter.value scatter_.reduce scatter_.src scatter_.value scatter_add
      scatter_add_ scatter_reduce.two scatter_reduce_.two select_scatter slice_scatter softmax.int _softmax _log_softmax
      sort sort.stable special_log_softmax special_softmax tril tril_ triu triu_)"},

    // Drawn at random.
    {Like, R"(
      alpha_dropout bernoulli bernoulli.p bernoulli_.float dropout dropout_ exponential_ feature_alpha_dropout
      feature_dropout native_dropout normal_ random_ random_.from random_.to uniform_)"},

    {Reduce, R"(
      all all.dim all.dims amax amin aminmax any any.dim any.dims argmax argmin count_nonzero count_nonzero.dim_IntList
      kthvalue linalg_matrix_norm linalg_norm linalg_vector_norm logsumexp max max.dim mean mean.dim median median.dim
      min min.dim mode nanmean nanmedian nanmedian.dim nansum norm.Scalar norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype
      norm.ScalarOpt_dtype prod prod.dim_int special_logsumexp std std.correction std.dim std_mean std_mean.correction
      std_mean.dim sum sum.dim_IntList trace trapezoid.dx var var.correction var.dim var_mean var_mean.correction
      var_mean.dim)"},
    {Loss, "huber_loss kl_div l1_loss mse_loss smooth_l1_loss soft_margin_loss"},
    {ClassLoss, "cross_entropy_loss nll_loss nll_loss2d nll_loss_nd"},
    {CosineSimilarity, "cosine_similarity"},

    {MatMul, "linalg_matmul matmul"},
    {Linear, "linear"},
    {Mm, "mm"},
    // The target of an in-place addition is made as large as the product.
    {AddMm, "addmm addmm_"},
    {Bmm, "bmm"},
    {GroupedMm, "_grouped_mm"},
    {Histogram, "histc"},
    {Like, "_transformer_encoder_layer_fwd"},
    {BaddBmm, "baddbmm baddbmm_"},
    {AddBmm, "addbmm addbmm_"},
    {Mv, "mv"},
    {AddMv, "addmv addmv_"},
    {Outer, "ger outer"},
    {AddR, "addr addr_"},
    {Dot, "dot vdot"},
    {Inner, "inner"},
    {TensorDot, "tensordot"},
    {Einsum, "einsum"},
    {CDist, "cdist"},
    {Bilinear, "bilinear"},
};

Shape One(const OpCall& call) { return Shape({1}); }

// Outside of ATen.
constexpr SizeRow kOurRows[] = {
    {Like, R"(
      dequantize_per_channel dequantize_per_tensor dequantize_per_tensor.tensor dequantize_per_tensor.tensor2
      quantize_per_channel quantize_per_tensor quantize_per_tensor.tensor quantize_per_tensor.tensor2)"},
    {One, "choose_qparams.tensor"},
};

using Rule = Shape (*)(const OpCall& call);

struct Rules {
  absl::flat_hash_map<std::string, Rule> of;
  std::vector<std::string> ops;
};

const Rules& AllRules() {
  static const auto* const rules = [] {
    auto* all = new Rules();
    const auto add = [all](absl::Span<const SizeRow> rows, const char* library) {
      std::vector<std::string> names;
      for (const SizeRow& row : rows) {
        for (const auto op : absl::StrSplit(row.ops, absl::ByAnyChar(" \n"), absl::SkipEmpty())) {
          all->of.emplace(names.emplace_back(absl::StrCat(library, op)), row.rule);
        }
      }
      return names;
    };
    for (const auto rows : {absl::MakeConstSpan(kRows), ViewSizeRows(), NnSizeRows()}) {
      const std::vector<std::string> names = add(rows, "aten::");
      all->ops.insert(all->ops.end(), names.begin(), names.end());
    }
    add(kOurRows, "frametap_decomposed::");
    return all;
  }();
  return *rules;
}

Rule RuleOf(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  const auto& rules = AllRules().of;
  const auto it = rules.find(name.overload_name.empty() ? name.name : absl::StrCat(name.name, ".", name.overload_name));
  return it == rules.end() ? nullptr : it->second;
}

std::optional<size_t> OutputIndex(const Node& node, ValueId value) {
  const auto it = std::find(node.outputs.begin(), node.outputs.end(), value);
  if (it == node.outputs.end()) return std::nullopt;
  return it - node.outputs.begin();
}

}  // namespace

SizeExpr SizeExpr::Const(int64_t number) {
  SizeExpr e;
  e.number = number;
  return e;
}

SizeExpr SizeExpr::SizeOf(ValueId tensor, int64_t dim) {
  SizeExpr e;
  e.kind = Kind::kSizeOf;
  e.value = tensor;
  e.number = dim;
  return e;
}

SizeExpr SizeExpr::Value(ValueId value) {
  SizeExpr e;
  e.kind = Kind::kValue;
  e.value = value;
  return e;
}

SizeExpr SizeExpr::Of(BuiltinOp op, SizeExpr a, SizeExpr b) {
  const auto is = [](const SizeExpr& e, int64_t n) { return e.kind == Kind::kConst && e.number == n; };
  const bool commutes = Commutes(op);
  if (a.kind == Kind::kConst && b.kind == Kind::kConst) {
    Number result;
    if (Compute(op, Number::Int(a.number), Number::Int(b.number), &result) == ScalarFault::kNone && !result.is_float) {
      return Const(result.i);
    }
  } else if (commutes && a.kind == Kind::kConst) {
    std::swap(a, b);
  }
  switch (op) {
    case BuiltinOp::kIntAdd:
      if (is(b, 0)) return a;
      if (b.kind == Kind::kConst && a.kind == Kind::kOp && a.op == op && a.operands[1].kind == Kind::kConst) {
        return Of(op, a.operands[0], Of(op, a.operands[1], b));
      }
      break;
    case BuiltinOp::kIntSub:
      if (a == b) return Const(0);
      if (b.kind == Kind::kConst && b.number != INT64_MIN) return Of(BuiltinOp::kIntAdd, a, Const(-b.number));
      break;
    case BuiltinOp::kIntMul:
      if (is(b, 0)) return b;
      if (is(b, 1)) return a;
      break;
    case BuiltinOp::kIntFloorDiv:
      if (is(b, 1)) return a;
      break;
    case BuiltinOp::kIntMin:
    case BuiltinOp::kIntMax:
    case BuiltinOp::kIntBroadcast:
      if (a == b) return a;
      break;
    default:
      break;
  }
  SizeExpr e;
  e.kind = Kind::kOp;
  e.op = op;
  e.operands = {std::move(a), std::move(b)};
  return e;
}

bool operator==(const SizeExpr& a, const SizeExpr& b) {
  return a.kind == b.kind && a.number == b.number && a.value == b.value && a.op == b.op && a.operands == b.operands;
}

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
  const Rule rule = RuleOf(*node->op);
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

std::optional<SizeExpr> SizeOf(const Graph& graph, ValueId value, int64_t dim,
                               const absl::flat_hash_set<ValueId>& naturals) {
  std::vector<std::optional<SizeExpr>> sizes = SizesOf(graph, value, naturals);
  return dim >= 0 && dim < static_cast<int64_t>(sizes.size()) ? std::move(sizes[dim]) : std::nullopt;
}

bool HasSizeRule(const c10::OperatorHandle& op) { return RuleOf(op) != nullptr; }

std::vector<std::string> OpsWithSizeRules() { return AllRules().ops; }

}  // namespace frametap
