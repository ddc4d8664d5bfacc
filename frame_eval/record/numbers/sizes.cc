#include "frame_eval/record/numbers/sizes.h"

#include <algorithm>
#include <cstring>

#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/trace.h"
#include "frame_eval/record/trace/size_dependence.h"
#include "guards/objects/torch_tensor.h"
#include "guards/throw_if_null.h"
#include "ir/graph/builtin_op.h"
#include "ir/ops/op_facts.h"
#include "ir/ops/size_rules.h"

namespace frametap {

static const std::vector<std::optional<SizeExpr>>& RuledSizesOf(Trace& trace, ValueId value);
static Shadow UnlessFixed(const Trace& trace, Shadow shadow);
static bool DecideSqueeze(Trace& trace, const Node& node);
static std::optional<Shadow> ShadowOf(Trace& trace, const SizeExpr& expr, int depth, int64_t* number);

Shadow SizeOf(Trace& trace, PyObject* object, int64_t dim) {
  KnownTensor* known = trace.aten.tensors.Find(TensorOf(object));
  if (known == nullptr) throw Break{Reason::tensor_from_nowhere, ""};
  if (known->is_as_at_entry()) {
    const SourceId size = trace.guards.Child(known->source, Accessor::kSize, dim, nullptr, nullptr);
    const Shadow shadow{Shadow::Kind::kSource, size.raw()};
    if (trace.repeated_calls) trace.repeated_calls->NoteSize(known->source, ValueId(), dim, shadow);
    return shadow;
  }
  return SizeOf(trace, known->value, dim);
}

Shadow SizeOf(Trace& trace, ValueId value, int64_t dim) {
  FixRank(trace, value);
  std::optional<Shadow> size = TraceSize(trace, value, dim, 0);
  if (!size) {
    const ValueId asked = trace.aten.AddScalarNode(BuiltinOp::kSize, {Arg::Of(value), Arg::Const(c10::IValue(dim))},
                                                   Type::Scalar(Type::Kind::kInt));
    size = trace.numbers.traced_sizes[{value.raw(), dim}] = Shadow{Shadow::Kind::kValue, asked.raw()};
  }
  if (trace.repeated_calls) trace.repeated_calls->NoteSize(SourceId(), value, dim, *size);
  return *size;
}

// The guards fix the number of dimensions from now on.
void FixRank(Trace& trace, ValueId value) {
  if (trace.repeated_calls) trace.repeated_calls->NoteRank(SourceId(), value);
  if (!trace.aten.ranks.FollowsFromSizes(value)) return;
  std::vector<ValueId> work{value};
  while (!work.empty()) {
    const ValueId id = work.back();
    work.pop_back();
    if (!trace.aten.ranks.FollowsFromSizes(id)) continue;
    if (ResizerOf(trace.aten, id) != nullptr) throw Break{Reason::data_dependent_size, ""};
    trace.aten.ranks.Settle(id);
    if (!trace.aten.graph().value(id).def.valid()) continue;
    const Node node = trace.aten.graph().node(trace.aten.graph().value(id).def);  // a copy: asking for sizes adds nodes
    if (node.op && FactsOf(*node.op).size_dependent_rank && !DecideSqueeze(trace, node)) {
      TensorRead read;
      read.sizes = true;
      FixValue(trace, id, read, &trace.numbers.sizes_read);
    }
    ForEachUse(node.args, [&](ValueId use) { work.push_back(use); });
  }
}

// Guards, for each dimension that would be left out if its size was one, whether it is one. Returns false if it is not
// such an op.
static bool DecideSqueeze(Trace& trace, const Node& node) {
  const std::string& name = node.op->operator_name().name;  // squeeze_ changes the sizes of its argument
  if ((name != "aten::squeeze" && name != "aten::squeeze_copy") || node.args[0].kind != Arg::Kind::kValue) return false;
  const ValueId tensor = node.args[0].value;
  const Sizes sizes = trace.aten.graph().value(tensor).type.sizes;
  const auto rank = static_cast<int64_t>(sizes.size());
  std::vector<int64_t> dims;
  if (node.args.size() == 1) {
    for (int64_t dim = 0; dim < rank; ++dim) dims.push_back(dim);
  } else if (node.args[1].kind == Arg::Kind::kConst && node.args[1].constant.isInt()) {
    dims.push_back(node.args[1].constant.toInt());
  } else if (node.args[1].kind == Arg::Kind::kConst && node.args[1].constant.isIntList()) {
    dims = node.args[1].constant.toIntVector();
  } else {
    return false;
  }
  static PyObject* const one = Must(PyLong_FromLong(1)).Release();
  for (int64_t dim : dims) {
    if (rank == 0) break;
    if (dim < 0) dim += rank;
    const Shadow shadow = SizeOf(trace, tensor, dim);
    const Ref<> size = Must(PyLong_FromLongLong(sizes[static_cast<size_t>(dim)]));
    if (!DecideNumbers(trace, size.get(), shadow, one, Shadow(), Py_EQ, false)) Specialize(trace, size.get(), shadow);
  }
  return true;
}

// x.numel()
Shadow CountOfElements(Trace& trace, PyObject* tensor) {
  const int64_t rank = TensorOf(tensor).dim();
  ReadRank(trace, tensor);
  Shadow product;
  int64_t known = 1;  // of the dimensions whose sizes are constants
  for (int64_t dim = 0; dim < rank; ++dim) {
    const Shadow size = SizeOf(trace, tensor, dim);
    if (size.kind == Shadow::Kind::kNone) {
      known *= TensorOf(tensor).size(dim);
    } else if (product.kind == Shadow::Kind::kNone) {
      product = size;
    } else {
      product = AddNumber(trace, BuiltinOp::kIntMul, {{nullptr, product}, {nullptr, size}});
    }
  }
  if (product.kind == Shadow::Kind::kNone || known == 1) return product;
  const Ref<> factor = Must(PyLong_FromLongLong(known));
  return AddNumber(trace, BuiltinOp::kIntMul, {{nullptr, product}, {factor.get(), Shadow()}});
}

// Finds the origin of a size, by the rules of the ops between. Returns none if the graph has to read it from the
// tensor.
std::optional<Shadow> TraceSize(Trace& trace, ValueId value, int64_t dim, int depth) {
  constexpr int kDeepest = 300;
  if (ResizerOf(trace.aten, value) != nullptr) return std::nullopt;
  if (auto it = trace.numbers.traced_sizes.find({value.raw(), dim}); it != trace.numbers.traced_sizes.end())
    return UnlessFixed(trace, it->second);
  const Graph& graph = trace.aten.graph();
  std::optional<Shadow> traced;
  if (!graph.value(value).def.valid()) {
    if (const SourceId source = trace.aten.tensors.SourceOfInput(value); source.valid()) {
      if (trace.guards.accessor(source) == Accessor::kModuleAttr) {  // a parameter's are what the module is
        TensorRead read;
        if (dim < 64) read.dims = uint64_t{1} << dim;
        read.sizes = dim >= 64;
        trace.guards.Tensor(source, read, trace.frames.Here());
        return trace.numbers.traced_sizes[{value.raw(), dim}] = Shadow();
      }
      const SourceId size = trace.guards.Child(source, Accessor::kSize, dim, nullptr, nullptr);
      traced = Shadow{Shadow::Kind::kSource, size.raw()};
    } else {
      traced = Shadow();  // a constant of the graph
    }
  } else if (depth < kDeepest) {
    const auto& sizes = RuledSizesOf(trace, value);
    const auto at = static_cast<size_t>(dim);
    if (dim >= 0 && at < sizes.size() && sizes[at]) traced = ShadowOf(trace, *sizes[at], depth, nullptr);
  }
  if (traced) trace.numbers.traced_sizes[{value.raw(), dim}] = *traced;
  return traced ? std::optional(UnlessFixed(trace, *traced)) : std::nullopt;
}

// Computes all sizes of a value by the rules, once: a reader of one reads the others. Nodes of the operation at work
// may still get the numbers that they were called with (BindSymbolicArgs), so nothing of these is kept.
static const std::vector<std::optional<SizeExpr>>& RuledSizesOf(Trace& trace, ValueId value) {
  const auto [it, is_new] = trace.numbers.ruled_sizes.try_emplace(value.raw());
  NumberRecords::RuledSizes& sizes = it->second;
  constexpr size_t kNotKept = ~size_t{0};
  const bool is_at_work = trace.aten.graph().value(value).def.raw() >= NoteOf(trace.frames.innermost()).op.nodes_before;
  if (is_new || is_at_work || sizes.naturals != trace.numbers.not_negative.size()) {
    sizes = {SizesOf(trace.aten.graph(), value, trace.numbers.not_negative),
             is_at_work ? kNotKept : trace.numbers.not_negative.size()};
  }
  return sizes.of_dims;
}

// A size that the guards fix is a constant.
static Shadow UnlessFixed(const Trace& trace, Shadow shadow) {
  return shadow.kind == Shadow::Kind::kSource && trace.guards.IsFixed(SourceId(shadow.id)) ? Shadow() : shadow;
}

// `*number`, if asked for and the result has no shadow: the constant.
static std::optional<Shadow> ShadowOf(Trace& trace, const SizeExpr& expr, int depth, int64_t* number) {
  const auto constant = [&](int64_t value) {
    if (number != nullptr) *number = value;
    return Shadow();
  };
  switch (expr.kind) {
    case SizeExpr::Kind::kConst:
      return constant(expr.number);
    case SizeExpr::Kind::kSizeOf: {
      const std::optional<Shadow> size = TraceSize(trace, expr.value, expr.number, depth + 1);
      const Sizes& sizes = trace.aten.graph().value(expr.value).type.sizes;
      if (size && size->kind == Shadow::Kind::kNone) constant(sizes[static_cast<size_t>(expr.number)]);
      return size;
    }
    case SizeExpr::Kind::kValue:
      return Canonical(trace, Shadow{Shadow::Kind::kValue, expr.value.raw()});
    case SizeExpr::Kind::kOp:
      break;
  }
  IntTerm operands[2];
  for (size_t i = 0; i < expr.operands.size(); ++i) {
    const std::optional<Shadow> operand = ShadowOf(trace, expr.operands[i], depth, &operands[i].constant);
    if (!operand) return std::nullopt;
    operands[i].shadow = *operand;
  }
  const std::optional<IntTerm> result = IntOp(trace, expr.op, operands[0], operands[1]);
  if (!result) return std::nullopt;
  return result->is_constant() ? constant(result->constant) : result->shadow;
}

bool IsNotNegative(const Trace& trace, const IntTerm& term) {
  if (term.is_constant()) return term.constant >= 0;
  if (term.shadow.kind == Shadow::Kind::kValue) return trace.numbers.not_negative.contains(ValueId(term.shadow.id));
  const Accessor accessor = trace.guards.accessor(SourceId(term.shadow.id));
  return accessor == Accessor::kSize || accessor == Accessor::kLength;
}

// The operands of a number that `op` has made, if it has; constants have no shadow.
static std::optional<std::pair<IntTerm, IntTerm>> MadeBy(const Trace& trace, BuiltinOp op, const IntTerm& term) {
  if (term.shadow.kind != Shadow::Kind::kValue) return std::nullopt;
  const NodeId def = trace.aten.graph().value(ValueId(term.shadow.id)).def;
  if (!def.valid() || trace.aten.graph().node(def).builtin_op != op) return std::nullopt;
  IntTerm terms[2];
  for (size_t i = 0; i < 2; ++i) {
    const Arg& arg = trace.aten.graph().node(def).args[i];
    if (arg.kind == Arg::Kind::kConst) {
      terms[i].constant = arg.constant.toInt();
    } else {
      terms[i].shadow = Canonical(trace, Shadow{Shadow::Kind::kValue, arg.value.raw()});
    }
  }
  return std::pair(terms[0], terms[1]);
}

// Returns a simpler expression of the same value, whatever the values in it, or none. Sizes pass through many ops, and
// most results of the rules reduce to one of them.
static std::optional<IntTerm> Simpler(const Trace& trace, BuiltinOp op, const IntTerm& a, const IntTerm& b) {
  const auto is = [](const IntTerm& term, int64_t constant) { return term.is_constant() && term.constant == constant; };
  switch (op) {
    case BuiltinOp::kIntAdd:
      if (is(a, 0)) return b;
      if (is(b, 0)) return a;
      if (const auto difference = MadeBy(trace, BuiltinOp::kIntSub, a); difference && difference->second == b) {
        return difference->first;  // a - b + b
      }
      break;
    case BuiltinOp::kIntSub:
      if (is(b, 0)) return a;
      if (a == b) return IntTerm::Of(0);
      if (const auto sum = MadeBy(trace, BuiltinOp::kIntAdd, a)) {
        if (sum->second == b) return sum->first;  // a + b - b
        if (sum->first == b) return sum->second;
      }
      break;
    case BuiltinOp::kIntMul:
      if (is(a, 1)) return b;
      if (is(b, 1)) return a;
      if (is(a, 0) || is(b, 0)) return IntTerm::Of(0);
      break;
    case BuiltinOp::kIntFloorDiv:
      if (is(b, 1)) return a;
      if (b.is_constant() && b.constant != 0) {
        if (const auto product = MadeBy(trace, BuiltinOp::kIntMul, a); product && product->second == b)
          return product->first;
      }
      break;
    case BuiltinOp::kIntMod:
      if (is(b, 1)) return IntTerm::Of(0);
      break;
    case BuiltinOp::kIntMax:
    case BuiltinOp::kIntMin:
      if (a == b) return a;
      for (const auto& [x, y] : {std::pair(a, b), std::pair(b, a)}) {
        if (x.is_constant() && x.constant <= 0 && IsNotNegative(trace, y)) {
          if (op == BuiltinOp::kIntMax) return y;
          if (x.constant == 0) return x;
        }
        const auto nested = MadeBy(trace, op, y);
        if (nested && (nested->first == x || nested->second == x)) return y;  // max(x, max(x, z))
      }
      break;
    case BuiltinOp::kIntBroadcast:
      if (a == b || is(b, 1)) return a;
      if (b.is_constant()) return b;  // the other is as large, or 1
      for (const auto& [x, y] : {std::pair(a, b), std::pair(b, a)}) {
        const auto nested = MadeBy(trace, op, y);
        if (nested && (nested->first == x || nested->second == x)) return y;
      }
      break;
    default:
      break;
  }
  return std::nullopt;
}

// Brings constants together, so that successive steps of layers are one step: (n - 2) // 2 + 1 is n // 2, and that
// again by two is n // 4. Returns none if there is nothing to bring together.
static std::optional<IntTerm> Gathered(Trace& trace, BuiltinOp op, const IntTerm& a, const IntTerm& b) {
  constexpr int64_t kLarge = int64_t{1} << 31;
  const auto is_small = [](const IntTerm& term) {
    return term.is_constant() && term.constant > -kLarge && term.constant < kLarge;
  };
  if (!is_small(b)) return std::nullopt;
  const int64_t c = b.constant;
  if (op == BuiltinOp::kIntSub) return IntOp(trace, BuiltinOp::kIntAdd, a, IntTerm::Of(-c));
  const auto sum = MadeBy(trace, BuiltinOp::kIntAdd, a), product = MadeBy(trace, BuiltinOp::kIntMul, a),
             quotient = MadeBy(trace, BuiltinOp::kIntFloorDiv, a);
  const auto then = [&](std::optional<IntTerm> first, BuiltinOp next, int64_t by) {
    return first ? IntOp(trace, next, *first, IntTerm::Of(by)) : std::nullopt;
  };
  switch (op) {
    case BuiltinOp::kIntAdd:
      if (sum && is_small(sum->second)) return IntOp(trace, op, sum->first, IntTerm::Of(sum->second.constant + c));
      if (quotient && is_small(quotient->second)) {
        const int64_t by = quotient->second.constant;
        return then(IntOp(trace, op, quotient->first, IntTerm::Of(c * by)), BuiltinOp::kIntFloorDiv, by);
      }
      break;
    case BuiltinOp::kIntMul:
      if (product && is_small(product->second))
        return IntOp(trace, op, product->first, IntTerm::Of(product->second.constant * c));
      if (sum && is_small(sum->second)) {
        return then(IntOp(trace, op, sum->first, b), BuiltinOp::kIntAdd, sum->second.constant * c);
      }
      break;
    case BuiltinOp::kIntFloorDiv:
      if (c <= 0) break;
      if (quotient && is_small(quotient->second) && quotient->second.constant > 0) {
        return IntOp(trace, op, quotient->first, IntTerm::Of(quotient->second.constant * c));
      }
      if (product && is_small(product->second) && product->second.constant % c == 0) {
        return IntOp(trace, BuiltinOp::kIntMul, product->first, IntTerm::Of(product->second.constant / c));
      }
      break;
    default:
      break;
  }
  return std::nullopt;
}

// None if it cannot be computed from these constants.
std::optional<IntTerm> IntOp(Trace& trace, BuiltinOp op, IntTerm a, IntTerm b) {
  const bool is_unary = RowOf(op).arity == 1;
  if (a.is_constant() && (is_unary || b.is_constant())) {
    Number result;
    const ScalarFault fault = Compute(op, Number::Int(a.constant), Number::Int(b.constant), &result);
    if (fault != ScalarFault::kNone) return std::nullopt;
    return IntTerm::Of(result.i);
  }
  if (!is_unary && Commutes(op) && a.is_constant()) std::swap(a, b);
  if (is_unary) {
    b = IntTerm();
  } else if (const std::optional<IntTerm> simpler = Simpler(trace, op, a, b)) {
    return simpler;
  } else if (const std::optional<IntTerm> gathered = Gathered(trace, op, a, b)) {
    return gathered;
  }
  const auto key = std::tuple(op, a.Key(), b.Key());
  if (const auto it = trace.numbers.int_ops.find(key); it != trace.numbers.int_ops.end())
    return IntTerm::Of(it->second);
  std::vector<Arg> args;
  for (const IntTerm& operand : {a, b}) {
    if (args.size() == RowOf(op).arity) break;
    args.push_back(operand.is_constant() ? Arg::Const(c10::IValue(operand.constant))
                                         : Arg::Of(NumberValue(trace, operand.shadow)));
  }
  const ValueId value = trace.aten.AddScalarNode(op, std::move(args), Type::Scalar(Type::Kind::kInt));
  const Shadow shadow{Shadow::Kind::kValue, value.raw()};
  trace.numbers.int_ops[key] = shadow;
  const bool keeps_sign = op == BuiltinOp::kIntAdd || op == BuiltinOp::kIntMul || op == BuiltinOp::kIntFloorDiv ||
                          op == BuiltinOp::kIntMin || op == BuiltinOp::kIntMod || op == BuiltinOp::kIntBroadcast;
  const bool is_max = op == BuiltinOp::kIntMax && (IsNotNegative(trace, a) || IsNotNegative(trace, b));
  if (op == BuiltinOp::kIntAbs || is_max || (keeps_sign && IsNotNegative(trace, a) && IsNotNegative(trace, b))) {
    trace.numbers.not_negative.insert(value);
  }
  return IntTerm::Of(shadow);
}

// Whether that the argument itself came back says nothing of sizes or strides: it follows from its dtype, from a switch,
// or the graph finds out.
bool GivesBack(Trace& trace, const FrameNote& note, const Event& e, PyObject* result) {
  if (!trace.numbers.sizes_open()) return false;
  const size_t made = trace.node_count() - note.op.nodes_before;
  const Graph& graph = trace.aten.graph();
  const bool is_method = e.op == Op::kCall && std::strcmp(note.op.torch_name, "contiguous") == 0;
  if (made == 0 && is_method && note.op.torch_positional == 1 && e.kwnames == nullptr && trace.may_assume() &&
      TensorOf(result).layout() == c10::kStrided) {
    const std::optional<ValueId> value = trace.aten.tensors.ValueOf(TensorOf(result));
    if (!value) return false;
    trace.aten.AddScalarNode(BuiltinOp::kContiguous, {Arg::Of(*value)}, Type::Scalar(Type::Kind::kBool));
    return true;
  }
  if (made != 1 || !graph.nodes.back().op) return false;
  const Node& node = graph.nodes.back();
  const std::string_view name = BaseName(*node.op);
  const auto is_const = [&](const char* parameter, const c10::IValue& wanted) {
    const std::optional<int> at = node.op->schema().argumentIndexWithName(parameter);
    if (!at) return true;
    const Arg& arg = node.args[static_cast<size_t>(*at)];
    return arg.kind == Arg::Kind::kConst && (wanted.isNone() ? arg.constant.isNone() : arg.constant == wanted);
  };
  if (name == "to" || name == "type_as") return is_const("memory_format", c10::IValue());
  if (IsDropout(*node.op)) {
    return is_const("train", false) || is_const("p", 0.0);
  }
  static constexpr std::string_view kByType[] = {"conj", "resolve_conj", "resolve_neg",
                                                 "real", "positive",     "lift_fresh"};
  return std::find(std::begin(kByType), std::end(kByType), name) != std::end(kByType);
}

// The same for a result that is not the argument, where the op returns its argument at other times. If nothing else
// has the argument, the two cannot be distinguished.
bool IsKnownToBeNew(Trace& trace, const FrameNote& note, const Event& e, const KnownTensor& result) {
  const Graph& graph = trace.aten.graph();
  if (!result.value.valid()) return true;
  const ValueId out = result.value;
  const NodeId def = graph.value(out).def;
  if (!def.valid() || def.raw() < note.op.nodes_before || !graph.node(def).op) return true;
  const Node& node = graph.node(def);
  if (node.op->schema().is_mutable()) return true;
  switch (trace.aten.op_facts.Of(*node.op).gives) {
    case GivesArgument::kNever:
      return true;
    case GivesArgument::kByType: {
      const std::optional<int> format = node.op->schema().argumentIndexWithName("memory_format");
      if (!format || node.args[static_cast<size_t>(*format)].constant.isNone()) return true;
      break;
    }
    case GivesArgument::kByContent:
      break;
  }
  const auto is_only_in_call = [&](ValueId id) {
    for (int i = 0; e.op == Op::kCall && i < e.n; ++i) {
      if (e.in[i] == nullptr || Py_REFCNT(e.in[i]) != 1 || !IsTensor(e.in[i])) continue;
      const at::Tensor& tensor = TensorOf(e.in[i]);
      const KnownTensor* known = trace.aten.tensors.Find(tensor);
      if (known != nullptr && known->value == id) return tensor.use_count() == 1;
    }
    return false;
  };
  const Type& made = graph.value(out).type;
  absl::InlinedVector<ValueId, 2> others;
  for (const Arg& arg : node.args) {
    if (arg.kind != Arg::Kind::kValue) continue;
    const Type& type = graph.value(arg.value).type;
    const bool may_be_it =
        type.kind == Type::Kind::kTensor && type.dtype == made.dtype && type.sizes.size() == made.sizes.size();
    if (may_be_it && !is_only_in_call(arg.value)) others.push_back(arg.value);
  }
  if (!others.empty() && !trace.may_assume()) return false;
  for (const ValueId other : others) {
    trace.aten.AddScalarNode(BuiltinOp::kAnother, {Arg::Of(other), Arg::Of(out)}, Type::Scalar(Type::Kind::kBool));
  }
  return true;
}

// An unknown op may return any number of tensors.
void RefuseUnknownLength(const Node& node) {
  const OpFacts& facts = FactsOf(*node.op);
  if (facts.data_dependent_size && facts.size_dependent_rank) {
    throw Break{Reason::data_dependent_size, "the number of tensors that an op gives"};
  }
}

// How many tensors came follows from one size; the list is the program's from now on.
void ReadListLength(Trace& trace, const Node& node, const Event& e) {
  const std::string_view name = BaseName(*node.op);
  static constexpr std::string_view kAlong[] = {"split",        "chunk",        "unbind",      "split_with_sizes",
                                                "unsafe_split", "unsafe_chunk", "tensor_split"};
  const std::optional<int> dim = node.op->schema().argumentIndexWithName("dim");
  const Arg* along = dim ? &node.args[static_cast<size_t>(*dim)] : nullptr;
  if (std::find(std::begin(kAlong), std::end(kAlong), name) == std::end(kAlong) || along == nullptr ||
      along->kind != Arg::Kind::kConst || !along->constant.isInt() || node.args[0].kind != Arg::Kind::kValue) {
    for (int i = 0; i < e.n; ++i) ReadAllTensors(trace, e.in[i], false);
    return;
  }
  if (name == "split_with_sizes") return;  // as many as sizes were given
  const ValueId tensor = node.args[0].value;
  const auto rank = static_cast<int64_t>(trace.aten.graph().value(tensor).type.sizes.size());
  const int64_t at = along->constant.toInt() < 0 ? along->constant.toInt() + rank : along->constant.toInt();
  // A number of sections is the number of tensors, except for `chunk`. A number that is a tensor's element has no
  // guard.
  for (const Arg& arg : node.args) {
    if (arg.kind == Arg::Kind::kValue && arg.value != tensor) {
      const Type& type = trace.aten.graph().value(arg.value).type;
      if (type.kind == Type::Kind::kTensor && type.sizes.empty()) {
        throw Break{Reason::value_of_tensor, "the number of tensors that an op gives"};
      }
      Specialize(trace, nullptr, Shadow{Shadow::Kind::kValue, arg.value.raw()});
    }
  }
  Specialize(trace, nullptr, SizeOf(trace, tensor, at));
}

}  // namespace frametap
