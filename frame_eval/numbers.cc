// Numbers that are not fixed: sizes, arguments, what is computed from them. They are graph values; what decides on them
// is guarded as a relation; an op that takes them takes the graph value.
//   N1  The program always sees exact Python numbers, and ops run on these. Which number an op was given is concluded
//       afterwards, from the node that it left (LinkNumbers), and only where the binding hands it on as it is.
//   N2  A number that is used in any other way is fixed (Force).
//   N3  Nothing is left open that would not change: numbers that modules and globals hold are fixed, until they have
//       been seen to change (IsDynamic).
// Not here: rows of numbers (rows.cc), torch.tensor and tolist (numbers_in_tensors.cc).
#include <algorithm>
#include <array>
#include <cstring>

#include "frame_eval/known_objects.h"
#include "frame_eval/numbers.h"
#include "frame_eval/recorder.h"
#include "frame_eval/rows.h"
#include "guards/kinds/relation.h"
#include "guards/must.h"
#include "guards/tensor_door.h"
#include "ir/ops/gives_argument.h"
#include "ir/ops/op_facts.h"
#include "ir/ops/scalar.h"
#include "ir/ops/size_rules.h"

namespace frametap {
namespace {

// Numbers of BINARY_OP (opcode.h would bring its macros): the in-place ones follow 13 later.
constexpr int kNbAdd = 0, kNbAnd = 1, kNbFloorDivide = 2, kNbLshift = 3, kNbMultiply = 5, kNbRemainder = 6, kNbOr = 7,
              kNbPower = 8, kNbRshift = 9, kNbSubtract = 10, kNbTrueDivide = 11, kNbXor = 12, kInplaceFrom = 13;

bool IsSame(const c10::IValue& constant, PyObject* object) {
  Number number;
  if (!NumberOf(object, &number)) return false;
  if (number.is_float) {
    const double value = constant.isDouble() ? constant.toDouble() : 0;
    return constant.isDouble() && std::memcmp(&number.f, &value, sizeof value) == 0;
  }
  return constant.isInt() && constant.toInt() == number.i;
}

// "add" of aten::add_ and aten::add.
std::string_view BaseName(const c10::OperatorHandle& op) {
  std::string_view name = op.operator_name().name;
  name.remove_prefix(name.find("::") + 2);
  if (!name.empty() && name.back() == '_') name.remove_suffix(1);
  return name;
}

// Whether a parameter takes numbers that may differ from call to call: sizes, factors. (Dimensions may not: the rank of a
// result, and what backends do, follow from them.)
bool TakesNumber(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::OptionalType:
      return TakesNumber(*type.castRaw<c10::OptionalType>()->getElementType());
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::NumberType:
    case c10::TypeKind::TensorType:
      return true;
    default:
      return false;
  }
}

bool IsSizes(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::OptionalType) return IsSizes(*type.castRaw<c10::OptionalType>()->getElementType());
  return type.kind() == c10::TypeKind::ListType &&
         type.castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::SymIntType;
}

size_t LengthOf(const Arg& list) {
  if (list.kind == Arg::Kind::kList) return list.items.size();
  return list.kind == Arg::Kind::kConst && list.constant.isIntList() ? list.constant.toIntVector().size() : 0;
}

// Makes element `item` of a list of ints a value, if it is `object` now.
bool LinkItem(Arg* list, size_t item, PyObject* object, ValueId value) {
  if (item >= LengthOf(*list)) return false;
  if (list->kind == Arg::Kind::kConst) {
    std::vector<Arg> items;
    for (const int64_t size : list->constant.toIntVector()) items.push_back(Arg::Const(c10::IValue(size)));
    *list = Arg::List(std::move(items));
  }
  Arg& arg = list->items[item];
  if (arg.kind != Arg::Kind::kConst || !IsSame(arg.constant, object)) return false;
  arg = Arg::Of(value);
  return true;
}

// Whether the key has more slices than were made.
bool LeavesOutSlices(PyObject* key, const std::vector<Node*>& made) {
  Py_ssize_t left_out = 0;
  const auto count = [&](PyObject* item) {
    Py_ssize_t start = 0, stop = 0, step = 0;
    if (!PySlice_Check(item)) return;
    if (PySlice_Unpack(item, &start, &stop, &step) < 0) PyErr_Clear();
    left_out += start != 0 || stop != PY_SSIZE_T_MAX || step != 1;  // x[:] is none for any size
  };
  if (PyTuple_Check(key)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); ++i) count(PyTuple_GET_ITEM(key, i));
  } else {
    count(key);
  }
  for (const Node* node : made) left_out -= BaseName(*node->op) == "slice";
  return left_out > 0;
}

bool IsConst(const Arg& arg, int64_t value) {
  return arg.kind == Arg::Kind::kConst && arg.constant.isInt() && arg.constant.toInt() == value;
}

