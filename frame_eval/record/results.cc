// The recorder after an operation: what it gave is known, and ops are bound to the numbers that they took.
#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/numbers/numbers_in_tensors.h"
#include "frame_eval/record/numbers/sequences.h"
#include "frame_eval/record/numbers/sizes.h"
#include "frame_eval/record/numbers/symbolic_args.h"
#include "frame_eval/record/objects/garbage.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/open_keys.h"
#include "frame_eval/record/objects/outside_containers.h"
#include "frame_eval/record/objects/own_dicts.h"
#include "frame_eval/record/objects/variables.h"
#include "frame_eval/record/recorder.h"
#include "frame_eval/record/semantics/elements.h"
#include "frame_eval/record/semantics/iterators.h"
#include "frame_eval/record/semantics/predicted_calls.h"
#include "frame_eval/record/semantics/tensor_attributes.h"
#include "frame_eval/record/shared_breaks.h"
#include "frame_eval/record/trace/array_nodes.h"
#include "frame_eval/record/trace/checkpoint_nodes.h"
#include "frame_eval/record/trace/function_nodes.h"
#include "frame_eval/record/trace/kernel_nodes.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"
#include "ir/ops/op_facts.h"
#include "ir/segment/frame_slot.h"

namespace frametap {

// Ends the segment at an op that has given a sparse tensor back because of its content (`coalesce`): no guard reads that.
static void RefuseByHiddenContent(Trace& trace, const at::Tensor& given_back) {
  const Node& node = trace.aten.graph().nodes.back();
  if (given_back.layout() == c10::kStrided || !node.op) return;
  if (trace.aten.op_facts.Of(*node.op).gives != GivesArgument::kByContent) return;
  throw Break{Reason::unknown_operation, node.op_name() + " of a tensor that is not strided"};
}

static Shadow UnpackedItem(Trace& trace, const FrameNote& note, const Event& e, PyObject* result);
static Shadow TorchResult(Trace& trace, FrameState& f, FrameNote& note, const Event& e, PyObject* result);

// A call of it is the call of a function of Python code, and of nothing else. (Before has refused instances of classes whose
// __call__ is C code.)
static bool IsPythonCode(PyObject* callable) {
  return PyFunction_Check(callable) ||
         (PyMethod_Check(callable) && PyFunction_Check(PyMethod_GET_FUNCTION(callable))) ||
         Py_TYPE(callable)->tp_call == Objects().module->tp_call;
}

// Returns nothing where the result needs no special treatment.
std::optional<Shadow> Recorder::MarkedResult(FrameState& f, FrameNote& note, const Event& e, PyObject* result) {
  if (note.op.marks.calls_function) return trace_.aten.pending ? Shadow() : FunctionResult(trace_, note, e, result);
  if (note.op.marks.makes_iterator) OpenIteratorOver(trace_, result);
  if (note.op.marks.follows_kernel) {
    KernelResult(trace_, note);
    return TorchResult(trace_, f, note, e, result);
  }
  if (note.op.marks.makes_parameter) return ParameterResult(trace_, result);
  if (note.op.marks.has_open_keys) {
    AdoptResult(trace_, result);
    KeepKeys(trace_, result, e);
    return Shadow();
  }
  return std::nullopt;
}

Shadow Recorder::After(FrameState& f, FrameNote& note, const Event& e, PyObject* result) {
  if (note.op.marks.hides_ops) aten::SeeEveryOp(true);
  if (note.op.arrays != nullptr) {
    // array_nodes/N7. The result is an object of the program's, whether or not the segment ends before it.
    if (!trace_.store.backend().calls_numpy()) throw NumPyUnderCompiler();
    return ArrayResult(trace_, note, result, [this](Shadow number) { return NumberValue(trace_, number); });
  }
  if (!note.op.open.empty() || note.op.is_index) BindSymbolicArgs(trace_, note, e, result);
  // Switches of the thread's state are C functions that do not dispatch. (Python code is not one either. Its calls
  // come here as well, unless it belongs to an operation that is not examined.)
  if ((e.op == Op::kCall || e.op == Op::kCallEx) &&
      (note.op.opaque_operation || (note.op.expect.kind != ResultSpec::Kind::kTorch && !IsPythonCode(e.in[0])))) {
    trace_.thread.Read();
  }
  if (trace_.objects.containers.size() > note.containers_before) DropContainers(trace_, note.containers_before);
  if (trace_.repeated_calls && e.op == Op::kCall) trace_.repeated_calls->Returned(note, e, result);
  switch (e.op) {
    case Op::kLoadGlobal:
    case Op::kLoadName: {
      Shadow out;
      if (e.op == Op::kLoadName && e.arg == 0) throw Break{Reason::class_statement, ""};
      Event global = e;
      if (e.op == Op::kLoadName) global.arg = e.arg - 1;
      LoadGlobal(trace_, f, note, global, result, &out);
      return out;
    }
    case Op::kLoadDeref:
      return LoadDeref(trace_, f, e.arg, result);
    case Op::kLoadConst:
      MeetConstant(trace_, result);
      return Shadow();
    case Op::kLoadClosure:
      ShareCell(trace_, f, e.arg);
      MeetCell(trace_, f, e.arg);
      if (trace_.objects.Find(result) != nullptr) return Shadow();
      if (KindOfSlot(f.code, e.arg) == SlotKind::kFree)
        return FromSource(trace_, CellSource(trace_, f, e.arg), result,
                          !trace_.frames.is_base(f) && IsFixedFunction(trace_, f));
      if (trace_.frames.is_base(f)) {
        // A closure over the entry frame's variable: what it holds is known from the entry on.
        PyObject* content = PyCell_GET(result);
        Shadow shadow;
        if (content != nullptr) {
          shadow = FromSource(trace_,
                              trace_.guards.Cell(FrameSlot(trace_.frames.level(), e.arg),
                                                 PyUnicode_AsUTF8(SlotName(f.code, e.arg)), content),
                              content, false);
        }
        if (trace_.entry.began_at_break) {
          FromSource(trace_, CellSource(trace_, f, e.arg), result, false);
          trace_.objects.Find(result)->items.assign(1, shadow);
          return Shadow();
        }
        AddFresh(trace_, result).items.assign(1, shadow);
        trace_.variables.base_cells.push_back(result);
      } else {
        throw Break{Reason::unknown_operation, "a closure is passed on"};
      }
      return Shadow();
    case Op::kMakeFunction:
      AddFresh(trace_, result, ObjectRecord::State::kOpaque);
      return Shadow();
    case Op::kMakeCell: {
      // The parameter's shadow goes with its value into the cell.
      const Shadow content = f.shadows[e.arg];
      if ((f.code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) != 0) {
        AddFresh(trace_, result).items.assign(1, content);  // the frame moves, and its shadows are kept apart
        return Shadow();
      }
      trace_.variables.cells.push_back(content);
      return Shadow{Shadow::Kind::kCell, static_cast<uint32_t>(trace_.variables.cells.size() - 1)};
    }
    case Op::kStoreDeref:
      if (f.shadows[e.arg].kind == Shadow::Kind::kCell) trace_.variables.cells[f.shadows[e.arg].id] = e.shadows[0];
      return Shadow();
    case Op::kCall:
      if (!IsPythonCode(e.in[0])) ReadTableOfIterator(trace_, e, result);  // else its frame is seen
      break;
    case Op::kForIter:
    case Op::kSetUpdate:
      ReadTableOfIterator(trace_, e, result);
      break;
    default:
      break;
  }
  if (result == nullptr) return Shadow();
  if (HasAsked(trace_, note)) [[unlikely]]
    return AskedResult(trace_, result);
  if (!note.op.for_new.empty() && note.op.called_type != nullptr && Py_TYPE(result) != note.op.called_type) {
    for (const Shadow shadow : note.op.for_new)
      Specialize(trace_, nullptr, shadow);  // its own class has initialised it
  }
  if (trace_.frames.checkpoint && trace_.frames.checkpoint->caller == &f) CheckpointResult(trace_, note, result);
  if (note.op.marks.any()) {
    if (const std::optional<Shadow> shadow = MarkedResult(f, note, e, result)) return *shadow;
  }
  if (note.op.expect.kind == ResultSpec::Kind::kTorch && !(note.op.returned != nullptr && note.op.returned == result)) {
    return TorchResult(trace_, f, note, e, result);
  }
  if (note.op.returned == result && note.op.expect.kind == ResultSpec::Kind::kAny) {
    if (note.op.returned_shadow.kind == Shadow::Kind::kNone) AdoptResult(trace_, result);
    return note.op.returned_shadow;
  }
  switch (note.op.expect.kind) {
    case ResultSpec::Kind::kShadow:
      return note.op.expect.shadow;
    case ResultSpec::Kind::kSource:
      return FromSource(trace_, note.op.expect.source, result, note.op.expect.pinned);
    case ResultSpec::Kind::kItems: {
      if (IsConstantTuple(trace_, result) || trace_.objects.Find(result) != nullptr)
        return Shadow();  // t[:], t + (): the very one
      if (PyDict_CheckExact(result)) {
        AddFresh(trace_, result);
        PyObject *key, *value;
        for (Py_ssize_t at = 0, i = 0; PyDict_Next(result, &at, &key, &value); ++i) {
          const Shadow shadow = note.op.expect.items[static_cast<size_t>(i)];
          if (shadow.kind != Shadow::Kind::kNone) KeepValue(trace_, result, key, shadow);
        }
        return Shadow();
      }
      FT_DCHECK(note.op.collects == nullptr ||
                note.op.expect.items.size() == static_cast<size_t>(PySequence_Fast_GET_SIZE(result)));
      AddFresh(trace_, result).items.assign(note.op.expect.items.begin(), note.op.expect.items.end());
      return Shadow();
    }
    case ResultSpec::Kind::kGivenRow:
      AdoptGivenRow(trace_, result);
      return Shadow();
    case ResultSpec::Kind::kGiven: {
      const Shadow shadow = note.op.expect.items[static_cast<size_t>(e.arg)];
      return shadow.kind == Shadow::Kind::kNone ? AdoptResult(trace_, result) : shadow;
    }
    case ResultSpec::Kind::kData: {
      const Arg of = Arg::Of(ValueId(note.op.expect.shadow.id));
      const at::Tensor& tensor = TensorOf(result);
      trace_.aten.tensors.Bind(tensor, trace_.aten.AddOpNode("aten::data", "", {of}, Type::Of(tensor)));
      return Shadow();
    }
    case ResultSpec::Kind::kOpen:
      return TakeOpen(trace_, e.in[0], result);
    case ResultSpec::Kind::kTaken:
      return AdoptTaken(trace_, result, trace_.iteration.taken);
    case ResultSpec::Kind::kPinned:
      // A method is made by each read, unless it is one that was kept.
      if (IsTensor(result) || ((PyMethod_Check(result) || PyCFunction_Check(result)) && Py_REFCNT(result) == 1)) {
        return AdoptResult(trace_, result);
      }
      AdoptPinned(trace_, result, Py_TYPE(result)->tp_name);
      return Shadow();
    case ResultSpec::Kind::kNothing:
      return Shadow();
    default:
      break;
  }
  if (e.op == Op::kUnpack || e.op == Op::kUnpackEx) {
    if (IteratesByPlace(e.in[0])) return UnpackedItem(trace_, note, e, result);
    return AdoptResult(trace_, result);
  }
  // The value that a defaultdict of the trace has made for a missing key (Subscript).
  if (e.op == Op::kSubscr && PyDict_Check(e.in[0]) && PyType_IsSubtype(Py_TYPE(e.in[0]), DefaultDict()) &&
      !SourceOf(trace_, e.in[0]).valid()) {
    return TrackCreated(trace_, result);
  }
  if (e.op == Op::kLoadMethod && e.arg == 1) return Shadow();  // a class-level function: fixed with the type
  if (e.op == Op::kForIter || e.op == Op::kGetIter) return AdoptResult(trace_, result);
  return AdoptResult(trace_, result);
}

// Item e.arg of the object that an instruction unpacks; with a star among the names, one of them is a list of its own.
static Shadow UnpackedItem(Trace& trace, const FrameNote& note, const Event& e, PyObject* result) {
  Py_ssize_t at = e.arg;
  if (e.op == Op::kUnpackEx) {
    const int before = note.op.unpacks & 0xff, after = note.op.unpacks >> 8;
    if (e.arg == before) {
      ObjectRecord& middle = AddFresh(trace, result);
      bool open = false;
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(result); ++i) {
        middle.items.push_back(
            KeepOpen(trace, PyList_GET_ITEM(result, i), ElementShadow(trace, e.in[0], before + i), &open));
      }
      if (!open) middle.items.clear();
      return Shadow();
    }
    if (e.arg > before) at = PySequence_Fast_GET_SIZE(e.in[0]) - after + (e.arg - before - 1);
  }
  const Shadow shadow = ElementShadow(trace, e.in[0], at);
  return shadow.kind != Shadow::Kind::kNone ? shadow : AdoptResult(trace, result);
}

