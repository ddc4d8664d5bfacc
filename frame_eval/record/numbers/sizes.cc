#include "frame_eval/record/numbers/sizes.h"

#include <algorithm>
#include <cstring>

#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/trace/size_dependence.h"
#include "guards/objects/torch_tensor.h"
#include "guards/throw_if_null.h"
#include "ir/graph/builtin_op.h"
#include "ir/ops/op_facts.h"
#include "ir/ops/op_rows.h"
#include "ir/ops/size_rules.h"
#include "ir/symbols/simplifier.h"

namespace frametap {

static const std::vector<std::optional<SizeExpr>>& RuledSizesOf(Trace& trace, ValueId value);
static Shadow UnlessFixed(const Trace& trace, Shadow shadow);
static bool DecideSqueeze(Trace& trace, const Node& node);
static std::optional<IntTerm> TermOf(Trace& trace, const SizeExpr& expr, int depth);

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
  const OpRow row = OpRowOf(*node.op);
  const bool drops_ones = row.Has(ops::kDropsOnes) && !row.in_place;  // in place, it changes the sizes of its argument
  if (!drops_ones || node.args[0].kind != Arg::Kind::kValue) return false;
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
    const bool is_ruled = dim >= 0 && at < sizes.size() && sizes[at];
    if (const auto term = is_ruled ? TermOf(trace, *sizes[at], depth) : std::nullopt) traced = term->shadow;
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

static std::optional<IntTerm> TermOf(Trace& trace, const SizeExpr& expr, int depth) {
  switch (expr.kind) {
    case SizeExpr::Kind::kConst:
      return IntTerm::Of(expr.number);
    case SizeExpr::Kind::kSizeOf: {
      const std::optional<Shadow> size = TraceSize(trace, expr.value, expr.number, depth + 1);
      if (!size) return std::nullopt;
      return IntTerm{*size, trace.aten.graph().value(expr.value).type.sizes[static_cast<size_t>(expr.number)]};
    }
    case SizeExpr::Kind::kValue:
      return IntTerm::Of(Canonical(trace, Shadow{Shadow::Kind::kValue, expr.value.raw()}));
    case SizeExpr::Kind::kOp:
      break;
  }
  const std::optional<IntTerm> a = TermOf(trace, expr.operands->first, depth);
  const std::optional<IntTerm> b = a ? TermOf(trace, expr.operands->second, depth) : std::nullopt;
  return b ? IntOp(trace, expr.op, *a, *b) : std::nullopt;
}

bool IsNotNegative(const Trace& trace, const IntTerm& term) {
  if (term.is_constant()) return term.constant >= 0;
  if (term.shadow.kind == Shadow::Kind::kValue) return trace.numbers.not_negative.contains(ValueId(term.shadow.id));
  const Accessor accessor = trace.guards.accessor(SourceId(term.shadow.id));
  return accessor == Accessor::kSize || accessor == Accessor::kLength;
}

// The numbers of a recording, as the simplifier knows them. An operation is a node of the graph, made once.
struct RecordedTerms {
  using Term = IntTerm;

  static IntTerm Constant(int64_t number) { return IntTerm::Of(number); }
  static std::optional<int64_t> ConstantOf(const IntTerm& term) {
    return term.is_constant() ? std::optional(term.constant) : std::nullopt;
  }
  bool IsNatural(const IntTerm& term) const { return IsNotNegative(trace, term); }
  std::optional<std::pair<IntTerm, IntTerm>> OperandsOf(BuiltinOp op, const IntTerm& term) const {
    if (term.shadow.kind != Shadow::Kind::kValue) return std::nullopt;
    const NodeId def = trace.aten.graph().value(ValueId(term.shadow.id)).def;
    if (!def.valid() || trace.aten.graph().node(def).builtin_op != op) return std::nullopt;
    IntTerm terms[2];
    for (size_t i = 0; i < 2; ++i) {
      const Arg& arg = trace.aten.graph().node(def).args[i];
      terms[i] = arg.kind == Arg::Kind::kConst
                     ? IntTerm::Of(arg.constant.toInt())
                     : IntTerm::Of(Canonical(trace, Shadow{Shadow::Kind::kValue, arg.value.raw()}));
    }
    return std::pair(terms[0], terms[1]);
  }
  std::optional<IntTerm> Make(BuiltinOp op, const IntTerm& a, const IntTerm& b) {
    const auto key = std::tuple(op, a.Key(), b.Key());
    if (const auto it = trace.numbers.int_ops.find(key); it != trace.numbers.int_ops.end()) {
      return IntTerm::Of(it->second);
    }
    std::vector<Arg> args;
    for (const IntTerm& operand : {a, b}) {
      if (args.size() == RowOf(op).arity) break;
      args.push_back(operand.is_constant() ? Arg::Const(c10::IValue(operand.constant))
                                           : Arg::Of(NumberValue(trace, operand.shadow)));
    }
    const ValueId value = trace.aten.AddScalarNode(op, std::move(args), Type::Scalar(Type::Kind::kInt));
    const Shadow shadow{Shadow::Kind::kValue, value.raw()};
    trace.numbers.int_ops[key] = shadow;
    if (GivesNatural(op, IsNatural(a), IsNatural(b))) trace.numbers.not_negative.insert(value);
    return IntTerm::Of(shadow);
  }