// What waits of an index: of the key itself or an item of it, and of which part of a slice (-1: it is none).
OpenNumber* OpenIndex(FrameNote& note, size_t item, int part) {
  for (OpenNumber& number : note.open) {
    const size_t of = number.item < 0 ? 0 : static_cast<size_t>(number.item);
    if (number.position == 1 && of == item && number.part == part) return &number;
  }
  return nullptr;
}

}  // namespace

// ---- which numbers are left open ------------------------------------------------------------------------------------

// N3. Of where a number comes from.
bool Recorder::IsDynamic(SourceId source) {
  if (guards_.IsFixed(source)) return false;
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
  // What the running function assigns to is a counter, a moving average ….
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

// What is known of a number that is put into a row: nothing is fixed of one that is left open. `*open` is set then.
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
  if (const Node* data = aten_.SizeCone(value, &inputs, seen); data != nullptr) {
    seen->clear();
    const bool is_number = data->op && FactsOf(*data->op).scalar_from_data;
    throw Break{is_number ? Reason::value_of_tensor : Reason::data_dependent_size,
                is_number ? data->op->operator_name().name : ""};
  }
  for (const ValueId input : inputs) {
    const SourceId source = aten_.SourceOfInput(input);
    if (!source.valid()) continue;  // a constant
    if (number_inputs_.contains(input.raw())) {
      guards_.Value(source, Here());
    } else {
      guards_.Tensor(source, read, Here());
    }
  }
}

void Recorder::Force(PyObject* object, Shadow shadow) {
  if (shadow.kind == Shadow::Kind::kSource) guards_.Value(SourceId(shadow.id), Here());
  if (shadow.kind != Shadow::Kind::kValue) return;
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

// A number whose value nobody has read, but of which type it is. Sizes and lengths are ints.
void Recorder::FixType(Shadow shadow) {
  if (shadow.kind != Shadow::Kind::kSource) return;
  const SourceId source(shadow.id);
  const Accessor accessor = guards_.accessor(source);
  if (accessor != Accessor::kSize && accessor != Accessor::kLength) guards_.Type(source, Here());
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
  if (e.arg % kInplaceFrom == kNbAdd && JoinRows(note, left, right, in_place)) return;
  ForceDeep(left, e.shadows[0], true);
  ForceDeep(right, e.shadows[1], true);
  if (PyUnicode_Check(left) && e.arg % kInplaceFrom == kNbRemainder) {
    ReadPrinted(right, AsksForRepr(left) ? Printed::kRepr : Printed::kStr);
  }
  if (PyAnySet_Check(left) || PyDict_Check(left)) ReadElements({left, right});
  ReadLayout(left);
  ReadLayout(right);
  if (in_place && (PyList_Check(left) || PyDict_Check(left) || PyAnySet_Check(left))) {
    Known* known = Find(left);
    if (known == nullptr || known->state == Known::State::kSource) {
      throw Break{Reason::unknown_mutation, "an in-place operator on a container that existed before"};
    }
    MarkMutated(left);
  }
}

// ---- decisions ------------------------------------------------------------------------------------------------------

// Of a number in terms of what is read at the entry. False: not all of it is.
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

// The program goes on by how `a` compares with `b`: only the outcome is fixed. False, with nothing guarded: that cannot
// be told in numbers of the entry, or, with `only_if_true`, the outcome is another.
bool Recorder::DecideNumbers(PyObject* a, Shadow sa, PyObject* b, Shadow sb, int py_compare_op, bool only_if_true) {
  const int outcome = PyObject_RichCompareBool(a, b, py_compare_op);
  if (outcome < 0 || (only_if_true && outcome == 0)) {
    PyErr_Clear();
    return false;
  }
  if (sa.kind == Shadow::Kind::kNone && sb.kind == Shadow::Kind::kNone) return true;
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
  if (!Express(a, sa, &left, &sources) || !Express(b, sb, &right, &sources)) return false;
  return sources.empty() || (left == right && !left.has_floats() && PyLong_CheckExact(a)) ||
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
    if (PyObject_RichCompareBool(x, y, Py_EQ) != 1) break;
  }
  return true;
}

// ---- sizes of tensors -----------------------------------------------------------------------------------------------

Shadow Recorder::SizeOf(PyObject* object, int64_t dim) {
  AtenRecorder::KnownTensor* known = aten_.Find(TensorOf(object));
  if (known == nullptr) throw Break{Reason::tensor_from_nowhere, ""};
  if (known->source.valid()) {
    const SourceId size = guards_.Child(known->source, Accessor::kSize, dim, nullptr, nullptr);
    return Shadow{Shadow::Kind::kSource, size.raw()};
  }
  return SizeOf(known->value, dim);
}

Shadow Recorder::SizeOf(ValueId value, int64_t dim) {
  FixRank(value);
  if (std::optional<Shadow> traced = TraceSize(value, dim, 0)) return *traced;
  const ValueId size = aten_.AddScalarNode(ScalarOp::kSize, {Arg::Of(value), Arg::Const(c10::IValue(dim))},
                                           Type::Scalar(Type::Kind::kInt));
  return traced_sizes_[{value.raw(), dim}] = Shadow{Shadow::Kind::kValue, size.raw()};
}

