#include "frame_eval/record/numbers/numbers_in_tensors.h"

#include <algorithm>
#include <functional>

#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/numbers/sequences.h"
#include "frame_eval/record/numbers/sizes.h"
#include "frame_eval/record/numbers/symbolic_args.h"
#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/objects/knowledge.h"
#include "guards/objects/torch_tensor.h"
#include "guards/throw_if_null.h"
#include "ir/graph/eager_state.h"
#include "ir/graph/walk.h"
#include "ir/ops/op_rows.h"
#include "ir/ops/plain_function.h"

namespace frametap {

static bool LeaveDataOpen(Trace& trace, FrameNote& note, PyObject* data, Shadow shadow, int depth);
namespace {

// Rows of so many numbers become tensors in the graph.
constexpr size_t kMostElements = 64;
// Lists of so many elements are numbers of the graph, at about half a microsecond each. A break costs as much as ten
// of them. It is not a choice where the whole function is to be one graph: there, kMostElements.
constexpr size_t kMostListed = 16;

// For tensors whose elements are numbers as graphs have them.
constexpr c10::ScalarType kInts[] = {c10::ScalarType::Long, c10::ScalarType::Int, c10::ScalarType::Short,
                                     c10::ScalarType::Char, c10::ScalarType::Byte};
constexpr c10::ScalarType kFloats[] = {c10::ScalarType::Float, c10::ScalarType::Double};
constexpr c10::ScalarType kHalves[] = {c10::ScalarType::Half, c10::ScalarType::BFloat16};

template <size_t n>
bool IsOneOf(c10::ScalarType dtype, const c10::ScalarType (&dtypes)[n]) {
  return std::find(std::begin(dtypes), std::end(dtypes), dtype) != std::end(dtypes);
}

}  // namespace

// Arguments of a C function that makes a tensor of Python data: the numbers of short rows may wait for it, everything
// else is fixed.
void DataCall(Trace& trace, Call& call, size_t data) {
  FrameNote& note = call.note;
  note.op.expect.kind = ResultSpec::Kind::kTorch;
  note.op.marks.makes_tensor =
      data < call.positional() && LeaveDataOpen(trace, note, call.args[data], call.shadows[data], 0) &&
      std::any_of(note.op.open.begin(), note.op.open.end(),
                  [](const SymbolicNumber& number) { return number.shadow.kind != Shadow::Kind::kNone; });
  if (!note.op.marks.makes_tensor) {
    note.op.open.clear();
    return SpecializeArguments(trace, call, data, false);
  }
  SpecializeArguments(trace, call, data + 1, false);
  note.op.before_nodes = trace.aten.mark();
}

// Collects all numbers in the data, in order. Returns false if the data contain something else, or too much.
static bool LeaveDataOpen(Trace& trace, FrameNote& note, PyObject* data, Shadow shadow, int depth) {
  constexpr int kDeepest = 4;
  Number unused;
  if (NumberOf(data, &unused)) {
    bool open = false;
    SymbolicNumber number;
    number.object = data;
    number.shadow = KeepOpen(trace, data, shadow, &open);
    note.op.open.push_back(number);
    return note.op.open.size() <= kMostElements;
  }
  if (depth == kDeepest || (!IsPlainTuple(data) && !PyList_CheckExact(data))) return false;
  AdoptElements(trace, data);
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(data); ++i) {
    if (!LeaveDataOpen(trace, note, PySequence_Fast_GET_ITEM(data, i), ElementShadow(trace, data, i), depth + 1))
      return false;
  }
  return true;
}

// Returns a tensor in the graph that holds the number alone.
static Arg TensorOfNumber(Trace& trace, SymbolicNumber* number, const Type& type) {
  Number constant;
  NumberOf(number->object, &constant);
  Arg arg = number->shadow.kind == Shadow::Kind::kNone ? Arg::Const(ValueOf(constant))
                                                       : Arg::Of(NumberValue(trace, number->shadow));
  number->linked = true;
  Arg dtype = Arg::Const(c10::IValue(type.dtype));
  return Arg::Of(trace.aten.AddOpNode("aten::scalar_tensor", "", {std::move(arg), std::move(dtype)}, type));
}