  Trace& trace;
};

// None if it cannot be computed from these constants.
std::optional<IntTerm> IntOp(Trace& trace, BuiltinOp op, const IntTerm& a, const IntTerm& b) {
  RecordedTerms terms{trace};
  return Simplifier(terms).Apply(op, a, b);
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
  const OpRow row = OpRowOf(*node.op);
  const auto is_const = [&](const char* parameter, const c10::IValue& wanted) {
    const std::optional<int> at = node.op->schema().argumentIndexWithName(parameter);
    if (!at) return true;
    const Arg& arg = node.args[static_cast<size_t>(*at)];
    return arg.kind == Arg::Kind::kConst && (wanted.isNone() ? arg.constant.isNone() : arg.constant == wanted);
  };
  if (row.Has(ops::kDropsOut)) return is_const("train", false) || is_const("p", 0.0);
  return row.Has(ops::kGivesByDtype) && is_const("memory_format", c10::IValue());
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

static std::optional<IntTerm> CeilDiv(Trace& trace, const IntTerm& a, const IntTerm& b) {
  const std::optional<IntTerm> sum = IntOp(trace, BuiltinOp::kIntAdd, a, b);
  const std::optional<IntTerm> less = sum ? IntOp(trace, BuiltinOp::kIntSub, *sum, IntTerm::Of(1)) : sum;
  return less ? IntOp(trace, BuiltinOp::kIntFloorDiv, *less, b) : less;
}

// Guards how many parts torch.split or torch.chunk has made, and leaves the size open. Returns false if no guard can say it.
static bool DecideParts(Trace& trace, const OpRow& row, const Arg& given, Shadow size, int64_t length) {
  const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const bool is_open = given.kind == Arg::Kind::kValue;
  const int64_t number = is_open ? NumberAt(trace, given.value).toInt() : given.constant.toInt();
  if (length < 1 || number < 1) return false;
  const IntTerm whole = size.kind == Shadow::Kind::kNone ? IntTerm::Of(length) : IntTerm::Of(size);
  std::optional<IntTerm> part = IntTerm::Of(number);
  if (is_open) {
    part = IntTerm::Of(Canonical(trace, Shadow{Shadow::Kind::kValue, given.value.raw()}));
    FixType(trace, part->shadow);
  }
  const bool is_number_of_parts = row.Has(ops::kPartsInNumber);
  if (is_number_of_parts) part = CeilDiv(trace, whole, *part);
  const std::optional<IntTerm> parts = part ? CeilDiv(trace, whole, *part) : part;
  if (!parts) return false;
  const int64_t made = ceil_div(length, is_number_of_parts ? ceil_div(length, number) : number);
  const Ref<> now = Must(PyLong_FromLongLong(made));
  return DecideNumbers(trace, now.get(), parts->shadow, now.get(), Shadow(), Py_EQ, false);
}

// How many tensors came follows from one size; the list is the program's from now on.
void ReadListLength(Trace& trace, const Node& node, const Event& e) {
  const OpRow row = OpRowOf(*node.op);
  if (row.Has(ops::kOneForEachTensor)) return;  // the program's list has a length that is guarded
  const std::optional<int> dim = node.op->schema().argumentIndexWithName("dim");
  const Arg* along = dim ? &node.args[static_cast<size_t>(*dim)] : nullptr;
  if (!row.Has(ops::kPartsAlongDim | ops::kPartForEachSize) || along == nullptr || along->kind != Arg::Kind::kConst ||
      !along->constant.isInt() || node.args[0].kind != Arg::Kind::kValue) {
    for (int i = 0; i < e.n; ++i) ReadAllTensors(trace, e.in[i], false);
    return;
  }
  if (row.Has(ops::kPartForEachSize)) return;
  const ValueId tensor = node.args[0].value;
  const auto rank = static_cast<int64_t>(trace.aten.graph().value(tensor).type.sizes.size());
  const int64_t at = along->constant.toInt() < 0 ? along->constant.toInt() + rank : along->constant.toInt();
  const int64_t length = trace.aten.graph().value(tensor).type.sizes[static_cast<size_t>(at)];
  const std::vector<Arg> args = node.args;  // guards on numbers may add nodes
  for (const Arg& arg : args) {
    if (arg.kind != Arg::Kind::kValue || arg.value == tensor) continue;
    const Type& type = trace.aten.graph().value(arg.value).type;
    // A number that is a tensor's element has no guard.
    if (type.kind == Type::Kind::kTensor && type.sizes.empty()) {
      throw Break{Reason::value_of_tensor, "the number of tensors that an op gives"};
    }
  }
  const Shadow size = SizeOf(trace, tensor, at);
  if (row.Has(ops::kPartsOfSize | ops::kPartsInNumber) && DecideParts(trace, row, args[1], size, length)) return;
  for (const Arg& arg : args) {
    if (arg.kind != Arg::Kind::kValue || arg.value == tensor) continue;
    Specialize(trace, nullptr, Shadow{Shadow::Kind::kValue, arg.value.raw()});
  }
  if (!row.Has(ops::kSections)) Specialize(trace, nullptr, size);
}

}  // namespace frametap