// How many dimensions it has is what the guards say, from now on.
void Recorder::FixRank(ValueId value) {
  if (!aten_.RankFollowsFromSizes(value)) return;
  std::vector<ValueId> work{value};
  while (!work.empty()) {
    const ValueId id = work.back();
    work.pop_back();
    if (!aten_.RankFollowsFromSizes(id)) continue;
    aten_.SettleRank(id);
    const Node node = aten_.graph().node(aten_.graph().value(id).def);  // a copy: asking for sizes adds nodes
    if (node.op && FactsOf(*node.op).size_dependent_rank && !DecideSqueeze(node)) {
      TensorRead read;
      read.sizes = true;
      FixValue(id, read, &sizes_read_);
    }
    ForEachUse(node.args, [&](ValueId use) { work.push_back(use); });
  }
}

// Of each dimension that would be left out if its size was one: whether it is. False: it is no such op.
bool Recorder::DecideSqueeze(const Node& node) {
  const std::string& name = node.op->operator_name().name;  // squeeze_ changes the sizes of what it was given
  if ((name != "aten::squeeze" && name != "aten::squeeze_copy") || node.args[0].kind != Arg::Kind::kValue) return false;
  const ValueId tensor = node.args[0].value;
  const Sizes sizes = aten_.graph().value(tensor).type.sizes;
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
    const Shadow shadow = SizeOf(tensor, dim);
    const Ref<> size = Must(PyLong_FromLongLong(sizes[static_cast<size_t>(dim)]));
    if (!DecideNumbers(size.get(), shadow, one, Shadow(), Py_EQ, false)) Force(size.get(), shadow);
  }
  return true;
}

// x.numel()
Shadow Recorder::CountOfElements(PyObject* tensor) {
  const int64_t rank = TensorOf(tensor).dim();
  ReadRank(tensor);
  Shadow product;
  int64_t known = 1;  // of the dimensions whose sizes are constants
  for (int64_t dim = 0; dim < rank; ++dim) {
    const Shadow size = SizeOf(tensor, dim);
    if (size.kind == Shadow::Kind::kNone) {
      known *= TensorOf(tensor).size(dim);
    } else if (product.kind == Shadow::Kind::kNone) {
      product = size;
    } else {
      product = AddNumber(ScalarOp::kIntMul, {{nullptr, product}, {nullptr, size}});
    }
  }
  if (product.kind == Shadow::Kind::kNone || known == 1) return product;
  const Ref<> factor = Must(PyLong_FromLongLong(known));
  return AddNumber(ScalarOp::kIntMul, {{nullptr, product}, {factor.get(), Shadow()}});
}

// From where a size comes, by the rules of the ops between. None: the graph has to ask the tensor.
std::optional<Shadow> Recorder::TraceSize(ValueId value, int64_t dim, int depth) {
  constexpr int kDeepest = 300;
  if (auto it = traced_sizes_.find({value.raw(), dim}); it != traced_sizes_.end()) return UnlessFixed(it->second);
  const Graph& graph = aten_.graph();
  std::optional<Shadow> traced;
  if (!graph.value(value).def.valid()) {
    if (const SourceId source = aten_.SourceOfInput(value); source.valid()) {
      if (guards_.accessor(source) == Accessor::kModuleAttr) {  // a parameter's are what the module is
        TensorRead read;
        if (dim < 64) read.dims = uint64_t{1} << dim;
        read.sizes = dim >= 64;
        guards_.Tensor(source, read, Here());
        return traced_sizes_[{value.raw(), dim}] = Shadow();
      }
      const SourceId size = guards_.Child(source, Accessor::kSize, dim, nullptr, nullptr);
      traced = Shadow{Shadow::Kind::kSource, size.raw()};
    } else {
      traced = Shadow();  // a constant of the graph
    }
  } else if (depth < kDeepest) {
    const auto& sizes = RuledSizesOf(value);
    const auto at = static_cast<size_t>(dim);
    if (dim >= 0 && at < sizes.size() && sizes[at]) traced = ShadowOf(*sizes[at], depth, nullptr);
  }
  if (traced) traced_sizes_[{value.raw(), dim}] = *traced;
  return traced ? std::optional(UnlessFixed(*traced)) : std::nullopt;
}

// What the rules say of all sizes of a value, once: whoever asks for one asks for the others. Nodes of the operation at work
// may still be given the numbers that they were called with (LinkNumbers), so of these nothing is kept.
const std::vector<std::optional<SizeExpr>>& Recorder::RuledSizesOf(ValueId value) {
  const auto [it, is_new] = ruled_sizes_.try_emplace(value.raw());
  RuledSizes& sizes = it->second;
  constexpr size_t kNotKept = ~size_t{0};
  const bool is_at_work = aten_.graph().value(value).def.raw() >= NoteOf(*frames_.back()).nodes_before;
  if (is_new || is_at_work || sizes.naturals != not_negative_.size()) {
    sizes = {SizesOf(aten_.graph(), value, not_negative_), is_at_work ? kNotKept : not_negative_.size()};
  }
  return sizes.of_dims;
}

