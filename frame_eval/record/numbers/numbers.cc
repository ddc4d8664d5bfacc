#include "frame_eval/record/numbers/numbers.h"

#include <algorithm>
#include <cstring>

#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/numbers/operands.h"
#include "frame_eval/record/numbers/sequences.h"
#include "frame_eval/record/numbers/sizes.h"
#include "frame_eval/record/numbers/symbolic_args.h"
#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/objects/identity.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/open_keys.h"
#include "frame_eval/record/objects/outside_containers.h"
#include "frame_eval/record/objects/set_check.h"
#include "frame_eval/record/tensor_branch_guards.h"
#include "frame_eval/record/trace/kernel_nodes.h"
#include "frame_eval/record/trace/size_dependence.h"
#include "guards/kinds/relation.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"
#include "ir/graph/walk.h"
#include "ir/ops/op_facts.h"
#include "ir/ops/op_rows.h"

namespace frametap {

static bool EqualTuples(Trace& trace, PyObject* a, PyObject* b);
static bool ExpressValue(Trace& trace, ValueId value, NumberExpr* expr, std::vector<SourceId>* sources,
                         size_t depth = 0);
namespace {

// Numbers of BINARY_OP (opcode.h would bring its macros): the in-place ones follow 13 later.
constexpr int kNbAdd = 0, kNbAnd = 1, kNbFloorDivide = 2, kNbLshift = 3, kNbMultiply = 5, kNbRemainder = 6, kNbOr = 7,
              kNbPower = 8, kNbRshift = 9, kNbSubtract = 10, kNbTrueDivide = 11, kNbXor = 12, kInplaceFrom = 13;

}  // namespace

// ---- which numbers are left open ------------------------------------------------------------------------------------

// N3. The origin of a number.
static bool IsDynamic(Trace& trace, SourceId source) {
  if (trace.guards.IsFixed(source)) return false;
  if (trace.guards.accessor(source) == Accessor::kAddress) return true;
  if (trace.numbers.open == OpenNumbers::kChanging) return HasChanged(trace, source);
  switch (trace.guards.accessor(source)) {
    case Accessor::kStride:
      return false;
    case Accessor::kSize:
      if (const auto mark = trace.guards.MarkOf(source)) return !mark->is_static;
      return trace.guards.accessor(trace.guards.parent(source)) !=
             Accessor::kModuleAttr;  // of parameters they are what the module is
    case Accessor::kLength:
    case Accessor::kCount:
    case Accessor::kLeft:
      return true;
    default:
      break;
  }
  // The ints of a module are what it is made of (strides, widths), as parameters' sizes are.
  const auto is_int_of_module = [&] {
    PyObject* const seen = trace.guards.seen(source);
    if (seen == nullptr || !PyLong_CheckExact(seen)) return false;
    for (SourceId owner = trace.guards.parent(source); owner.valid(); owner = trace.guards.parent(owner)) {
      PyObject* const object = trace.guards.seen(owner);
      if (object != nullptr && PyObject_TypeCheck(object, Objects().module)) return true;
    }
    return false;
  };
  if (trace.store.options().dynamic == Dynamic::kAlways && !is_int_of_module()) return true;
  SourceId id = source;
  while (id.valid()) {
    const Accessor accessor = trace.guards.accessor(id);
    if (accessor == Accessor::kLocal || accessor == Accessor::kStack) return true;
    if (accessor != Accessor::kItem && accessor != Accessor::kKey && accessor != Accessor::kNext) break;
    id = trace.guards.parent(id);
  }
  if (HasChanged(trace, source)) return true;
  // A variable that the running function assigns to is a counter, a moving average ….
  if (trace.guards.accessor(source) != Accessor::kAttr) return false;
  PyCodeObject* const code = trace.frames.innermost().code;
  PyObject* const name = trace.guards.KeyOf(source);
  const auto [known, is_new] = trace.objects.stores.try_emplace({code, name});
  if (is_new) known->second = StoresAttribute(code, name);
  return known->second;
}

bool IsDynamic(Trace& trace, ValueId value) {
  const auto visit = [&](ValueId id, const Node* node) {
    if (auto it = trace.numbers.inputs.find(id.raw()); it != trace.numbers.inputs.end()) {
      return IsDynamic(trace, it->second) ? Walk::kEnd : Walk::kNotBelow;
    }
    if (node == nullptr) return Walk::kOn;
    if (node->builtin_op == BuiltinOp::kSize && !trace.numbers.sizes_open()) return Walk::kNotBelow;
    return !node->is_scalar() || node->builtin_op == BuiltinOp::kSize ? Walk::kEnd : Walk::kOn;
  };
  return !WalkOperands(trace.aten.graph(), value, visit);
}

bool LeavesOpen(Trace& trace, PyObject* object, Shadow shadow) {
  Number number;
  if (!trace.numbers.any_open() || shadow.kind == Shadow::Kind::kNone || !NumberOf(object, &number)) return false;
  if (shadow.kind == Shadow::Kind::kSource) return IsDynamic(trace, SourceId(shadow.id));
  return shadow.kind == Shadow::Kind::kValue && IsDynamic(trace, ValueId(shadow.id));
}

// The knowledge about a number that is put into a sequence: nothing is fixed for one that is left open. `*open` is set
// then.
Shadow KeepOpen(Trace& trace, PyObject* object, Shadow shadow, bool* open) {
  if (LeavesOpen(trace, object, shadow)) {
    *open = true;
    return shadow;
  }
  Specialize(trace, object, shadow);
  return Shadow();
}

// ---- their values in the graph --------------------------------------------------------------------------------------

ValueId NumberValue(Trace& trace, Shadow shadow) {
  if (shadow.kind == Shadow::Kind::kValue) return ValueId(shadow.id);
  auto it = trace.numbers.values.find(shadow.id);
  if (it != trace.numbers.values.end() && it->second.raw() < trace.aten.graph().values.size()) return it->second;
  const SourceId source{shadow.id};
  trace.guards.Type(source, trace.frames.Here());
  PyObject* seen = trace.guards.seen(source);
  const bool is_float = seen != nullptr && PyFloat_CheckExact(seen);
  ValueId value =
      trace.aten.tensors.AddNumberInput(source, Type::Scalar(is_float ? Type::Kind::kFloat : Type::Kind::kInt));
  trace.numbers.values[shadow.id] = value;
  trace.numbers.inputs[value.raw()] = source;
  if (IsNotNegative(trace, IntTerm::Of(shadow))) trace.numbers.not_negative.insert(value);
  return value;
}

// A number computed by the graph is fixed by fixing what it came from.
void FixValue(Trace& trace, ValueId value, const TensorRead& read, absl::flat_hash_set<ValueId>* seen) {
  std::vector<ValueId> inputs;
  std::vector<Node> followed;  // copies: asking for sizes adds nodes
  while (const Node* const data = SizeCone(trace.aten, value, &inputs, seen)) {
    seen->clear();
    inputs.clear();
    if (!SizesFollow(*data, trace.numbers.traced_sizes)) {
      const bool is_number = data->op && FactsOf(*data->op).scalar_from_data;
      throw Break{is_number ? Reason::value_of_tensor : Reason::data_dependent_size,
                  is_number ? data->op->operator_name().name : ""};
    }
    followed.push_back(*data);
    for (const Node& node : followed) seen->insert(node.outputs.begin(), node.outputs.end());
  }
  for (const Node& node : followed) {
    ForEachUse(node.args, [&](ValueId use) { FixValue(trace, use, read, seen); });
  }
  for (const ValueId input : inputs) {
    const SourceId source = trace.aten.tensors.SourceOfInput(input);
    if (!source.valid()) continue;  // a constant
    if (trace.numbers.inputs.contains(input.raw())) {
      Specialize(trace, nullptr, Shadow{Shadow::Kind::kSource, source.raw()});
    } else if (trace.aten.graph().value(input).type.kind == Type::Kind::kTensor) {  // arrays are fixed (array_nodes.h)
      trace.guards.Tensor(source, read, trace.frames.Here());
    }
  }
}

// Returns the tensor whose element the number is (x.item()), or an invalid value if it comes from elsewhere.
static ValueId TensorOfElement(const Graph& graph, Shadow shadow) {
  if (shadow.kind != Shadow::Kind::kValue) return ValueId();
  const NodeId def = graph.value(ValueId(shadow.id)).def;
  if (!def.valid() || !graph.node(def).op) return ValueId();
  if (!OpRowOf(*graph.node(def).op).Has(ops::kGivesElement)) return ValueId();
  const Arg& arg = graph.node(def).args[0];
  return arg.kind == Arg::Kind::kValue ? arg.value : ValueId();
}

void Specialize(Trace& trace, PyObject* object, Shadow shadow) {
  // Asked of nearly every object of a recording.
  if (shadow.kind == Shadow::Kind::kNone) [[likely]]
    return;
  if (shadow.kind == Shadow::Kind::kSource) {
    const SourceId addressed = AddressedBy(trace, shadow);
    addressed.valid() ? FixAddress(trace, addressed) : trace.guards.Value(SourceId(shadow.id), trace.frames.Here());
  }
  if (shadow.kind != Shadow::Kind::kValue) return;
  // As a branch on x.any() is, one on x.any().item() may be a guard.
  const bool is_bool = object != nullptr && PyBool_Check(object);
  if (const ValueId tensor = TensorOfElement(trace.aten.graph(), shadow); is_bool && tensor.valid()) {
    for (const Decided& decided : trace.decisions) {
      if (decided.value == tensor) return;
    }
    if (std::vector<bool> cone; DecisionCone(trace, tensor, &cone)) {
      trace.decisions.push_back({tensor, object == Py_True});
      return;
    }
  }
  TensorRead read;
  read.sizes = true;
  FixValue(trace, ValueId(shadow.id), read, &trace.numbers.sizes_read);
}

// One shadow for one number of the entry.
Shadow Canonical(const Trace& trace, Shadow shadow) {
  const auto it =
      shadow.kind == Shadow::Kind::kValue ? trace.numbers.inputs.find(shadow.id) : trace.numbers.inputs.end();
  return it == trace.numbers.inputs.end() ? shadow : Shadow{Shadow::Kind::kSource, it->second.raw()};
}

Shadow AddNumber(Trace& trace, BuiltinOp op, std::initializer_list<std::pair<PyObject*, Shadow>> operands) {
  const bool of_ints = RowOf(op).result == Type::Kind::kInt && RowOf(op).operands == Type::Kind::kInt;
  IntTerm terms[2];
  std::vector<Arg> args;
  if (HasNoResult(op, operands)) {
    for (const auto& [object, shadow] : operands) Specialize(trace, object, shadow);
    return Shadow();
  }
  for (const auto& [object, shadow] : operands) {
    Number number;
    if (object != nullptr) NumberOf(object, &number);
    if (of_ints) {
      FixType(trace, Canonical(trace, shadow));  // `n - n` keeps nothing of n, and is 0.0 of a float
      terms[args.size()] = {Canonical(trace, shadow), number.i};
      args.emplace_back();
    } else {
      args.push_back(shadow.kind == Shadow::Kind::kNone ? Arg::Const(ValueOf(number))
                                                        : Arg::Of(NumberValue(trace, shadow)));
    }
  }
  if (of_ints) {
    const std::optional<IntTerm> term = IntOp(trace, op, terms[0], terms[1]);
    return term ? term->shadow : Shadow();  // a constant now is one for all values
  }
  const ValueId value = trace.aten.AddScalarNode(op, std::move(args), Type::Scalar(RowOf(op).result));
  return Shadow{Shadow::Kind::kValue, value.raw()};
}

// A number of which the type is known and the value has not been read. Sizes and lengths are ints.
void FixType(Trace& trace, Shadow shadow) {
  if (shadow.kind != Shadow::Kind::kSource) return;
  const SourceId source(shadow.id);
  const Accessor accessor = trace.guards.accessor(source);
  const bool is_int = accessor == Accessor::kSize || accessor == Accessor::kLength || accessor == Accessor::kAddress;
  if (!is_int) trace.guards.Type(source, trace.frames.Here());
}

// ---- arithmetic -----------------------------------------------------------------------------------------------------

// The op that gives what Python gives for these operands; kNone: the operands are to be fixed.
static BuiltinOp NumberOp(Trace& trace, const Event& e) {
  Number a, b;
  if (!NumberOf(e.in[0], &a)) return BuiltinOp::kNone;
  if (e.op == Op::kUnary) {
    if (e.arg == 1) return a.is_float ? BuiltinOp::kFloatNeg : BuiltinOp::kIntNeg;
    return e.arg == 3 && !a.is_float ? BuiltinOp::kIntInvert : BuiltinOp::kNone;
  }
  if (!NumberOf(e.in[1], &b)) return BuiltinOp::kNone;
  const bool ints = !a.is_float && !b.is_float;
  const auto guarded = [&](int side, int py_compare_op, BuiltinOp op) {
    return TakesOperand(trace, e.in[side], e.shadows[side], py_compare_op) ? op : BuiltinOp::kNone;
  };
  switch (e.arg % kInplaceFrom) {
    case kNbAdd:
      return ints ? BuiltinOp::kIntAdd : BuiltinOp::kFloatAdd;
    case kNbSubtract:
      return ints ? BuiltinOp::kIntSub : BuiltinOp::kFloatSub;
    case kNbMultiply:
      return ints ? BuiltinOp::kIntMul : BuiltinOp::kFloatMul;
    case kNbTrueDivide:
      return guarded(1, Py_NE, ints ? BuiltinOp::kIntTrueDiv : BuiltinOp::kFloatDiv);
    case kNbFloorDivide:
      return guarded(1, Py_NE, ints ? BuiltinOp::kIntFloorDiv : BuiltinOp::kFloatFloorDiv);
    case kNbRemainder:
      return guarded(1, Py_NE, ints ? BuiltinOp::kIntMod : BuiltinOp::kFloatMod);
    case kNbPower:
      return ints ? guarded(1, Py_GE, BuiltinOp::kIntPow) : guarded(0, Py_GT, BuiltinOp::kFloatPow);
    default:
      break;
  }
  if (!ints) return BuiltinOp::kNone;
  switch (e.arg % kInplaceFrom) {
    case kNbAnd:
      return BuiltinOp::kIntAnd;
    case kNbOr:
      return BuiltinOp::kIntOr;
    case kNbXor:
      return BuiltinOp::kIntXor;
    case kNbLshift:
      return guarded(1, Py_GE, BuiltinOp::kIntLshift);
    case kNbRshift:
      return guarded(1, Py_GE, BuiltinOp::kIntRshift);
    default:
      return BuiltinOp::kNone;
  }
}

// Arithmetic on numbers that are not fixed yet stays a computation of the graph: a counter does not fix its value.
bool ScalarNode(Trace& trace, FrameNote& note, const Event& e) {
  bool open = false;
  for (int i = 0; i < e.n; ++i) {
    if (!IsNumber(e.in[i])) return false;
    if (e.shadows[i].kind == Shadow::Kind::kNone) continue;
    // Sizes are of no use to a backend whose graphs have fixed ones.
    if (!trace.numbers.sizes_open() && e.shadows[i].kind == Shadow::Kind::kSource &&
        trace.guards.seen(SourceId(e.shadows[i].id)) == nullptr) {
      return false;
    }
    open = true;
  }
  const BuiltinOp op = open ? NumberOp(trace, e) : BuiltinOp::kNone;
  if (op == BuiltinOp::kNone) return false;
  note.op.expect.SetShadow(e.n == 1 ? AddNumber(trace, op, {{e.in[0], e.shadows[0]}})
                                    : AddNumber(trace, op, {{e.in[0], e.shadows[0]}, {e.in[1], e.shadows[1]}}));
  return true;
}

// "%r", "%-8a"
static bool AsksForRepr(PyObject* format) {
  const Py_ssize_t size = PyUnicode_GET_LENGTH(format);
  for (Py_ssize_t i = 0; i < size; ++i) {
    if (PyUnicode_READ_CHAR(format, i) != '%') continue;
    const auto is_flag = [](Py_UCS4 at) {
      return at < 128 && at != 0 && std::strchr("#0- +.*123456789", at) != nullptr;
    };
    while (++i < size && is_flag(PyUnicode_READ_CHAR(format, i))) {
    }
    if (i < size && (PyUnicode_READ_CHAR(format, i) == 'r' || PyUnicode_READ_CHAR(format, i) == 'a')) return true;
  }
  return false;
}

void BinaryNumbers(Trace& trace, FrameNote& note, const Event& e) {
  PyObject* left = e.in[0];
  PyObject* right = e.in[1];
  if (IsTensor(left) || IsTensor(right)) {
    Call call{trace.frames.innermost(), note, nullptr, {left, right}, {e.shadows[0], e.shadows[1]}, {}};
    return TorchCall(trace, note, &call, "");
  }
  if (IsNumber(left) && IsNumber(right)) {
    if (ScalarNode(trace, note, e)) return;
    return SpecializeAll(trace, e);
  }
  const bool in_place = e.arg >= kInplaceFrom;
  if (IsNumPyNumber(left) || IsNumPyNumber(right)) {
    const int op = e.arg % kInplaceFrom;
    const bool is_known = op == kNbAdd || op == kNbSubtract || op == kNbMultiply || op == kNbTrueDivide;
    if (!is_known || !IsModestQuotient(left, right)) {
      PyObject* const number = IsNumPyNumber(left) ? left : right;
      throw Break{Reason::numpy_code, std::string("an operator on ") + Py_TYPE(number)->tp_name};
    }
  }
  if (e.arg % kInplaceFrom == kNbAdd && JoinRows(trace, note, left, right, in_place)) return;
  if (e.arg == kInplaceFrom + kNbAdd && AppendOutside(trace, left, right, nullptr, Shadow())) return;  // gives `left`
  for (int side = 0; side < 2; ++side) {
    PyObject* const operand = e.in[side];
    const ObjectRecord* const known = PySet_CheckExact(operand) ? trace.objects.Find(operand) : nullptr;
    const bool is_own_set = known != nullptr && known->state == ObjectRecord::State::kFresh;
    // The elements of the result do not depend on the order of the operands, and its own order is read where it matters.
    is_own_set ? FixKeys(trace, operand) : SpecializeDeep(trace, operand, e.shadows[side], true);
  }
  if (PyUnicode_Check(left) && e.arg % kInplaceFrom == kNbRemainder) {
    ReadPrinted(trace, right, AsksForRepr(left) ? Printed::kRepr : Printed::kStr);
  }
  if (IsAnySet(left) || PyDict_Check(left) || PyDictViewSet_Check(left) || PyDictViewSet_Check(right)) {
    ReadElements(trace, {left, right});
  }
  ReadLayout(trace, left);
  ReadLayout(trace, right);
  if (in_place && (PyList_Check(left) || PyDict_Check(left) || IsAnySet(left))) {
    ObjectRecord* known = trace.objects.Find(left);
    if (known == nullptr || known->state == ObjectRecord::State::kSource) {
      throw Break{Reason::unknown_mutation, "an in-place operator on a container that existed before"};
    }
    MarkMutated(trace, left);
  }
}

// ---- decisions ------------------------------------------------------------------------------------------------------

// Expresses a number in terms of entry values. Returns false if a part of it cannot be expressed.
static bool Express(Trace& trace, PyObject* object, Shadow shadow, NumberExpr* expr, std::vector<SourceId>* sources) {
  switch (shadow.kind) {
    case Shadow::Kind::kNone: {
      Number number;
      return NumberOf(object, &number) && expr->PushConstant(number);
    }
    case Shadow::Kind::kSource: {
      const SourceId source{shadow.id};
      PyObject* seen = trace.guards.seen(source);
      if (seen != nullptr && !PyLong_CheckExact(seen) && !PyFloat_CheckExact(seen)) return false;
      if (seen != nullptr && !IsDynamic(trace, source)) {
        Number number;
        trace.guards.Value(source, trace.frames.Here());
        return NumberOf(seen, &number) && expr->PushConstant(number);
      }
      const auto it = std::find(sources->begin(), sources->end(), source);
      const auto input = static_cast<uint32_t>(it - sources->begin());
      if (it == sources->end()) sources->push_back(source);
      return sources->size() <= NumbersRelation::kMostInputs && expr->PushInput(input);
    }
    case Shadow::Kind::kValue:
      return ExpressValue(trace, ValueId(shadow.id), expr, sources);
    default:
      return false;
  }
}

static bool ExpressValue(Trace& trace, ValueId value, NumberExpr* expr, std::vector<SourceId>* sources, size_t depth) {
  if (depth == NumberExpr::kMostTerms) return false;  // each level is a term
  const Shadow shadow = Canonical(trace, Shadow{Shadow::Kind::kValue, value.raw()});
  if (shadow.kind == Shadow::Kind::kSource) return Express(trace, nullptr, shadow, expr, sources);
  const NodeId def = trace.aten.graph().value(value).def;
  if (!def.valid() || !trace.aten.graph().node(def).is_scalar()) return false;
  const Node& node = trace.aten.graph().node(def);
  if (RowOf(node.builtin_op).operands == Type::Kind::kNone) return false;
  for (const Arg& arg : node.args) {
    if (arg.kind == Arg::Kind::kValue) {
      if (!ExpressValue(trace, arg.value, expr, sources, depth + 1)) return false;
      continue;
    }
    const bool is_float = arg.constant.isDouble();
    if (!is_float && !arg.constant.isInt()) return false;
    if (!expr->PushConstant(is_float ? Number::Float(arg.constant.toDouble()) : Number::Int(arg.constant.toInt()))) {
      return false;
    }
  }
  return expr->Push(node.builtin_op);
}

// The program branches on the comparison of `a` and `b`: only the outcome is fixed. Returns false, with nothing
// guarded, if that cannot be expressed in numbers of the entry. With `only_if_true`, also returns false if the outcome
// is another.
bool DecideNumbers(Trace& trace, PyObject* a, Shadow sa, PyObject* b, Shadow sb, int py_compare_op, bool only_if_true) {
  const int outcome = PyObject_RichCompareBool(a, b, py_compare_op);
  if (outcome < 0 || (only_if_true && outcome == 0)) {
    PyErr_Clear();
    return false;
  }
  if (sa.kind == Shadow::Kind::kNone && sb.kind == Shadow::Kind::kNone) return true;
  if (const SourceId x = AddressedBy(trace, sa), y = AddressedBy(trace, sb); x.valid() && y.valid()) {
    if (x != y && (py_compare_op == Py_EQ || py_compare_op == Py_NE)) {
      trace.guards.SameObject(x, y, outcome == (py_compare_op == Py_EQ), trace.frames.Here());
      return true;
    }
  }
  // A number against a constant.
  static constexpr int kMirror[] = {Py_GT, Py_GE, Py_EQ, Py_NE, Py_LT, Py_LE};
  for (int side = 0; side < 2; ++side) {
    const Shadow open = side == 0 ? sa : sb, other = side == 0 ? sb : sa;
    if (open.kind != Shadow::Kind::kSource || LeavesOpen(trace, side == 0 ? b : a, other)) continue;
    if (other.kind != Shadow::Kind::kNone) {
      if (!LeavesOpen(trace, side == 0 ? a : b, open)) continue;
      Specialize(trace, side == 0 ? b : a, other);
    }
    if (PyLong_CheckExact(a) && PyLong_CheckExact(b) && outcome == (py_compare_op == Py_EQ) &&
        (py_compare_op == Py_EQ || py_compare_op == Py_NE)) {
      Specialize(trace, side == 0 ? a : b, open);  // there is one such number
      return true;
    }
    return trace.guards.Relation(SourceId(open.id), side == 0 ? py_compare_op : kMirror[py_compare_op],
                                 side == 0 ? b : a, outcome == 1, trace.frames.Here());
  }
  NumberExpr left, right;
  std::vector<SourceId> sources;
  if (!Express(trace, a, sa, &left, &sources) || !Express(trace, b, sb, &right, &sources)) {
    // As x.max() <= n does, x.max().item() <= n becomes a guard, where the op and Python compare alike.
    for (int side = 0; side < 2; ++side) {
      const ValueId tensor = TensorOfElement(trace.aten.graph(), side == 0 ? sa : sb);
      PyObject* const other = side == 0 ? b : a;
      const Shadow shadow = side == 0 ? sb : sa;
      Number number;
      if (!tensor.valid() || !PyLong_CheckExact(other) || !NumberOf(other, &number)) continue;
      Type type = trace.aten.graph().value(tensor).type;
      std::vector<bool> cone;
      if (type.dtype != c10::ScalarType::Long || !DecisionCone(trace, tensor, &cone)) continue;
      if (shadow.kind == Shadow::Kind::kValue && !DecisionCone(trace, ValueId(shadow.id), &cone)) continue;
      static constexpr const char* kOps[] = {"aten::lt", "aten::le", "aten::eq", "aten::ne", "aten::gt", "aten::ge"};
      const char* const op = kOps[side == 0 ? py_compare_op : kMirror[py_compare_op]];
      Arg operand =
          shadow.kind == Shadow::Kind::kNone ? Arg::Const(ValueOf(number)) : Arg::Of(NumberValue(trace, shadow));
      type.dtype = c10::ScalarType::Bool;
      const ValueId outcome_now = trace.aten.AddOpNode(op, "Scalar", {Arg::Of(tensor), std::move(operand)}, type);
      trace.decisions.push_back({outcome_now, outcome == 1});
      return true;
    }
    return false;
  }
  if (left == right && !left.has_floats() && PyLong_CheckExact(a)) {
    for (const SourceId source : sources)
      FixType(trace, Shadow{Shadow::Kind::kSource, source.raw()});  // NaN is not itself
    return true;
  }
  return sources.empty() || trace.guards.Relation(std::move(left), py_compare_op, std::move(right), outcome == 1,
                                                  sources, trace.frames.Here());
}

void CompareValues(Trace& trace, FrameNote& note, PyObject* a, Shadow sa, PyObject* b, Shadow sb, int py_compare_op) {
  if (IsTensor(a) || IsTensor(b)) {
    Call call{trace.frames.innermost(), note, nullptr, {a, b}, {sa, sb}, {}};
    return TorchCall(trace, note, &call, "");
  }
  if (IsNumber(a) && IsNumber(b) && DecideNumbers(trace, a, sa, b, sb, py_compare_op, false)) return;
  const bool equality = py_compare_op == Py_EQ || py_compare_op == Py_NE;
  if (equality && IsPlainTuple(a) && IsPlainTuple(b) && EqualTuples(trace, a, b)) return;
  SpecializeDeep(trace, a, sa, false);
  SpecializeDeep(trace, b, sb, false);
  ReadEqual(trace, a, b);
}

// x.shape == y.shape: numbers in pairs, up to the first that differ.
static bool EqualTuples(Trace& trace, PyObject* a, PyObject* b) {
  for (PyObject* tuple : {a, b}) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
      Number unused;
      if (!NumberOf(PyTuple_GET_ITEM(tuple, i), &unused)) return false;
    }
    GuardTypeOrIdentity(trace, tuple);
    AdoptElements(trace, tuple);
  }
  if (PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) return true;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); ++i) {
    PyObject *x = PyTuple_GET_ITEM(a, i), *y = PyTuple_GET_ITEM(b, i);
    const Shadow sx = ElementShadow(trace, a, i), sy = ElementShadow(trace, b, i);
    // Two floats that are not equal by a relation may be one NaN, which a tuple takes for equal.
    const bool are_floats = PyFloat_CheckExact(x) && PyFloat_CheckExact(y);
    if (are_floats) ReadEqualElements(trace, x, y);
    if (are_floats || !DecideNumbers(trace, x, sx, y, sy, Py_EQ, false)) {
      Specialize(trace, x, sx);
      Specialize(trace, y, sy);
    }
    if (!Must(PyObject_RichCompareBool(x, y, Py_EQ))) break;
  }
  return true;
}