// x[[i, j]]: the binding makes a tensor of the ints, and no op shows that. Returns false if the index is another one.
bool LinkIndexList(Trace& trace, FrameNote& note, PyObject* tensor, PyObject* key, const std::vector<Node*>& made,
                   PyObject* result) {
  const bool is_index = PyList_CheckExact(key) && made.size() == 2 && BaseName(*made[0]->op) == "lift_fresh" &&
                        BaseName(*made[1]->op) == "index";
  if (!is_index || note.op.open.empty() || PyList_GET_SIZE(key) > static_cast<Py_ssize_t>(kMostElements)) return false;
  if (!TensorOf(tensor).device().is_cpu() || CurrentEagerState().autocast_cpu) return false;
  std::vector<SymbolicNumber> numbers;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(key); ++i) {
    SymbolicNumber& number = numbers.emplace_back();
    number.object = PyList_GET_ITEM(key, i);
    number.shadow = ElementShadow(trace, key, i);
    if (!PyLong_CheckExact(number.object)) return false;
  }
  const Type type = Type::Of(TensorOf(result));
  Type indices = type;
  indices.dtype = c10::ScalarType::Long;
  indices.sizes.clear();
  trace.aten.DropNodes(note.op.before_nodes);
  std::vector<Arg> items;
  for (SymbolicNumber& number : numbers) items.push_back(TensorOfNumber(trace, &number, indices));
  for (SymbolicNumber& number : note.op.open) number.linked = true;
  indices.sizes = {PyList_GET_SIZE(key)};
  const ValueId stacked = trace.aten.AddOpNode("aten::stack", "", {Arg::List(std::move(items))}, indices);
  const std::optional<ValueId> value = trace.aten.tensors.ValueOf(TensorOf(tensor));
  if (!value) throw Break{Reason::tensor_from_nowhere, ""};
  trace.aten.tensors.Bind(
      TensorOf(result),
      trace.aten.AddOpNode("aten::index", "Tensor", {Arg::Of(*value), Arg::List({Arg::Of(stacked)})}, type));
  return true;
}

// The graph makes of the numbers what the call has made, where that is the same for all numbers.
void LinkData(Trace& trace, FrameNote& note, PyObject* result) {
  const at::Tensor& tensor = TensorOf(result);
  const c10::ScalarType dtype = tensor.scalar_type();
  const bool of_floats = IsOneOf(dtype, kFloats);
  if ((!of_floats && !IsOneOf(dtype, kInts)) || tensor.requires_grad() || !tensor.device().is_cpu() ||
      tensor.layout() != c10::kStrided || tensor.numel() != static_cast<int64_t>(note.op.open.size())) {
    return;
  }
  {
    AtenPause pause;
    if (tensor.is_pinned()) return;
  }
  // Autocast has its own mind on a stack.
  if (tensor.dim() > 0 && CurrentEagerState().autocast_cpu) return;
  for (const SymbolicNumber& number : note.op.open) {
    if (!of_floats && !PyLong_CheckExact(number.object)) return;  // torch has other rules for it than the op
  }
  // The op's error for an int that is too large has other words: Python is to run the call then.
  const bool may_raise = !of_floats && dtype != c10::ScalarType::Long;
  if (may_raise && (trace.aten.memory.writes_inputs() || trace.aten.uses_random())) return;
  trace.aten.DropNodes(note.op.before_nodes);
  // torch goes from Python's number to a double, and from there to the dtype. An op that is given a large int rounds
  // once, and one that is given a large float raises. (The bits of a NaN differ for halves, which are left out.)
  const c10::ScalarType made_as = of_floats ? c10::ScalarType::Double : dtype;
  Type type = Type::Of(tensor);
  type.dtype = made_as;
  type.sizes.clear();
  std::vector<Arg> rows;
  for (SymbolicNumber& number : note.op.open) rows.push_back(TensorOfNumber(trace, &number, type));
  // Stacks of stacks: a reshaped tensor would be a view.
  for (int64_t dim = tensor.dim(); dim-- > 0;) {
    const auto length = static_cast<size_t>(tensor.size(dim));
    type.sizes.insert(type.sizes.begin(), tensor.size(dim));
    std::vector<Arg> stacks;
    for (auto row = rows.begin(); row != rows.end(); row += static_cast<ptrdiff_t>(length)) {
      std::vector<Arg> items(row, row + static_cast<ptrdiff_t>(length));
      stacks.push_back(Arg::Of(trace.aten.AddOpNode("aten::stack", "", {Arg::List(std::move(items))}, type)));
    }
    rows = std::move(stacks);
  }
  if (made_as != dtype) {
    type.dtype = dtype;
    rows[0] = Arg::Of(trace.aten.AddOpNode("aten::to", "dtype", {rows[0], Arg::Const(c10::IValue(dtype))}, type));
  }
  trace.aten.tensors.Bind(tensor, rows[0].value);
}