// A size that the guards fix is a constant.
Shadow Recorder::UnlessFixed(Shadow shadow) const {
  return shadow.kind == Shadow::Kind::kSource && guards_.IsFixed(SourceId(shadow.id)) ? Shadow() : shadow;
}

// `*number`, if asked for and the result has no shadow: the constant.
std::optional<Shadow> Recorder::ShadowOf(const SizeExpr& expr, int depth, int64_t* number) {
  const auto constant = [&](int64_t value) {
    if (number != nullptr) *number = value;
    return Shadow();
  };
  switch (expr.kind) {
    case SizeExpr::Kind::kConst:
      return constant(expr.number);
    case SizeExpr::Kind::kSizeOf: {
      const std::optional<Shadow> size = TraceSize(expr.value, expr.number, depth + 1);
      const Sizes& sizes = aten_.graph().value(expr.value).type.sizes;
      if (size && size->kind == Shadow::Kind::kNone) constant(sizes[static_cast<size_t>(expr.number)]);
      return size;
    }
    case SizeExpr::Kind::kValue:
      return Canonical(Shadow{Shadow::Kind::kValue, expr.value.raw()});
    case SizeExpr::Kind::kOp:
      break;
  }
  IntTerm operands[2];
  for (size_t i = 0; i < expr.operands.size(); ++i) {
    const std::optional<Shadow> operand = ShadowOf(expr.operands[i], depth, &operands[i].constant);
    if (!operand) return std::nullopt;
    operands[i].shadow = *operand;
  }
  const std::optional<IntTerm> result = IntOp(expr.op, operands[0], operands[1]);
  if (!result) return std::nullopt;
  return result->is_constant() ? constant(result->constant) : result->shadow;
}

bool Recorder::IsNotNegative(const IntTerm& term) const {
  if (term.is_constant()) return term.constant >= 0;
  if (term.shadow.kind == Shadow::Kind::kValue) return not_negative_.contains(ValueId(term.shadow.id));
  const Accessor accessor = guards_.accessor(SourceId(term.shadow.id));
  return accessor == Accessor::kSize || accessor == Accessor::kLength;
}

// The operands of a number that `op` has made, if it has; constants have no shadow.
std::optional<std::pair<Recorder::IntTerm, Recorder::IntTerm>> Recorder::MadeBy(ScalarOp op,
                                                                                const IntTerm& term) const {
  if (term.shadow.kind != Shadow::Kind::kValue) return std::nullopt;
  const NodeId def = aten_.graph().value(ValueId(term.shadow.id)).def;
  if (!def.valid() || aten_.graph().node(def).scalar_op != op) return std::nullopt;
  IntTerm terms[2];
  for (size_t i = 0; i < 2; ++i) {
    const Arg& arg = aten_.graph().node(def).args[i];
    if (arg.kind == Arg::Kind::kConst) {
      terms[i].constant = arg.constant.toInt();
    } else {
      terms[i].shadow = Canonical(Shadow{Shadow::Kind::kValue, arg.value.raw()});
    }
  }
  return std::pair(terms[0], terms[1]);
}

// A simpler expression of the same value, whatever the values in it: sizes pass through many ops, and most of what their
// rules say comes down to one of them. None: there is none.
std::optional<Recorder::IntTerm> Recorder::Simpler(ScalarOp op, const IntTerm& a, const IntTerm& b) const {
  const auto is = [](const IntTerm& term, int64_t constant) { return term.is_constant() && term.constant == constant; };
  switch (op) {
    case ScalarOp::kIntAdd:
      if (is(a, 0)) return b;
      if (is(b, 0)) return a;
      if (const auto difference = MadeBy(ScalarOp::kIntSub, a); difference && difference->second == b) {
        return difference->first;  // a - b + b
      }
      break;
    case ScalarOp::kIntSub:
      if (is(b, 0)) return a;
      if (a == b) return IntTerm::Of(0);
      if (const auto sum = MadeBy(ScalarOp::kIntAdd, a)) {
        if (sum->second == b) return sum->first;  // a + b - b
        if (sum->first == b) return sum->second;
      }
      break;
    case ScalarOp::kIntMul:
      if (is(a, 1)) return b;
      if (is(b, 1)) return a;
      if (is(a, 0) || is(b, 0)) return IntTerm::Of(0);
      break;
    case ScalarOp::kIntFloorDiv:
      if (is(b, 1)) return a;
      if (b.is_constant() && b.constant != 0) {
        if (const auto product = MadeBy(ScalarOp::kIntMul, a); product && product->second == b) return product->first;
      }
      break;
    case ScalarOp::kIntMod:
      if (is(b, 1)) return IntTerm::Of(0);
      break;
    case ScalarOp::kIntMax:
    case ScalarOp::kIntMin:
      if (a == b) return a;
      for (const auto& [x, y] : {std::pair(a, b), std::pair(b, a)}) {
        if (x.is_constant() && x.constant <= 0 && IsNotNegative(y)) {
          if (op == ScalarOp::kIntMax) return y;
          if (x.constant == 0) return x;
        }
        const auto nested = MadeBy(op, y);
        if (nested && (nested->first == x || nested->second == x)) return y;  // max(x, max(x, z))
      }
      break;
    case ScalarOp::kIntBroadcast:
      if (a == b || is(b, 1)) return a;
      if (b.is_constant()) return b;  // the other is as large, or 1
      for (const auto& [x, y] : {std::pair(a, b), std::pair(b, a)}) {
        const auto nested = MadeBy(op, y);
        if (nested && (nested->first == x || nested->second == x)) return y;
      }
      break;
    default:
      break;
  }
  return std::nullopt;
}

