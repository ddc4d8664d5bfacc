// Numbers that are not fixed: sizes, arguments, and results computed from them. They are graph values. A decision on
// them is guarded as a relation; an op that takes them takes the graph value.
//   N1  The program always sees exact Python numbers, and ops run on these. Which number an op was given is concluded
//       afterwards, from the node that it left (LinkNumbers), and only where the binding hands it on as it is.
//   N2  A number that is used in any other way is fixed (Force).
//   N3  Nothing is left open that would not change: numbers that modules and globals hold are fixed, until they have
//       been seen to change (IsDynamic).
// Not here: sizes of tensors (sizes.cc), how an op gets its numbers (number_links.cc), rows of numbers (rows.cc),
// torch.tensor and tolist (numbers_in_tensors.cc).
#include <algorithm>
#include <cstring>

#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/numbers/rows.h"
#include "frame_eval/record/recorder.h"
#include "frame_eval/record/trace/kernel_nodes.h"
#include "guards/kinds/relation.h"
#include "guards/must.h"
#include "guards/objects/known_objects.h"
#include "guards/objects/tensor_door.h"
#include "ir/graph/scalar.h"
#include "ir/ops/op_facts.h"
#include "ir/ops/size_rules.h"

namespace frametap {
namespace {

// Numbers of BINARY_OP (opcode.h would bring its macros): the in-place ones follow 13 later.
constexpr int kNbAdd = 0, kNbAnd = 1, kNbFloorDivide = 2, kNbLshift = 3, kNbMultiply = 5, kNbRemainder = 6, kNbOr = 7,
              kNbPower = 8, kNbRshift = 9, kNbSubtract = 10, kNbTrueDivide = 11, kNbXor = 12, kInplaceFrom = 13;

}  // namespace

// ---- which numbers are left open ------------------------------------------------------------------------------------

// N3. The origin of a number.
bool Recorder::IsDynamic(SourceId source) {
  if (guards_.IsFixed(source)) return false;
  if (guards_.accessor(source) == Accessor::kAddress) return true;
  if (open_ == Open::kChanging) return store_.IsChanging(guards_.Name(source));
  switch (guards_.accessor(source)) {
    case Accessor::kStride:
      return false;
    case Accessor::kSize:
      if (const auto mark = guards_.MarkOf(source)) return !mark->is_static;
      return guards_.accessor(guards_.parent(source)) !=
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
    PyObject* const seen = guards_.seen(source);
    if (seen == nullptr || !PyLong_CheckExact(seen)) return false;
    for (SourceId owner = guards_.parent(source); owner.valid(); owner = guards_.parent(owner)) {
      PyObject* const object = guards_.seen(owner);
      if (object != nullptr && PyObject_TypeCheck(object, Objects().module)) return true;
    }
    return false;
  };
  if (store_.options().dynamic == Dynamic::kAlways && !is_int_of_module()) return true;
  SourceId id = source;
  while (id.valid()) {
    const Accessor accessor = guards_.accessor(id);
    if (accessor == Accessor::kLocal || accessor == Accessor::kStack) return true;
    if (accessor != Accessor::kItem && accessor != Accessor::kKey && accessor != Accessor::kNext) break;
    id = guards_.parent(id);
  }
  if (store_.has_changing_numbers() && store_.IsChanging(guards_.Name(source))) return true;
  // A variable that the running function assigns to is a counter, a moving average ….
  if (guards_.accessor(source) != Accessor::kAttr) return false;
  PyCodeObject* const code = frames_.back()->code;
  PyObject* const name = guards_.KeyOf(source);
  const auto [known, is_new] = stores_.try_emplace({code, name});
  if (is_new) known->second = StoresAttribute(code, name);
  return known->second;
}

bool Recorder::IsDynamic(ValueId value) {
  std::vector<ValueId> work{value};
  while (!work.empty()) {
    const ValueId id = work.back();
    work.pop_back();
    if (auto it = number_inputs_.find(id.raw()); it != number_inputs_.end()) {
      if (IsDynamic(it->second)) return true;
      continue;
    }
    const NodeId def = aten_.graph().value(id).def;
    if (!def.valid()) continue;
    const Node& node = aten_.graph().node(def);
    if (node.scalar_op == ScalarOp::kSize && !sizes_open()) continue;
    if (!node.is_scalar() || node.scalar_op == ScalarOp::kSize) return true;
    ForEachUse(node.args, [&](ValueId use) { work.push_back(use); });
  }
  return false;
}

bool Recorder::LeavesOpen(PyObject* object, Shadow shadow) {
  Number number;
  if (!numbers_open() || shadow.kind == Shadow::Kind::kNone || !NumberOf(object, &number)) return false;
  if (shadow.kind == Shadow::Kind::kSource) return IsDynamic(SourceId(shadow.id));
  return shadow.kind == Shadow::Kind::kValue && IsDynamic(ValueId(shadow.id));
}

// The knowledge about a number that is put into a sequence: nothing is fixed for one that is left open. `*open` is set
// then.
Shadow Recorder::KeepOpen(PyObject* object, Shadow shadow, bool* open) {
  if (LeavesOpen(object, shadow)) {
    *open = true;
    return shadow;
  }
  Force(object, shadow);
  return Shadow();
}

// ---- their values in the graph --------------------------------------------------------------------------------------

ValueId Recorder::NumberValue(Shadow shadow) {
  if (shadow.kind == Shadow::Kind::kValue) return ValueId(shadow.id);
  auto it = number_values_.find(shadow.id);
  if (it != number_values_.end() && it->second.raw() < aten_.graph().values.size()) return it->second;
  const SourceId source{shadow.id};
  guards_.Type(source, Here());
  PyObject* seen = guards_.seen(source);
  const bool is_float = seen != nullptr && PyFloat_CheckExact(seen);
  ValueId value = aten_.AddNumberInput(source, Type::Scalar(is_float ? Type::Kind::kFloat : Type::Kind::kInt));
  number_values_[shadow.id] = value;
  number_inputs_[value.raw()] = source;
  if (IsNotNegative(IntTerm::Of(shadow))) not_negative_.insert(value);
  return value;
}

// A number computed by the graph is fixed by fixing what it came from.
void Recorder::FixValue(ValueId value, const TensorRead& read, absl::flat_hash_set<ValueId>* seen) {
  std::vector<ValueId> inputs;
  std::vector<Node> followed;  // copies: asking for sizes adds nodes
  while (const Node* const data = aten_.SizeCone(value, &inputs, seen)) {
    seen->clear();
    inputs.clear();
    if (!SizesFollow(*data, traced_sizes_)) {
      const bool is_number = data->op && FactsOf(*data->op).scalar_from_data;
      throw Break{is_number ? Reason::value_of_tensor : Reason::data_dependent_size,
                  is_number ? data->op->operator_name().name : ""};
    }
    followed.push_back(*data);
    for (const Node& node : followed) seen->insert(node.outputs.begin(), node.outputs.end());
  }
  for (const Node& node : followed) {
    ForEachUse(node.args, [&](ValueId use) { FixValue(use, read, seen); });
  }
  for (const ValueId input : inputs) {
    const SourceId source = aten_.SourceOfInput(input);
    if (!source.valid()) continue;  // a constant
    if (number_inputs_.contains(input.raw())) {
      Force(nullptr, Shadow{Shadow::Kind::kSource, source.raw()});
    } else if (aten_.graph().value(input).type.kind == Type::Kind::kTensor) {  // arrays are fixed (array_nodes.h)
      guards_.Tensor(source, read, Here());
    }
  }
}

// Returns the tensor whose element the number is (x.item()), or an invalid value if it comes from elsewhere.
static ValueId TensorOfElement(const Graph& graph, Shadow shadow) {
  if (shadow.kind != Shadow::Kind::kValue) return ValueId();
  const NodeId def = graph.value(ValueId(shadow.id)).def;
  if (!def.valid() || !graph.node(def).op || graph.node(def).op->operator_name().name != "aten::item") return ValueId();
  const Arg& arg = graph.node(def).args[0];
  return arg.kind == Arg::Kind::kValue ? arg.value : ValueId();
}

void Recorder::Force(PyObject* object, Shadow shadow) {
  // Asked of nearly every object of a recording.
  if (shadow.kind == Shadow::Kind::kNone) [[likely]]
    return;
  if (shadow.kind == Shadow::Kind::kSource) {
    const SourceId addressed = AddressedBy(shadow);
    addressed.valid() ? FixAddress(addressed) : guards_.Value(SourceId(shadow.id), Here());
  }
  if (shadow.kind != Shadow::Kind::kValue) return;
  // As a branch on x.any() is, one on x.any().item() may be a guard.
  const bool is_bool = object != nullptr && PyBool_Check(object);
  if (const ValueId tensor = TensorOfElement(aten_.graph(), shadow); is_bool && tensor.valid()) {
    for (const Decided& decided : decisions_) {
      if (decided.value == tensor) return;
    }
    if (std::vector<bool> cone; DecisionCone(tensor, &cone)) {
      decisions_.push_back({tensor, object == Py_True});
      return;
    }
  }
  TensorRead read;
  read.sizes = true;
  FixValue(ValueId(shadow.id), read, &sizes_read_);
}

// One shadow for one number of the entry.
Shadow Recorder::Canonical(Shadow shadow) const {
  const auto it = shadow.kind == Shadow::Kind::kValue ? number_inputs_.find(shadow.id) : number_inputs_.end();
  return it == number_inputs_.end() ? shadow : Shadow{Shadow::Kind::kSource, it->second.raw()};
}

Shadow Recorder::AddNumber(ScalarOp op, std::initializer_list<std::pair<PyObject*, Shadow>> operands) {
  const bool of_ints = RowOf(op).result == Type::Kind::kInt && RowOf(op).operands == Type::Kind::kInt;
  IntTerm terms[2];
  std::vector<Arg> args;
  for (const auto& [object, shadow] : operands) {
    Number number;
    if (object != nullptr && !NumberOf(object, &number) && shadow.kind == Shadow::Kind::kNone) {
      // An int of more bits than graphs have.
      for (const auto& [other, of_other] : operands) Force(other, of_other);
      return Shadow();
    }
    if (of_ints) {
      FixType(Canonical(shadow));  // `n - n` keeps nothing of n, and is 0.0 of a float
      terms[args.size()] = {Canonical(shadow), number.i};
      args.emplace_back();
    } else {
      args.push_back(shadow.kind == Shadow::Kind::kNone ? Arg::Const(ValueOf(number)) : Arg::Of(NumberValue(shadow)));
    }
  }
  if (of_ints) {
    const std::optional<IntTerm> term = IntOp(op, terms[0], terms[1]);
    return term ? term->shadow : Shadow();  // a constant now is one for all values
  }
  const ValueId value = aten_.AddScalarNode(op, std::move(args), Type::Scalar(RowOf(op).result));
  return Shadow{Shadow::Kind::kValue, value.raw()};
}

// A number of which the type is known and the value has not been read. Sizes and lengths are ints.
void Recorder::FixType(Shadow shadow) {
  if (shadow.kind != Shadow::Kind::kSource) return;
  const SourceId source(shadow.id);
  const Accessor accessor = guards_.accessor(source);
  const bool is_int = accessor == Accessor::kSize || accessor == Accessor::kLength || accessor == Accessor::kAddress;
  if (!is_int) guards_.Type(source, Here());
}

// ---- arithmetic -----------------------------------------------------------------------------------------------------

// The op that gives what Python gives for these operands; kNone: the operands are to be fixed. Where Python raises for
// some operands, that these are others is guarded.
ScalarOp Recorder::NumberOp(const Event& e) {
  Number a, b;
  if (!NumberOf(e.in[0], &a)) return ScalarOp::kNone;
  if (e.op == Op::kUnary) {
    if (e.arg == 1) return a.is_float ? ScalarOp::kFloatNeg : ScalarOp::kIntNeg;
    return e.arg == 3 && !a.is_float ? ScalarOp::kIntInvert : ScalarOp::kNone;
  }
  if (!NumberOf(e.in[1], &b)) return ScalarOp::kNone;
  const bool ints = !a.is_float && !b.is_float;
  const auto guarded = [&](int side, int py_compare_op, ScalarOp op) {
    static PyObject* const zero = Must(PyLong_FromLong(0)).Release();
    return DecideNumbers(e.in[side], e.shadows[side], zero, Shadow(), py_compare_op, true) ? op : ScalarOp::kNone;
  };
  switch (e.arg % kInplaceFrom) {
    case kNbAdd:
      return ints ? ScalarOp::kIntAdd : ScalarOp::kFloatAdd;
    case kNbSubtract:
      return ints ? ScalarOp::kIntSub : ScalarOp::kFloatSub;
    case kNbMultiply:
      return ints ? ScalarOp::kIntMul : ScalarOp::kFloatMul;
    case kNbTrueDivide:
      return guarded(1, Py_NE, ints ? ScalarOp::kIntTrueDiv : ScalarOp::kFloatDiv);
    case kNbFloorDivide:
      return guarded(1, Py_NE, ints ? ScalarOp::kIntFloorDiv : ScalarOp::kFloatFloorDiv);
    case kNbRemainder:
      return guarded(1, Py_NE, ints ? ScalarOp::kIntMod : ScalarOp::kFloatMod);
    case kNbPower:
      return ints ? guarded(1, Py_GE, ScalarOp::kIntPow) : guarded(0, Py_GT, ScalarOp::kFloatPow);
    default:
      break;
  }
  if (!ints) return ScalarOp::kNone;
  switch (e.arg % kInplaceFrom) {
    case kNbAnd:
      return ScalarOp::kIntAnd;
    case kNbOr:
      return ScalarOp::kIntOr;
    case kNbXor:
      return ScalarOp::kIntXor;
    case kNbLshift:
      return guarded(1, Py_GE, ScalarOp::kIntLshift);
    case kNbRshift:
      return guarded(1, Py_GE, ScalarOp::kIntRshift);
    default:
      return ScalarOp::kNone;
  }
}

// Arithmetic on numbers that are not fixed yet stays a computation of the graph: a counter does not fix its value.
bool Recorder::ScalarNode(FrameNote& note, const Event& e) {
  bool open = false;
  for (int i = 0; i < e.n; ++i) {
    if (!IsNumber(e.in[i])) return false;
    if (e.shadows[i].kind == Shadow::Kind::kNone) continue;
    // Sizes are of no use to a backend whose graphs have fixed ones.
    if (!sizes_open() && e.shadows[i].kind == Shadow::Kind::kSource &&
        guards_.seen(SourceId(e.shadows[i].id)) == nullptr) {
      return false;
    }
    open = true;
  }
  const ScalarOp op = open ? NumberOp(e) : ScalarOp::kNone;
  if (op == ScalarOp::kNone) return false;
  note.expect.kind = Expect::Kind::kShadow;
  note.expect.shadow = e.n == 1 ? AddNumber(op, {{e.in[0], e.shadows[0]}})
                                : AddNumber(op, {{e.in[0], e.shadows[0]}, {e.in[1], e.shadows[1]}});
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

void Recorder::BinaryNumbers(FrameNote& note, const Event& e) {
  PyObject* left = e.in[0];
  PyObject* right = e.in[1];
  if (IsTensor(left) || IsTensor(right)) {
    Call call{*frames_.back(), note, nullptr, {left, right}, {e.shadows[0], e.shadows[1]}, {}};
    return TorchCall(note, &call, "");
  }
  if (IsNumber(left) && IsNumber(right)) {
    if (ScalarNode(note, e)) return;
    return ForceAll(e);
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
  if (e.arg % kInplaceFrom == kNbAdd && JoinRows(note, left, right, in_place)) return;
  if (e.arg == kInplaceFrom + kNbAdd && AppendOutside(left, right, nullptr, Shadow())) return;  // gives `left`
  for (int side = 0; side < 2; ++side) {
    PyObject* const operand = e.in[side];
    const Known* const known = PySet_CheckExact(operand) ? Find(operand) : nullptr;
    const bool is_own_set = known != nullptr && known->state == Known::State::kFresh;
    // The elements of the result do not depend on the order of the operands, and its own order is read where it matters.
    is_own_set ? FixKeys(operand) : ForceDeep(operand, e.shadows[side], true);
  }
  if (PyUnicode_Check(left) && e.arg % kInplaceFrom == kNbRemainder) {
    ReadPrinted(right, AsksForRepr(left) ? Printed::kRepr : Printed::kStr);
  }
  if (IsAnySet(left) || PyDict_Check(left) || PyDictViewSet_Check(left) || PyDictViewSet_Check(right)) {
    ReadElements({left, right});
  }
  ReadLayout(left);
  ReadLayout(right);
  if (in_place && (PyList_Check(left) || PyDict_Check(left) || IsAnySet(left))) {
    Known* known = Find(left);
    if (known == nullptr || known->state == Known::State::kSource) {
      throw Break{Reason::unknown_mutation, "an in-place operator on a container that existed before"};
    }
    MarkMutated(left);
  }
}

// ---- decisions ------------------------------------------------------------------------------------------------------

// Expresses a number in terms of entry values. Returns false if a part of it cannot be expressed.
bool Recorder::Express(PyObject* object, Shadow shadow, NumberExpr* expr, std::vector<SourceId>* sources) {
  switch (shadow.kind) {
    case Shadow::Kind::kNone: {
      Number number;
      return NumberOf(object, &number) && expr->PushConstant(number);
    }
    case Shadow::Kind::kSource: {
      const SourceId source{shadow.id};
      PyObject* seen = guards_.seen(source);
      if (seen != nullptr && !PyLong_CheckExact(seen) && !PyFloat_CheckExact(seen)) return false;
      if (seen != nullptr && !IsDynamic(source)) {
        Number number;
        guards_.Value(source, Here());
        return NumberOf(seen, &number) && expr->PushConstant(number);
      }
      const auto it = std::find(sources->begin(), sources->end(), source);
      const auto input = static_cast<uint32_t>(it - sources->begin());
      if (it == sources->end()) sources->push_back(source);
      return sources->size() <= NumbersRelation::kMostInputs && expr->PushInput(input);
    }
    case Shadow::Kind::kValue:
      return ExpressValue(ValueId(shadow.id), expr, sources);
    default:
      return false;
  }
}

bool Recorder::ExpressValue(ValueId value, NumberExpr* expr, std::vector<SourceId>* sources) {
  const Shadow shadow = Canonical(Shadow{Shadow::Kind::kValue, value.raw()});
  if (shadow.kind == Shadow::Kind::kSource) return Express(nullptr, shadow, expr, sources);
  const NodeId def = aten_.graph().value(value).def;
  if (!def.valid() || !aten_.graph().node(def).is_scalar()) return false;
  const Node& node = aten_.graph().node(def);
  if (RowOf(node.scalar_op).operands == Type::Kind::kNone) return false;
  for (const Arg& arg : node.args) {
    if (arg.kind == Arg::Kind::kValue) {
      if (!ExpressValue(arg.value, expr, sources)) return false;
      continue;
    }
    const bool is_float = arg.constant.isDouble();
    if (!is_float && !arg.constant.isInt()) return false;
    if (!expr->PushConstant(is_float ? Number::Float(arg.constant.toDouble()) : Number::Int(arg.constant.toInt()))) {
      return false;
    }
  }
  return expr->Push(node.scalar_op);
}

// The program branches on the comparison of `a` and `b`: only the outcome is fixed. Returns false, with nothing
// guarded, if that cannot be expressed in numbers of the entry. With `only_if_true`, also returns false if the outcome
// is another.
bool Recorder::DecideNumbers(PyObject* a, Shadow sa, PyObject* b, Shadow sb, int py_compare_op, bool only_if_true) {
  const int outcome = PyObject_RichCompareBool(a, b, py_compare_op);
  if (outcome < 0 || (only_if_true && outcome == 0)) {
    PyErr_Clear();
    return false;
  }
  if (sa.kind == Shadow::Kind::kNone && sb.kind == Shadow::Kind::kNone) return true;
  if (const SourceId x = AddressedBy(sa), y = AddressedBy(sb); x.valid() && y.valid()) {
    if (x != y && (py_compare_op == Py_EQ || py_compare_op == Py_NE)) {
      guards_.SameObject(x, y, outcome == (py_compare_op == Py_EQ), Here());
      return true;
    }
  }
  // A number against a constant.
  static constexpr int kMirror[] = {Py_GT, Py_GE, Py_EQ, Py_NE, Py_LT, Py_LE};
  for (int side = 0; side < 2; ++side) {
    const Shadow open = side == 0 ? sa : sb, other = side == 0 ? sb : sa;
    if (open.kind != Shadow::Kind::kSource || LeavesOpen(side == 0 ? b : a, other)) continue;
    if (other.kind != Shadow::Kind::kNone) {
      if (!LeavesOpen(side == 0 ? a : b, open)) continue;
      Force(side == 0 ? b : a, other);
    }
    if (PyLong_CheckExact(a) && PyLong_CheckExact(b) && outcome == (py_compare_op == Py_EQ) &&
        (py_compare_op == Py_EQ || py_compare_op == Py_NE)) {
      Force(side == 0 ? a : b, open);  // there is one such number
      return true;
    }
    return guards_.Relation(SourceId(open.id), side == 0 ? py_compare_op : kMirror[py_compare_op], side == 0 ? b : a,
                            outcome == 1, Here());
  }
  NumberExpr left, right;
  std::vector<SourceId> sources;
  if (!Express(a, sa, &left, &sources) || !Express(b, sb, &right, &sources)) {
    // As x.max() <= n does, x.max().item() <= n becomes a guard, where the op and Python compare alike.
    for (int side = 0; side < 2; ++side) {
      const ValueId tensor = TensorOfElement(aten_.graph(), side == 0 ? sa : sb);
      PyObject* const other = side == 0 ? b : a;
      const Shadow shadow = side == 0 ? sb : sa;
      Number number;
      if (!tensor.valid() || !PyLong_CheckExact(other) || !NumberOf(other, &number)) continue;
      Type type = aten_.graph().value(tensor).type;
      std::vector<bool> cone;
      if (type.dtype != c10::ScalarType::Long || !DecisionCone(tensor, &cone)) continue;
      if (shadow.kind == Shadow::Kind::kValue && !DecisionCone(ValueId(shadow.id), &cone)) continue;
      static constexpr const char* kOps[] = {"aten::lt", "aten::le", "aten::eq", "aten::ne", "aten::gt", "aten::ge"};
      const char* const op = kOps[side == 0 ? py_compare_op : kMirror[py_compare_op]];
      Arg operand = shadow.kind == Shadow::Kind::kNone ? Arg::Const(ValueOf(number)) : Arg::Of(NumberValue(shadow));
      type.dtype = c10::ScalarType::Bool;
      const ValueId outcome_now = aten_.AddOpNode(op, "Scalar", {Arg::Of(tensor), std::move(operand)}, type);
      decisions_.push_back({outcome_now, outcome == 1});
      return true;
    }
    return false;
  }
  if (left == right && !left.has_floats() && PyLong_CheckExact(a)) {
    for (const SourceId source : sources) FixType(Shadow{Shadow::Kind::kSource, source.raw()});  // NaN is not itself
    return true;
  }
  return sources.empty() ||
         guards_.Relation(std::move(left), py_compare_op, std::move(right), outcome == 1, sources, Here());
}

void Recorder::CompareValues(FrameNote& note, PyObject* a, Shadow sa, PyObject* b, Shadow sb, int py_compare_op) {
  if (IsTensor(a) || IsTensor(b)) {
    Call call{*frames_.back(), note, nullptr, {a, b}, {sa, sb}, {}};
    return TorchCall(note, &call, "");
  }
  if (IsNumber(a) && IsNumber(b) && DecideNumbers(a, sa, b, sb, py_compare_op, false)) return;
  const bool equality = py_compare_op == Py_EQ || py_compare_op == Py_NE;
  if (equality && IsPlainTuple(a) && IsPlainTuple(b) && EqualTuples(a, b)) return;
  ForceDeep(a, sa, false);
  ForceDeep(b, sb, false);
  ReadEqual(a, b);
}

// x.shape == y.shape: numbers in pairs, up to the first that differ.
bool Recorder::EqualTuples(PyObject* a, PyObject* b) {
  for (PyObject* tuple : {a, b}) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
      Number unused;
      if (!NumberOf(PyTuple_GET_ITEM(tuple, i), &unused)) return false;
    }
    Touch(tuple);
    AdoptElements(tuple);
  }
  if (PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) return true;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); ++i) {
    PyObject *x = PyTuple_GET_ITEM(a, i), *y = PyTuple_GET_ITEM(b, i);
    const Shadow sx = ElementShadow(a, i), sy = ElementShadow(b, i);
    // Two floats that are not equal by a relation may be one NaN, which a tuple takes for equal.
    const bool are_floats = PyFloat_CheckExact(x) && PyFloat_CheckExact(y);
    if (are_floats) ReadEqualElements(x, y);
    if (are_floats || !DecideNumbers(x, sx, y, sy, Py_EQ, false)) {
      Force(x, sx);
      Force(y, sy);
    }
    if (!Must(PyObject_RichCompareBool(x, y, Py_EQ))) break;
  }
  return true;
}

}  // namespace frametap