// The binding asks for the only element by `item`, and converts the number. With more elements it raises before it
// dispatches, so how many there are is fixed.
bool ConvertTensor(Trace& trace, Call& call, bool) {
  PyObject* const object = call.args[0];
  if (!trace.numbers.sizes_open() || !IsExactTensor(object)) return false;
  const at::Tensor& tensor = TensorOf(object);
  const c10::ScalarType dtype = tensor.scalar_type();
  const bool is_number = IsOneOf(dtype, kInts) || IsOneOf(dtype, kFloats) || IsOneOf(dtype, kHalves);
  if (!is_number || tensor.layout() != c10::kStrided) return false;
  ReadRank(trace, object);
  if (tensor.dim() > 0) ReadTensor(trace, object, true, false);
  TorchCall(trace, call.note, &call, "item");
  call.note.op.marks.converts = true;
  trace.aten.expect_number = true;
  return true;
}

using IntsInTensors = absl::flat_hash_map<ValueId, IntTerm>;

// Returns the element of a tensor of one int that an op has computed from numbers and from `known` tensors, or none.
static std::optional<IntTerm> IntOfOp(Trace& trace, ValueId tensor, const IntsInTensors& known) {
  const NodeId def = trace.aten.graph().value(tensor).def;
  if (!def.valid() || trace.aten.memory.MayBeWritten(tensor)) return std::nullopt;
  const Node node = trace.aten.graph().node(def);  // a copy: terms add nodes
  if (!node.op) return std::nullopt;
  const OpRow row = OpRowOf(*node.op);
  const auto term_of = [&](size_t at) -> std::optional<IntTerm> {
    const Arg& arg = node.args[at];
    if (arg.kind == Arg::Kind::kConst) {
      return arg.constant.isInt() ? std::optional(IntTerm::Of(arg.constant.toInt())) : std::nullopt;
    }
    if (arg.kind != Arg::Kind::kValue) return std::nullopt;
    if (trace.aten.graph().value(arg.value).type.kind == Type::Kind::kInt) {
      return IntTerm::Of(Canonical(trace, Shadow{Shadow::Kind::kValue, arg.value.raw()}));
    }
    const auto operand = known.find(arg.value);
    return operand != known.end() ? std::optional(operand->second) : std::nullopt;
  };
  const auto is_const = [&](size_t at, const c10::IValue& wanted) {
    return node.args[at].kind == Arg::Kind::kConst && node.args[at].constant == wanted;
  };
  if (row.Has(ops::kMakesElement)) return term_of(0);
  if (row.of_ints == BuiltinOp::kNone || !IsPlainFunction(*node.op)) return std::nullopt;
  const bool is_quotient = row.of_ints == BuiltinOp::kIntFloorDiv;
  const bool has_factor = !is_quotient && node.args.size() > 2;
  if (has_factor && !is_const(2, c10::IValue(int64_t{1}))) return std::nullopt;
  if (is_quotient && !is_const(2, c10::IValue("trunc")) && !is_const(2, c10::IValue("floor"))) return std::nullopt;
  const std::optional<IntTerm> a = term_of(0), b = term_of(1);
  if (!a || !b) return std::nullopt;
  // Towards zero and downwards are one direction for these.
  const bool rounds_down = IsNotNegative(trace, *a) && b->is_constant() && b->constant > 0;
  return is_quotient && !rounds_down ? std::nullopt : IntOp(trace, row.of_ints, *a, *b);
}