// Constants are brought together, so that what layers do to a size one after the other is one step: (n - 2) // 2 + 1 is
// n // 2, and that again by two is n // 4. None: there is nothing to bring together.
std::optional<Recorder::IntTerm> Recorder::Gathered(ScalarOp op, const IntTerm& a, const IntTerm& b) {
  constexpr int64_t kLarge = int64_t{1} << 31;
  const auto is_small = [](const IntTerm& term) {
    return term.is_constant() && term.constant > -kLarge && term.constant < kLarge;
  };
  if (!is_small(b)) return std::nullopt;
  const int64_t c = b.constant;
  if (op == ScalarOp::kIntSub) return IntOp(ScalarOp::kIntAdd, a, IntTerm::Of(-c));
  const auto sum = MadeBy(ScalarOp::kIntAdd, a), product = MadeBy(ScalarOp::kIntMul, a),
             quotient = MadeBy(ScalarOp::kIntFloorDiv, a);
  const auto then = [&](std::optional<IntTerm> first, ScalarOp next, int64_t by) {
    return first ? IntOp(next, *first, IntTerm::Of(by)) : std::nullopt;
  };
  switch (op) {
    case ScalarOp::kIntAdd:
      if (sum && is_small(sum->second)) return IntOp(op, sum->first, IntTerm::Of(sum->second.constant + c));
      if (quotient && is_small(quotient->second)) {
        const int64_t by = quotient->second.constant;
        return then(IntOp(op, quotient->first, IntTerm::Of(c * by)), ScalarOp::kIntFloorDiv, by);
      }
      break;
    case ScalarOp::kIntMul:
      if (product && is_small(product->second))
        return IntOp(op, product->first, IntTerm::Of(product->second.constant * c));
      if (sum && is_small(sum->second)) {
        return then(IntOp(op, sum->first, b), ScalarOp::kIntAdd, sum->second.constant * c);
      }
      break;
    case ScalarOp::kIntFloorDiv:
      if (c <= 0) break;
      if (quotient && is_small(quotient->second) && quotient->second.constant > 0) {
        return IntOp(op, quotient->first, IntTerm::Of(quotient->second.constant * c));
      }
      if (product && is_small(product->second) && product->second.constant % c == 0) {
        return IntOp(ScalarOp::kIntMul, product->first, IntTerm::Of(product->second.constant / c));
      }
      break;
    default:
      break;
  }
  return std::nullopt;
}

// None: it cannot be computed from these constants.
std::optional<Recorder::IntTerm> Recorder::IntOp(ScalarOp op, IntTerm a, IntTerm b) {
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
  } else if (const std::optional<IntTerm> simpler = Simpler(op, a, b)) {
    return simpler;
  } else if (const std::optional<IntTerm> gathered = Gathered(op, a, b)) {
    return gathered;
  }
  const auto key = std::tuple(op, a.Key(), b.Key());
  if (const auto it = int_ops_.find(key); it != int_ops_.end()) return IntTerm::Of(it->second);
  std::vector<Arg> args;
  for (const IntTerm& operand : {a, b}) {
    if (args.size() == RowOf(op).arity) break;
    args.push_back(operand.is_constant() ? Arg::Const(c10::IValue(operand.constant))
                                         : Arg::Of(NumberValue(operand.shadow)));
  }
  const ValueId value = aten_.AddScalarNode(op, std::move(args), Type::Scalar(Type::Kind::kInt));
  const Shadow shadow{Shadow::Kind::kValue, value.raw()};
  int_ops_[key] = shadow;
  const bool keeps_sign = op == ScalarOp::kIntAdd || op == ScalarOp::kIntMul || op == ScalarOp::kIntFloorDiv ||
                          op == ScalarOp::kIntMin || op == ScalarOp::kIntMod || op == ScalarOp::kIntBroadcast;
  const bool is_max = op == ScalarOp::kIntMax && (IsNotNegative(a) || IsNotNegative(b));
  if (op == ScalarOp::kIntAbs || is_max || (keeps_sign && IsNotNegative(a) && IsNotNegative(b))) {
    not_negative_.insert(value);
  }
  return IntTerm::Of(shadow);
}