static c10::IValue ComputeNumber(Trace& trace, ValueId value) {
  c10::IValue number;
  const NodeId def = trace.aten.graph().value(value).def;
  if (auto it = trace.numbers.inputs.find(value.raw()); it != trace.numbers.inputs.end()) {
    PyObject* seen = trace.guards.seen(it->second);
    if (frametap::IsNumber(trace.guards.accessor(it->second))) number = trace.guards.SeenNumber(it->second);
    if (seen != nullptr && PyFloat_Check(seen)) number = PyFloat_AS_DOUBLE(seen);
    if (seen != nullptr && PyLong_Check(seen)) {
      int overflow = 0;
      const int64_t integer = PyLong_AsLongLongAndOverflow(seen, &overflow);
      if (overflow == 0) number = integer;
    }
  } else if (def.valid() && trace.aten.graph().node(def).is_scalar()) {
    const Node& node = trace.aten.graph().node(def);
    if (node.builtin_op == BuiltinOp::kSize) {
      const Type& type = trace.aten.graph().value(node.args[0].value).type;
      return number = type.sizes[static_cast<size_t>(node.args[1].constant.toInt())];
    }
    c10::IValue operands[2];
    bool known = node.args.size() <= 2;
    for (size_t i = 0; known && i < node.args.size(); ++i) {
      const Arg& arg = node.args[i];
      operands[i] = arg.kind == Arg::Kind::kValue ? NumberAt(trace, arg.value) : arg.constant;
      known = operands[i].isScalar();
    }
    try {
      if (known) number = Evaluate(node.builtin_op, operands[0], operands[1]);
    } catch (const std::exception&) {  // no graph value either: replay restarts in Python
    }
  }
  trace.numbers.results[value.raw()] = number;
  return number;
}

// None where a number is not computed by scalar ops alone, or is too large for a graph.
c10::IValue NumberAt(Trace& trace, ValueId value) {
  if (auto it = trace.numbers.results.find(value.raw()); it != trace.numbers.results.end()) return it->second;
  const auto is_computed = [&](ValueId id, const Node* node) {
    return node != nullptr && node->is_scalar() && node->builtin_op != BuiltinOp::kSize &&
           !trace.numbers.results.contains(id.raw());
  };
  for (const ValueId id : OperandsFirst(trace.aten.graph(), value, is_computed)) {
    if (id != value) ComputeNumber(trace, id);
  }
  return ComputeNumber(trace, value);
}

}  // namespace frametap