// Fixes the numbers that the nodes from `first` on were given.
static void FixNumbersOf(Trace& trace, size_t first) {
  std::vector<ValueId> numbers;
  for (size_t i = first; i < trace.node_count(); ++i) {
    ForEachUse(trace.aten.graph().nodes[i].args, [&](ValueId use) {
      const Type::Kind kind = trace.aten.graph().value(use).type.kind;
      if (kind == Type::Kind::kInt || kind == Type::Kind::kFloat) numbers.push_back(use);
    });
  }
  for (const ValueId number : numbers) Specialize(trace, nullptr, Shadow{Shadow::Kind::kValue, number.raw()});
}

static Shadow TorchResult(Trace& trace, FrameState&, FrameNote& note, const Event& e, PyObject* result) {
  if (trace.aten.pending) return Shadow();
  if (note.op.listed != nullptr) return ListElements(trace, note, result);
  auto read_arguments = [&](bool strides) {
    for (int i = 0; i < e.n; ++i) ReadAllTensors(trace, e.in[i], strides);
  };
  size_t made = trace.node_count() - note.op.nodes_before;
  if (IsTensor(result)) {
    KnownTensor* known = trace.aten.tensors.Find(TensorOf(result));
    if (known == nullptr) throw Break{Reason::tensor_from_nowhere, ""};
    const bool is_plain = Py_TYPE(result) == Objects().tensor || Py_TYPE(result) == Objects().parameter;
    if (!known->source.valid() && !is_plain) {
      throw Break{Reason::tensor_subclass, Py_TYPE(result)->tp_name};  // given by the binding, past the dispatcher
    }
    if (known->value.valid() && TensorOf(result).requires_grad() &&
        !trace.aten.graph().value(known->value).type.requires_grad) {
      throw Break{Reason::tensor_attribute, "requires_grad=True"};  // set by the binding, past the dispatcher
    }
    const bool is_argument = made > 0 && trace.aten.tensors.IsGivenBack(TensorOf(result));
    const bool wrote =
        made > 0 && trace.aten.graph().nodes.back().op && trace.aten.graph().nodes.back().op->schema().is_mutable();
    // No op, or an op that gave its argument back: the binding has looked at sizes, strides or dtype and decided.
    const bool has_decided = made == 0 || (is_argument && !wrote);
    if (is_argument && !wrote) RefuseByHiddenContent(trace, TensorOf(result));
    if (has_decided ? !GivesBack(trace, note, e, result) : !IsKnownToBeNew(trace, note, e, *known)) {
      read_arguments(true);
      FixNumbersOf(trace, note.op.nodes_before);
    }
    return Shadow();
  }
  if (result == Py_None) return Shadow();
  if (IsOfNumPy(result)) throw Break{Reason::numpy_code, "an array that torch gives"};
  if (IsScalar(result) && made == 1 && trace.aten.graph().nodes.back().op &&
      FactsOf(*trace.aten.graph().nodes.back().op).scalar_from_data) {
    const Node& item = trace.aten.graph().nodes.back();
    const ValueId number = item.outputs[0];
    Shadow shadow{Shadow::Kind::kValue, number.raw()};
    if (item.args.size() == 1 && item.args[0].kind == Arg::Kind::kValue) {
      if (const auto term = IntInTensor(trace, item.args[0].value)) shadow = term->shadow;
      if (shadow.kind == Shadow::Kind::kNone) return shadow;
    }
    const bool is_float = PyFloat_CheckExact(result);
    if (!note.op.marks.converts || is_float == (trace.aten.graph().value(number).type.kind == Type::Kind::kFloat))
      return shadow;
    return AddNumber(trace, is_float ? BuiltinOp::kFloatOf : BuiltinOp::kIntOf, {{nullptr, shadow}});
  }
  if (IsScalar(result)) {
    // A fact of the arguments that is not their data: data would have been seen as an op.
    read_arguments(true);
    return Shadow();
  }
  // The number of tensors that a kernel in Python returns follows from its guarded reads.
  if ((PyTuple_Check(result) || PyList_Check(result)) && !note.op.marks.follows_kernel) {
    bool list_op = made == 0;
    for (size_t i = note.op.nodes_before; i < trace.node_count(); ++i) {
      const Node& node = trace.aten.graph().nodes[i];
      if (!node.op || !FactsOf(*node.op).list_result) continue;
      list_op = true;
      RefuseUnknownLength(node);
    }
    if (list_op && made > 0 && trace.numbers.sizes_open()) {
      for (size_t i = note.op.nodes_before; i < trace.node_count(); ++i) {
        const Node& node = trace.aten.graph().nodes[i];
        if (node.op && FactsOf(*node.op).list_result) ReadListLength(trace, node, e);
      }
    } else if (list_op) {
      read_arguments(made == 0);
    }
  }
  return AdoptResult(trace, result);
}

}  // namespace frametap