// Whether that the argument itself came back says nothing of sizes or strides: it follows from its dtype, from a switch,
// or the graph finds out.
bool Recorder::GivesBack(const FrameNote& note, const Event& e, PyObject* result) {
  if (!sizes_open()) return false;
  const size_t made = node_count() - note.nodes_before;
  const Graph& graph = aten_.graph();
  const bool is_method = e.op == Op::kCall && std::strcmp(note.torch_name, "contiguous") == 0;
  if (made == 0 && is_method && note.torch_positional == 1 && e.kwnames == nullptr && may_assume() &&
      TensorOf(result).layout() == c10::kStrided) {
    const std::optional<ValueId> value = aten_.ValueOf(TensorOf(result));
    if (!value) return false;
    aten_.AddScalarNode(ScalarOp::kContiguous, {Arg::Of(*value)}, Type::Scalar(Type::Kind::kBool));
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
  if (name == "dropout" || name == "feature_dropout" || name == "alpha_dropout" || name == "feature_alpha_dropout") {
    return is_const("train", false) || is_const("p", 0.0);
  }
  static constexpr std::string_view kByType[] = {"conj", "resolve_conj", "resolve_neg",
                                                 "real", "positive",     "lift_fresh"};
  return std::find(std::begin(kByType), std::end(kByType), name) != std::end(kByType);
}

// The same of a result that is not the argument, where the op gives its argument back at other times. Where nobody else
// has the argument, nobody can tell the two apart.
bool Recorder::IsKnownToBeNew(const FrameNote& note, const Event& e, const AtenRecorder::KnownTensor& result) {
  const Graph& graph = aten_.graph();
  if (!result.value.valid()) return true;
  const ValueId out = result.value;
  const NodeId def = graph.value(out).def;
  if (!def.valid() || def.raw() < note.nodes_before || !graph.node(def).op) return true;
  const Node& node = graph.node(def);
  if (node.op->schema().is_mutable()) return true;
  switch (GivesArgumentOf(*node.op)) {
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
      const AtenRecorder::KnownTensor* known = aten_.Find(tensor);
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
  if (!others.empty() && !may_assume()) return false;
  for (const ValueId other : others) {
    aten_.AddScalarNode(ScalarOp::kAnother, {Arg::Of(other), Arg::Of(out)}, Type::Scalar(Type::Kind::kBool));
  }
  return true;
}

// How many tensors came follows from one size; the list is the program's from now on.
void Recorder::ReadListLength(const Node& node, const Event& e) {
  const std::string_view name = BaseName(*node.op);
  static constexpr std::string_view kAlong[] = {"split",        "chunk",        "unbind",      "split_with_sizes",
                                                "unsafe_split", "unsafe_chunk", "tensor_split"};
  const std::optional<int> dim = node.op->schema().argumentIndexWithName("dim");
  const Arg* along = dim ? &node.args[static_cast<size_t>(*dim)] : nullptr;
  if (std::find(std::begin(kAlong), std::end(kAlong), name) == std::end(kAlong) || along == nullptr ||
      along->kind != Arg::Kind::kConst || !along->constant.isInt() || node.args[0].kind != Arg::Kind::kValue) {
    for (int i = 0; i < e.n; ++i) ReadAllTensors(e.in[i], false);
    return;
  }
  if (name == "split_with_sizes") return;  // as many as sizes were given
  const ValueId tensor = node.args[0].value;
  const auto rank = static_cast<int64_t>(aten_.graph().value(tensor).type.sizes.size());
  const int64_t at = along->constant.toInt() < 0 ? along->constant.toInt() + rank : along->constant.toInt();
  // A number of sections is the number of tensors, but for `chunk`. One that is a tensor's element is guarded by nobody.
  for (const Arg& arg : node.args) {
    if (arg.kind == Arg::Kind::kValue && arg.value != tensor) {
      const Type& type = aten_.graph().value(arg.value).type;
      if (type.kind == Type::Kind::kTensor && type.sizes.empty()) {
        throw Break{Reason::value_of_tensor, "the number of tensors that an op gives"};
      }
      Force(nullptr, Shadow{Shadow::Kind::kValue, arg.value.raw()});
    }
  }
  Force(nullptr, SizeOf(tensor, at));
}

// ---- on their way to an op ------------------------------------------------------------------------------------------

// Arguments of a C function that dispatches: tensors are known, numbers may wait for the node (N1), everything else is
// fixed.
void Recorder::TorchCall(FrameNote& note, Call* call, const char* name) {
  note.open.clear();
  note.torch_name = name;
  note.torch_positional = call->positional();
  note.torch_ints = 0;
  for (size_t i = 0; i < call->args.size(); ++i) {
    PyObject* arg = call->args[i];
    if (arg == nullptr) continue;
    if (i < 64 && i < call->positional() && PyLong_Check(arg)) note.torch_ints |= uint64_t{1} << i;
    OpenNumber at;
    at.position = i < call->positional() ? static_cast<int>(i) : -1;
    if (at.position < 0) at.name = call->names[i - call->positional()];
    LeaveOpen(note, arg, call->shadows[i], at);
    if (PySlice_Check(arg)) {
      for (PyObject* bound : PartsOf(arg)) {
        if (IsTensor(bound)) throw Break{Reason::value_of_tensor, "a tensor as a slice bound"};
      }
    }
  }
  note.expect.kind = Expect::Kind::kTorch;
}

void Recorder::LeaveOpen(FrameNote& note, PyObject* object, Shadow shadow, OpenNumber at) {
  if (LeavesOpen(object, shadow)) {
    at.object = object;
    at.shadow = shadow;
    note.open.push_back(at);
    return;
  }
  const bool is_row = (PyTuple_Check(object) || PyList_CheckExact(object)) && at.item < 0 && at.part < 0;
  Known* known = is_row || PySlice_Check(object) ? Find(object) : nullptr;
  if (is_row && known != nullptr) {
    AdoptElements(object);
    bool open = false;
    for (const Shadow& item : known->items) open = open || item.kind != Shadow::Kind::kNone;
    for (Py_ssize_t i = 0; !open && i < PySequence_Fast_GET_SIZE(object); ++i) {
      open = PySlice_Check(PySequence_Fast_GET_ITEM(object, i));
    }
    if (open) {
      for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
        at.item = static_cast<int>(i);
        LeaveOpen(note, PySequence_Fast_GET_ITEM(object, i), ElementShadow(object, i), at);
      }
      return;
    }
  }
  if (known != nullptr && PySlice_Check(object) && !known->items.empty()) {
    const std::array<PyObject*, 3> parts = PartsOf(object);
    for (size_t i = 0; i < 3; ++i) {
      at.part = static_cast<int>(i);
      LeaveOpen(note, parts[i], known->items[i], at);
    }
    return;
  }
  ForceDeep(object, shadow, true);
}

// N1, after the call.
void Recorder::LinkNumbers(FrameNote& note, const Event& e, PyObject* result) {
  if (aten_.pending) return note.open.clear();
  std::vector<Node*> made;
  for (size_t i = note.nodes_before; i < aten_.graph().nodes.size(); ++i) {
    if (Node& node = aten_.graph().nodes[i]; node.op) made.push_back(&node);
  }
  if (note.makes_tensor) {
    LinkData(note, result);
  } else if (e.op == Op::kSubscr || e.op == Op::kStoreSubscr) {
    PyObject* tensor = e.op == Op::kSubscr ? e.in[0] : e.in[1];
    PyObject* key = e.op == Op::kSubscr ? e.in[1] : e.in[2];
    if (!LinkIndices(note, tensor, key, made) && LeavesOutSlices(key, made)) ReadTensor(tensor, true, false);
  } else if (e.op == Op::kBinary || e.op == Op::kCompare) {
    LinkOperator(note, made);
  } else if (made.size() == 1) {
    LinkCall(note, made[0]);
  }
  for (const OpenNumber& number : note.open) {
    if (!number.linked) Force(number.object, number.shadow);
  }
  note.open.clear();
}

// x * n, n - x, x > n. Reflected operators of Tensor are Python code that hands the number on: rsub, pow, and the product
// with a reciprocal.
void Recorder::LinkOperator(FrameNote& note, const std::vector<Node*>& made) {
  if (note.open.size() != 1 || made.empty() || made.size() > 2) return;
  OpenNumber& number = note.open[0];
  const std::string_view name = BaseName(*made.back()->op);
  if (made.size() == 2 && (number.position != 0 || BaseName(*made[0]->op) != "reciprocal" || name != "mul")) return;
  static constexpr std::string_view kOperators[] = {"add",  "sub", "mul", "div", "pow", "remainder", "floor_divide",
                                                    "rsub", "lt",  "le",  "eq",  "ne",  "gt",        "ge"};
  if (std::find(std::begin(kOperators), std::end(kOperators), name) == std::end(kOperators)) return;
  const size_t parameter = name == "pow" && number.position == 0 ? 0 : 1;
  Link(&number, made.back(), parameter);
}

void Recorder::Link(OpenNumber* number, Node* node, size_t parameter) {
  Arg& arg = node->args[parameter];
  const c10::Type& type = *node->op->schema().arguments()[parameter].real_type();
  if (arg.kind != Arg::Kind::kConst || !TakesNumber(type) || !IsSame(arg.constant, number->object)) return;
  arg = Arg::Of(NumberValue(number->shadow));
  number->linked = true;
}

// A binding that is generated from the schema of the op: arguments by place and by name.
void Recorder::LinkCall(FrameNote& note, Node* node) {
  std::string_view called = note.torch_name;
  if (!called.empty() && called.back() == '_') called.remove_suffix(1);
  if (called != BaseName(*node->op)) return;
  // Whether the argument itself comes back depends on the number.
  if (called.find("dropout") != std::string_view::npos) return;
  const std::vector<c10::Argument>& parameters = node->op->schema().arguments();
  for (OpenNumber& number : note.open) {
    size_t parameter = 0;
    if (number.position < 0) {
      while (parameter < parameters.size() &&
             PyUnicode_CompareWithASCIIString(number.name, parameters[parameter].name().c_str()) != 0) {
        ++parameter;
      }
    } else {
      // x.view(2, n): sizes one by one; the list takes all positions from its own on.
      const auto is_spread = [&](size_t at) {
        return IsSizes(*parameters[at].real_type()) && at < 64 && (note.torch_ints >> at & 1) != 0;
      };
      const auto position = static_cast<size_t>(number.position);
      while (parameter < position && parameter < parameters.size() && !is_spread(parameter)) ++parameter;
    }
    if (parameter >= parameters.size() || (number.position >= 0 && parameters[parameter].kwarg_only())) continue;
    if (!IsSizes(*parameters[parameter].real_type())) {
      if (number.item < 0 && number.part < 0) Link(&number, node, parameter);
      continue;
    }
    Arg& sizes = node->args[parameter];
    size_t item = static_cast<size_t>(number.item);
    if (number.item < 0) {
      if (number.position < 0 || note.torch_positional - parameter != LengthOf(sizes)) continue;
      item = static_cast<size_t>(number.position) - parameter;
    } else if (number.position >= 0 && static_cast<size_t>(number.position) != parameter) {
      continue;
    }
    number.linked = LinkItem(&sizes, item, number.object, NumberValue(number.shadow));
  }
}

// x[i, a:b]: select and slice, one for each, in order. The binding leaves out a slice that covers the whole dimension.
// False: what became of the key is not known.
bool Recorder::LinkIndices(FrameNote& note, PyObject* tensor, PyObject* key, const std::vector<Node*>& made) {
  std::vector<PyObject*> items;
  if (PyTuple_Check(key)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); ++i) items.push_back(PyTuple_GET_ITEM(key, i));
  } else {
    items.push_back(key);
  }
  int64_t given = 0;
  for (PyObject* item : items) {
    if (PyLong_CheckExact(item) || PySlice_Check(item)) {
      ++given;
    } else if (item != Py_None && item != Py_Ellipsis) {
      return false;
    }
  }
  int64_t dim = 0, own_dim = 0;  // of what the steps so far have made; of the tensor
  struct LeftOut {
    int64_t dim;
    PyObject* stop;
    size_t item;
  };
  std::vector<LeftOut> left_out;
  size_t next = 0;
  const auto link = [&](size_t item, int part, Arg* arg) {
    OpenNumber* number = OpenIndex(note, item, part);
    if (number == nullptr || !IsSame(arg->constant, number->object)) return;
    *arg = Arg::Of(NumberValue(number->shadow));
    number->linked = true;
  };
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i] == Py_Ellipsis) {
      dim += TensorOf(tensor).dim() - given;
      own_dim += TensorOf(tensor).dim() - given;
      continue;
    }
    const std::string_view name = next < made.size() ? BaseName(*made[next]->op) : "";
    if (items[i] == Py_None) {
      if (name != "unsqueeze") return false;
      ++next;
      ++dim;
      continue;
    }
    if (PyLong_CheckExact(items[i])) {
      if (name != "select" || !IsConst(made[next]->args[1], dim) || !IsSame(made[next]->args[2].constant, items[i]))
        return false;
      link(i, -1, &made[next++]->args[2]);
      ++own_dim;
      continue;
    }
    Py_ssize_t start, stop, step;
    if (PySlice_Unpack(items[i], &start, &stop, &step) < 0) {
      PyErr_Clear();
      return false;
    }
    const bool is_made = name == "slice" && IsConst(made[next]->args[1], dim) && IsConst(made[next]->args[2], start) &&
                         IsConst(made[next]->args[3], stop) && IsConst(made[next]->args[4], step);
    ++dim;
    ++own_dim;
    if (!is_made) {
      // Left out as it covers the whole dimension, for any size if it has no end.
      if (start != 0 || step != 1) return false;
      if (stop != PY_SSIZE_T_MAX) left_out.push_back({own_dim - 1, PartsOf(items[i])[1], i});
      continue;
    }
    Node* node = made[next++];
    for (int part = 0; part < 3; ++part) link(i, part, &node->args[static_cast<size_t>(part) + 2]);
  }
  // Now that no node is looked at any more: sizes may add some.
  for (const LeftOut& one : left_out) Covers(note, tensor, one.dim, one.stop, one.item);
  return true;
}

// That a slice reaches the end of the dimension is guarded as such.
void Recorder::Covers(FrameNote& note, PyObject* tensor, int64_t dim, PyObject* stop, size_t item) {
  Shadow shadow;
  if (OpenNumber* number = OpenIndex(note, item, 1); number != nullptr) {
    shadow = number->shadow;
    number->linked = true;
  }
  const Ref<> size = Must(PyLong_FromLongLong(TensorOf(tensor).size(dim)));
  const Shadow length = SizeOf(tensor, dim);
  if (DecideNumbers(size.get(), length, stop, shadow, Py_LE, true)) return;
  Force(stop, shadow);
  Force(size.get(), length);
}

}  // namespace frametap