// Returns the element of a tensor of one int that was computed from ints alone, as by torch.div(x.size(0), 2,
// rounding_mode="trunc"), or none.
std::optional<IntTerm> IntInTensor(Trace& trace, ValueId tensor) {
  const Graph& graph = trace.aten.graph();
  const auto is_int = [&](ValueId id, const Node*) {
    const Type& type = graph.value(id).type;
    return type.kind == Type::Kind::kTensor && type.dtype == c10::ScalarType::Long && type.sizes.empty();
  };
  IntsInTensors known;
  for (const ValueId id : OperandsFirst(graph, tensor, is_int)) {
    const std::optional<IntTerm> term = IntOfOp(trace, id, known);
    if (!term) return std::nullopt;
    known.emplace(id, *term);
  }
  const auto found = known.find(tensor);
  return found != known.end() ? std::optional(found->second) : std::nullopt;
}

// With few elements, each is a number of the graph. Their count is fixed, unless it is known to differ from call to
// call.
void ListCall(Trace& trace, Call& call) {
  PyObject* object = call.args.size() == 1 && IsExactTensor(call.args[0]) ? call.args[0] : nullptr;
  const at::Tensor* tensor = object != nullptr ? &TensorOf(object) : nullptr;
  const size_t most = trace.store.options().fullgraph ? kMostElements : kMostListed;
  bool listed = trace.numbers.sizes_open() && tensor != nullptr && tensor->device().is_cpu() &&
                tensor->layout() == c10::kStrided && tensor->numel() <= static_cast<int64_t>(most) &&
                (tensor->numel() > 0 || tensor->dim() == 1) &&
                (IsOneOf(tensor->scalar_type(), kInts) || IsOneOf(tensor->scalar_type(), kFloats) ||
                 IsOneOf(tensor->scalar_type(), kHalves));
  for (int64_t dim = 0; listed && (trace.entry.has_marks || trace.store.has_other_sizes()) && dim < tensor->dim();
       ++dim) {
    const Ref<> size = Must(PyLong_FromLongLong(tensor->size(dim)));
    listed = !LeavesOpen(trace, size.get(), SizeOf(trace, object, dim));
  }
  if (!listed) throw Break{Reason::value_of_tensor, "tolist"};
  ReadTensor(trace, object, true, false);
  call.note.op.expect.kind = ResultSpec::Kind::kTorch;
  call.note.op.listed = object;
  call.note.op.before_nodes = trace.aten.mark();
}

// The binding reads memory, without an op for each element.
Shadow ListElements(Trace& trace, const FrameNote& note, PyObject* result) {
  trace.aten.DropNodes(note.op.before_nodes);
  const at::Tensor& tensor = TensorOf(note.op.listed);
  const Type number = Type::Scalar(tensor.is_floating_point() ? Type::Kind::kFloat : Type::Kind::kInt);
  std::optional<ValueId> value = trace.aten.tensors.ValueOf(tensor);
  if (!value) throw Break{Reason::tensor_from_nowhere, ""};
  const auto item_of = [&](ValueId element) {
    const ValueId item = trace.aten.AddOpNode("aten::item", "", {Arg::Of(element)}, number);
    return Shadow{Shadow::Kind::kValue, item.raw()};
  };
  if (tensor.dim() == 0) return item_of(*value);
  AdoptResult(trace, result);
  if (tensor.numel() == 0) return Shadow();
  Type type = Type::Of(tensor);
  type.sizes = {tensor.numel()};
  if (tensor.dim() > 1) {
    const c10::IValue flat(std::vector<int64_t>{-1});
    value = trace.aten.AddOpNode("aten::reshape", "", {Arg::Of(*value), Arg::Const(flat)}, type);
  }
  const ValueId elements =
      trace.aten.AddOpNode("aten::unbind", "int", {Arg::Of(*value)}, Type::Scalar(Type::Kind::kTensorList));
  type.sizes.clear();
  int64_t next = 0;
  const std::function<void(PyObject*, int64_t)> list = [&](PyObject* row, int64_t dims) {
    ObjectRecord& known = *trace.objects.Find(row);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(row); ++i) {
      if (dims > 1) {
        list(PyList_GET_ITEM(row, i), dims - 1);
        continue;
      }
      const Arg index = Arg::Const(c10::IValue(next++));
      known.items.push_back(item_of(trace.aten.AddScalarNode(BuiltinOp::kListItem, {Arg::Of(elements), index}, type)));
    }
  };
  list(result, tensor.dim());
  return Shadow();
}

}  // namespace frametap
