#include "frame_eval/record/numbers/symbolic_args.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/numbers/numbers_in_tensors.h"
#include "frame_eval/record/numbers/sequences.h"
#include "frame_eval/record/numbers/sizes.h"
#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/trace/array_nodes.h"
#include "guards/objects/torch_tensor.h"
#include "guards/throw_if_null.h"
#include "ir/graph/builtin_op.h"
#include "ir/ops/op_rows.h"
#include "ir/ops/size_rules.h"

namespace frametap {

static void LeaveOpen(Trace& trace, FrameNote& note, PyObject* object, Shadow shadow, SymbolicNumber at);
static void LinkOperator(Trace& trace, FrameNote& note, const std::vector<Node*>& made);
static void LinkCall(Trace& trace, FrameNote& note, Node* node);
static bool LinkIndices(Trace& trace, FrameNote& note, PyObject* tensor, PyObject* key, const std::vector<Node*>& made);
static void Covers(Trace& trace, FrameNote& note, PyObject* tensor, int64_t dim, PyObject* stop, size_t item);
static void Link(Trace& trace, SymbolicNumber* number, Node* node, size_t parameter);
static void StoreAsItIs(Trace& trace, const FrameNote& note);
namespace {

bool IsSame(const c10::IValue& constant, const Number& number) {
  if (number.is_float) {
    const double value = constant.isDouble() ? constant.toDouble() : 0;
    return constant.isDouble() && std::memcmp(&number.f, &value, sizeof value) == 0;
  }
  return constant.isInt() && constant.toInt() == number.i;
}

bool IsSame(const c10::IValue& constant, PyObject* object) {
  Number number;
  return NumberOf(object, &number) && IsSame(constant, number);
}

bool IsSame(const c10::IValue& constant, const SymbolicNumber& open) {
  return open.tensor.valid() ? IsSame(constant, open.element) : IsSame(constant, open.object);
}

// Read from memory: an op would be seen. None for other dtypes than those that become plain ints and floats.
std::optional<Number> ElementOf(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Long:
      return Number::Int(*tensor.const_data_ptr<int64_t>());
    case c10::ScalarType::Int:
      return Number::Int(*tensor.const_data_ptr<int32_t>());
    case c10::ScalarType::Short:
      return Number::Int(*tensor.const_data_ptr<int16_t>());
    case c10::ScalarType::Char:
      return Number::Int(*tensor.const_data_ptr<int8_t>());
    case c10::ScalarType::Byte:
      return Number::Int(*tensor.const_data_ptr<uint8_t>());
    case c10::ScalarType::Double:
      return Number::Float(*tensor.const_data_ptr<double>());
    case c10::ScalarType::Float:
      return Number::Float(*tensor.const_data_ptr<float>());
    default:
      return std::nullopt;
  }
}

// Whether a call may take the tensor for a number. Whoever asks for its element by name has it as a result.
bool IsElement(const FrameNote& note, PyObject* object) {
  if (!IsExactTensor(object) || note.op.torch_name[0] == '\0' || std::strcmp(note.op.torch_name, "item") == 0)
    return false;
  const at::Tensor& tensor = TensorOf(object);
  // The binding refuses a tensor that requires a gradient.
  return tensor.dim() == 0 && tensor.is_cpu() && tensor.layout() == c10::kStrided && tensor.has_storage() &&
         tensor.storage().data() != nullptr && !tensor.requires_grad() && !tensor.is_neg() &&
         ElementOf(tensor).has_value();
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

// A size that the schema declares as a plain int.
bool IsCount(const c10::OperatorHandle& op, size_t parameter) {
  return OpRowOf(op).Has(ops::kTakesSize) &&
         op.schema().arguments()[parameter].real_type()->kind() == c10::TypeKind::IntType;
}

bool IsSizes(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::OptionalType) return IsSizes(*type.castRaw<c10::OptionalType>()->getElementType());
  return type.kind() == c10::TypeKind::ListType &&
         type.castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::SymIntType;
}

// The factors of an op on lists of tensors, one for each tensor. (Lists of floats may not: sizes follow from scales.)
bool IsFactors(const c10::Type& type) {
  return type.kind() == c10::TypeKind::ListType &&
         type.castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::NumberType;
}

size_t LengthOf(const Arg& list) {
  if (list.kind == Arg::Kind::kList) return list.items.size();
  return list.kind == Arg::Kind::kConst && list.constant.isList() ? list.constant.toListRef().size() : 0;
}

// Makes element `item` of a list of numbers a value, if it is `number` now.
bool LinkItem(Arg* list, size_t item, const SymbolicNumber& number, ValueId value) {
  if (item >= LengthOf(*list)) return false;
  if (list->kind == Arg::Kind::kConst) {
    std::vector<Arg> items;
    for (const c10::IValue& constant : list->constant.toListRef()) items.push_back(Arg::Const(constant));
    *list = Arg::List(std::move(items));
  }
  Arg& arg = list->items[item];
  if (arg.kind != Arg::Kind::kConst || !IsSame(arg.constant, number)) return false;
  arg = Arg::Of(value);
  return true;
}

// Whether the key has more slices than were made.
bool LeavesOutSlices(PyObject* key, const std::vector<Node*>& made) {
  Py_ssize_t left_out = 0;
  const auto count = [&](PyObject* item) {
    Py_ssize_t start = 0, stop = 0, step = 0;
    if (!PySlice_Check(item)) return;
    if (!UnpackQuietly(item, &start, &stop, &step)) start = 1;
    left_out += start != 0 || stop != PY_SSIZE_T_MAX || step != 1;  // x[:] is not one for any size
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

// The pending part of an index: the key itself or an item of it, and the part of a slice (-1 if it is not a slice).
SymbolicNumber* OpenIndex(FrameNote& note, size_t item, int part) {
  for (SymbolicNumber& number : note.op.open) {
    const size_t of = number.item < 0 ? 0 : static_cast<size_t>(number.item);
    if (number.position == 1 && of == item && number.part == part) return &number;
  }
  return nullptr;
}

}  // namespace

std::string_view BaseName(const c10::OperatorHandle& op) {
  std::string_view name = op.operator_name().name;
  name.remove_prefix(name.find("::") + 2);
  if (!name.empty() && name.back() == '_') name.remove_suffix(1);
  return name;
}

// Arguments of a C function that dispatches: tensors are known, numbers may wait for the node (numbers/N1), everything
// else is fixed.
void TorchCall(Trace& trace, FrameNote& note, Call* call, const char* name) {
  note.op.open.clear();
  note.op.torch_name = name;
  note.op.torch_positional = call->positional();
  note.op.torch_ints = 0;
  for (size_t i = 0; i < call->args.size(); ++i) {
    PyObject* arg = call->args[i];
    if (arg == nullptr) continue;
    SymbolicNumber at;
    at.position = i < call->positional() ? static_cast<int>(i) : -1;
    if (at.position < 0) at.name = call->names[i - call->positional()];
    const bool is_int = PyLong_Check(arg) || (IsElement(note, arg) && !TensorOf(arg).is_floating_point());
    if (i < 64 && i < call->positional() && is_int) note.op.torch_ints |= uint64_t{1} << i;
    LeaveOpen(trace, note, arg, call->shadows[i], at);
    if (PySlice_Check(arg)) {
      for (PyObject* bound : PartsOf(arg)) {
        if (IsTensor(bound)) throw Break{Reason::value_of_tensor, "a tensor as a slice bound"};
      }
    }
  }
  note.op.expect.kind = ResultSpec::Kind::kTorch;
}

// A tensor of one number that the binding may take for the number (a size, a factor). It asks for the element by `item`, which
// is a number of the graph then (BindSymbolicArgs).
static void LeaveElementOpen(Trace& trace, FrameNote& note, PyObject* object, SymbolicNumber at) {
  const std::optional<ValueId> value = trace.aten.tensors.ValueOf(TensorOf(object));
  const std::optional<IntTerm> term = value ? IntInTensor(trace, *value) : std::nullopt;
  if (!value || (!term && !trace.numbers.sizes_open())) return;
  at.object = object;
  at.element = *ElementOf(TensorOf(object));
  at.tensor = *value;
  if (term) at.computed = term->shadow;
  at.is_constant = term && term->is_constant();
  note.op.open.push_back(at);
  note.op.nodes_before = trace.node_count();  // the term may have added some
  trace.aten.expect_number = true;
}

static void LeaveOpen(Trace& trace, FrameNote& note, PyObject* object, Shadow shadow, SymbolicNumber at) {
  if (IsElement(note, object)) LeaveElementOpen(trace, note, object, at);
  if (IsArrayNumber(object) && IsArrayOperand(trace, object)) {
    Ref<> plain;
    at.shadow = AddPlainNumber(trace, object, &plain);
    at.object = plain.get();
    note.op.open.push_back(at);
    note.op.nodes_before = trace.node_count();
    return;
  }
  if (LeavesOpen(trace, object, shadow)) {
    at.object = object;
    at.shadow = shadow;
    note.op.open.push_back(at);
    return;
  }
  const bool is_row = (PyTuple_Check(object) || PyList_CheckExact(object)) && at.item < 0 && at.part < 0;
  ObjectRecord* known = is_row || PySlice_Check(object) ? trace.objects.Find(object) : nullptr;
  if (is_row && known != nullptr) {
    AdoptElements(trace, object);
    bool open = false;
    for (const Shadow& item : known->items) open = open || item.kind != Shadow::Kind::kNone;
    for (Py_ssize_t i = 0; !open && i < PySequence_Fast_GET_SIZE(object); ++i) {
      PyObject* const item = PySequence_Fast_GET_ITEM(object, i);
      open = PySlice_Check(item) || IsElement(note, item);
    }
    if (open) {
      for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
        at.item = static_cast<int>(i);
        LeaveOpen(trace, note, PySequence_Fast_GET_ITEM(object, i), ElementShadow(trace, object, i), at);
      }
      return;
    }
  }
  if (known != nullptr && PySlice_Check(object) && !known->items.empty()) {
    const std::array<PyObject*, 3> parts = PartsOf(object);
    for (size_t i = 0; i < 3; ++i) {
      at.part = static_cast<int>(i);
      LeaveOpen(trace, note, parts[i], known->items[i], at);
    }
    return;
  }
  SpecializeDeep(trace, object, shadow, true);
}

// Whether the node is the `item` of an operand that waits for it (LeaveElementOpen).
static bool TakesElement(Trace& trace, FrameNote& note, const Node& node) {
  if (note.op.open.empty() || !OpRowOf(*node.op).Has(ops::kGivesElement)) return false;
  for (SymbolicNumber& number : note.op.open) {
    if (!number.tensor.valid() || number.is_taken || node.args[0].value != number.tensor) continue;
    number.is_taken = true;
    number.linked = number.is_constant;  // for whatever it was computed from
    number.shadow = number.computed;
    if (number.shadow.kind == Shadow::Kind::kNone && !number.is_constant) {
      number.shadow = Shadow{Shadow::Kind::kValue, node.outputs[0].raw()};
    }
    return true;
  }
  return false;
}

// numbers/N1, after the call.
void BindSymbolicArgs(Trace& trace, FrameNote& note, const Event& e, PyObject* result) {
  if (trace.aten.pending) return note.op.open.clear();
  if (note.op.is_index && (result == nullptr || result == Py_None)) StoreAsItIs(trace, note);
  std::vector<Node*> made;
  for (size_t i = note.op.nodes_before; i < trace.aten.graph().nodes.size(); ++i) {
    Node& node = trace.aten.graph().nodes[i];
    if (node.op && !TakesElement(trace, note, node)) made.push_back(&node);
  }
  // A number that the binding has taken from another tensor is in the node as a constant.
  const bool waits = std::any_of(note.op.open.begin(), note.op.open.end(),
                                 [](const SymbolicNumber& number) { return number.tensor.valid(); });
  for (const Node* node : made) {
    if (waits && OpRowOf(*node->op).Has(ops::kGivesElement)) {
      throw Break{Reason::value_of_tensor, node->op->operator_name().name};
    }
  }
  if (note.op.marks.makes_tensor) {
    LinkData(trace, note, result);
  } else if (e.op == Op::kSubscr || e.op == Op::kStoreSubscr) {
    PyObject* tensor = e.op == Op::kSubscr ? e.in[0] : e.in[1];
    PyObject* key = e.op == Op::kSubscr ? e.in[1] : e.in[2];
    const bool is_linked = (e.op == Op::kSubscr && LinkIndexList(trace, note, tensor, key, made, result)) ||
                           LinkIndices(trace, note, tensor, key, made);
    if (!is_linked && LeavesOutSlices(key, made)) ReadTensor(trace, tensor, true, false);
  } else if (e.op == Op::kBinary || e.op == Op::kCompare) {
    LinkOperator(trace, note, made);
  } else if (made.size() == 1) {
    LinkCall(trace, note, made[0]);
  }
  for (const SymbolicNumber& number : note.op.open) {
    if (!number.linked) Specialize(trace, number.object, number.shadow);
  }
  note.op.open.clear();
}

// Returns how many dimensions x[indices] has, of those that index_put_ writes to.
static size_t RankOfIndexed(const Graph& graph, const Node& index_put) {
  const auto rank_of = [&](const Arg& arg) { return graph.value(arg.value).type.sizes.size(); };
  size_t rank = rank_of(index_put.args[0]), of_indices = 0;
  for (const Arg& index : index_put.args[1].items) {
    if (index.kind != Arg::Kind::kValue) continue;
    const bool is_mask = IsMask(graph.value(index.value).type.dtype);
    rank -= is_mask ? rank_of(index) : 1;
    of_indices = std::max(of_indices, is_mask ? 1 : rank_of(index));
  }
  return rank + of_indices;
}

// x[…] = value: the binding takes the first dimensions off the value while their size is one, and may expand it, by views
// with sizes of now. The op that writes does the same for all sizes, if the value has no more dimensions than it writes
// to. Else these sizes are fixed.
static void StoreAsItIs(Trace& trace, const FrameNote& note) {
  const Graph& graph = trace.aten.graph();
  const size_t end = graph.nodes.size();
  if (end < note.op.nodes_before + 2 || !graph.nodes.back().op) return;
  const std::string_view name = BaseName(*graph.nodes.back().op);
  const bool is_copy = name == "copy", is_put = name == "index_put";
  if (!is_copy && !is_put) return;
  const size_t stored = is_copy ? 1 : 2;
  const auto is_view = [&](size_t at, const char* wanted) {
    const Node& made_of = graph.nodes[at + 1];
    const Arg& arg = made_of.args[at + 2 == end ? stored : 0];
    return at >= note.op.nodes_before && graph.nodes[at].op && BaseName(*graph.nodes[at].op) == wanted &&
           arg.kind == Arg::Kind::kValue && arg.value == graph.nodes[at].outputs[0];
  };
  const bool is_expanded = is_copy && is_view(end - 2, "expand");
  const size_t first = end - (is_expanded ? 3 : 2);
  if (!is_view(first, "view")) return;
  const ValueId value = graph.nodes[first].args[0].value, target = graph.nodes.back().args[0].value;
  const size_t rank = graph.value(value).type.sizes.size();
  if (rank <= (is_copy ? graph.value(target).type.sizes.size() : RankOfIndexed(graph, graph.nodes.back()))) {
    trace.aten.graph().nodes.back().args[stored] = Arg::Of(value);
    return trace.aten.DropBeforeLast(NodeId(first));
  }
  TensorRead read;
  read.sizes = true;
  FixValue(trace, value, read, &trace.numbers.sizes_read);
  FixValue(trace, target, read, &trace.numbers.sizes_read);
}

// x * n, n - x, x > n. Reflected operators of Tensor are Python code that hands the number on: rsub, pow, and the product
// with a reciprocal.
static void LinkOperator(Trace& trace, FrameNote& note, const std::vector<Node*>& made) {
  if (note.op.open.size() != 1 || made.empty() || made.size() > 2) return;
  SymbolicNumber& number = note.op.open[0];
  const c10::OperatorHandle& op = *made.back()->op;
  if (!OpRowOf(op).Has(ops::kOfOperator)) return;
  const bool has_reciprocal = number.position == 0 && BaseName(*made[0]->op) == "reciprocal" && BaseName(op) == "mul";
  if (made.size() == 2 && !has_reciprocal) return;
  const bool is_number_first = op.schema().arguments()[0].real_type()->kind() == c10::TypeKind::NumberType;
  Link(trace, &number, made.back(), is_number_first ? 0 : 1);
}

static void Link(Trace& trace, SymbolicNumber* number, Node* node, size_t parameter) {
  Arg& arg = node->args[parameter];
  const c10::Type& type = *node->op->schema().arguments()[parameter].real_type();
  const bool takes_number = TakesNumber(type) || IsCount(*node->op, parameter);
  if (arg.kind != Arg::Kind::kConst || !takes_number || !IsSame(arg.constant, *number)) return;
  arg = Arg::Of(NumberValue(trace, number->shadow));
  number->linked = true;
}

// A binding that is generated from the schema of the op: arguments by place and by name.
static void LinkCall(Trace& trace, FrameNote& note, Node* node) {
  std::string_view called = note.op.torch_name;
  if (!called.empty() && called.back() == '_') called.remove_suffix(1);
  if (called != BaseName(*node->op)) return;
  // Whether the argument itself comes back depends on the number.
  if (OpRowOf(*node->op).Has(ops::kDropsOut)) return;
  const std::vector<c10::Argument>& parameters = node->op->schema().arguments();
  for (SymbolicNumber& number : note.op.open) {
    if (number.linked || (number.tensor.valid() && !number.is_taken)) continue;
    size_t parameter = 0;
    if (number.position < 0) {
      while (parameter < parameters.size() &&
             PyUnicode_CompareWithASCIIString(number.name, parameters[parameter].name().c_str()) != 0) {
        ++parameter;
      }
    } else {
      // x.view(2, n): sizes one by one; the list takes all positions from its own on.
      const auto is_spread = [&](size_t at) {
        return IsSizes(*parameters[at].real_type()) && at < 64 && (note.op.torch_ints >> at & 1) != 0;
      };
      const auto position = static_cast<size_t>(number.position);
      while (parameter < position && parameter < parameters.size() && !is_spread(parameter)) ++parameter;
    }
    if (parameter >= parameters.size() || (number.position >= 0 && parameters[parameter].kwarg_only())) continue;
    const c10::Type& type = *parameters[parameter].real_type();
    if (IsFactors(type) && number.item < 0) continue;
    if (!IsSizes(type) && !IsFactors(type)) {
      if (number.item < 0 && number.part < 0) Link(trace, &number, node, parameter);
      continue;
    }
    Arg& list = node->args[parameter];
    size_t item = static_cast<size_t>(number.item);
    if (number.item < 0) {
      if (number.position < 0 || note.op.torch_positional - parameter != LengthOf(list)) continue;
      item = static_cast<size_t>(number.position) - parameter;
    } else if (number.position >= 0 && static_cast<size_t>(number.position) != parameter) {
      continue;
    }
    number.linked = LinkItem(&list, item, number, NumberValue(trace, number.shadow));
  }
}

// x[i, a:b]: select and slice, one for each, in order. The binding leaves out a slice that covers the whole dimension.
// Returns false if the fate of the key is unknown.
static bool LinkIndices(Trace& trace, FrameNote& note, PyObject* tensor, PyObject* key,
                        const std::vector<Node*>& made) {
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
  int64_t dim = 0, own_dim = 0;  // of the result of the steps so far; of the tensor
  struct LeftOut {
    int64_t dim;
    PyObject* stop;
    size_t item;
  };
  std::vector<LeftOut> left_out;
  size_t next = 0;
  const auto link = [&](size_t item, int part, Arg* arg) {
    SymbolicNumber* number = OpenIndex(note, item, part);
    if (number == nullptr || !IsSame(arg->constant, number->object)) return;
    *arg = Arg::Of(NumberValue(trace, number->shadow));
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
    if (!UnpackQuietly(items[i], &start, &stop, &step)) return false;
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
  for (const LeftOut& one : left_out) Covers(trace, note, tensor, one.dim, one.stop, one.item);
  return true;
}

// That a slice reaches the end of the dimension is guarded as such.
static void Covers(Trace& trace, FrameNote& note, PyObject* tensor, int64_t dim, PyObject* stop, size_t item) {
  Shadow shadow;
  if (SymbolicNumber* number = OpenIndex(note, item, 1); number != nullptr) {
    shadow = number->shadow;
    number->linked = true;
  }
  const Ref<> size = Must(PyLong_FromLongLong(TensorOf(tensor).size(dim)));
  const Shadow length = SizeOf(trace, tensor, dim);
  if (DecideNumbers(trace, size.get(), length, stop, shadow, Py_LE, true)) return;
  Specialize(trace, stop, shadow);
  Specialize(trace, size.get(), length);
}

}  // namespace frametap
