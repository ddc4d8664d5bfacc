// The recorder after an operation: what it gave is known, and ops are bound to the numbers that they took.
#include "absl/container/flat_hash_set.h"
#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/record/callables/getters.h"
#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/numbers/rows.h"
#include "frame_eval/record/objects/cached_properties.h"
#include "frame_eval/record/objects/outside_containers.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/recorder.h"
#include "frame_eval/record/semantics/elements.h"
#include "frame_eval/record/trace/array_nodes.h"
#include "guards/must.h"
#include "guards/objects/known_objects.h"
#include "guards/objects/tensor_door.h"
#include "ir/ops/op_facts.h"
#include "ir/segment/frame_slot.h"

namespace frametap {

// A call of it is the call of a function of Python code, and of nothing else. (Before has refused instances of classes whose
// __call__ is C code.)
static bool IsPythonCode(PyObject* callable) {
  return PyFunction_Check(callable) ||
         (PyMethod_Check(callable) && PyFunction_Check(PyMethod_GET_FUNCTION(callable))) ||
         Py_TYPE(callable)->tp_call == Objects().module->tp_call;
}

// Returns nothing where the result needs no special treatment.
std::optional<Shadow> Recorder::MarkedResult(FrameState& f, FrameNote& note, const Event& e, PyObject* result) {
  if (note.marks.calls_function) return aten_.pending ? Shadow() : FunctionResult(note, e, result);
  if (note.marks.makes_iterator) OpenIteratorOver(result);
  if (note.marks.follows_kernel) {
    KernelResult(note);
    return TorchResult(f, note, e, result);
  }
  if (note.marks.makes_parameter) return ParameterResult(result);
  if (note.marks.has_open_keys) {
    AdoptResult(result);
    KeepKeys(result, e);
    return Shadow();
  }
  return std::nullopt;
}

Shadow Recorder::After(FrameState& f, FrameNote& note, const Event& e, PyObject* result) {
  if (note.marks.switches_inference) aten::SeeEveryOp(true);
  if (IsArrayCall(note)) {
    // array_nodes/N7. The result is an object of the program's, whether or not the segment ends before it.
    if (!store_.backend().calls_numpy()) throw Break{Reason::numpy_code, "NumPy under a backend that compiles"};
    return ArrayResult(*this, note, result, [this](Shadow number) { return NumberValue(number); });
  }
  if (!note.open.empty() || note.is_index) LinkNumbers(note, e, result);
  // Switches of the thread's state are C functions that do not dispatch. (Python code is not one either. Its calls
  // come here as well, unless it belongs to an operation that is not examined.)
  if ((e.op == Op::kCall || e.op == Op::kCallEx) &&
      (note.opaque_operation || (note.expect.kind != Expect::Kind::kTorch && !IsPythonCode(e.in[0])))) {
    ReadState();
  }
  if (containers_.size() > note.containers_before) DropContainers(note.containers_before);
  if (repeated_calls_ && e.op == Op::kCall) repeated_calls_->Returned(note, e, result);
  switch (e.op) {
    case Op::kLoadGlobal:
    case Op::kLoadName: {
      Shadow out;
      if (e.op == Op::kLoadName && e.arg == 0) throw Break{Reason::class_statement, ""};
      Event global = e;
      if (e.op == Op::kLoadName) global.arg = e.arg - 1;
      LoadGlobal(f, note, global, result, &out);
      return out;
    }
    case Op::kLoadDeref:
      return LoadDeref(f, e.arg, result);
    case Op::kLoadConst:
      MeetConstant(result);
      return Shadow();
    case Op::kLoadClosure:
      ShareCell(f, e.arg);
      MeetCell(f, e.arg);
      if (Find(result) != nullptr) return Shadow();
      if (KindOfSlot(f.code, e.arg) == SlotKind::kFree)
        return FromSource(CellSource(f, e.arg), result, !is_base(f) && IsFixedFunction(f));
      if (is_base(f)) {
        // A closure over the entry frame's variable: what it holds is known from the entry on.
        PyObject* content = PyCell_GET(result);
        Shadow shadow;
        if (content != nullptr) {
          shadow =
              FromSource(guards_.Cell(FrameSlot(level(), e.arg), PyUnicode_AsUTF8(SlotName(f.code, e.arg)), content),
                         content, false);
        }
        if (began_at_break_) {
          FromSource(CellSource(f, e.arg), result, false);
          Find(result)->items.assign(1, shadow);
          return Shadow();
        }
        AddFresh(result).items.assign(1, shadow);
        base_cells_.push_back(result);
      } else {
        throw Break{Reason::unknown_operation, "a closure is passed on"};
      }
      return Shadow();
    case Op::kMakeFunction:
      AddFresh(result, Known::State::kOpaque);
      return Shadow();
    case Op::kMakeCell: {
      // The parameter's shadow goes with its value into the cell.
      const Shadow content = f.shadows[e.arg];
      if ((f.code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) != 0) {
        AddFresh(result).items.assign(1, content);  // the frame moves, and its shadows are kept apart
        return Shadow();
      }
      cells_.push_back(content);
      return Shadow{Shadow::Kind::kCell, static_cast<uint32_t>(cells_.size() - 1)};
    }
    case Op::kStoreDeref:
      if (f.shadows[e.arg].kind == Shadow::Kind::kCell) cells_[f.shadows[e.arg].id] = e.shadows[0];
      return Shadow();
    case Op::kCall:
      if (!IsPythonCode(e.in[0])) ReadTableOfIterator(*this, e, result);  // else its frame is seen
      break;
    case Op::kForIter:
    case Op::kSetUpdate:
      ReadTableOfIterator(*this, e, result);
      break;
    default:
      break;
  }
  if (result == nullptr) return Shadow();
  if (!note.for_new.empty() && note.called_type != nullptr && Py_TYPE(result) != note.called_type) {
    for (const Shadow shadow : note.for_new) Force(nullptr, shadow);  // its own class has initialised it
  }
  if (checkpoint_ && checkpoint_->caller == &f) CheckpointResult(note, result);
  if (note.marks.any()) {
    if (const std::optional<Shadow> shadow = MarkedResult(f, note, e, result)) return *shadow;
  }
  if (note.expect.kind == Expect::Kind::kTorch && !(note.returned != nullptr && note.returned == result)) {
    return TorchResult(f, note, e, result);
  }
  if (note.returned == result && note.expect.kind == Expect::Kind::kAny) {
    if (note.returned_shadow.kind == Shadow::Kind::kNone) AdoptResult(result);
    return note.returned_shadow;
  }
  switch (note.expect.kind) {
    case Expect::Kind::kShadow:
      return note.expect.shadow;
    case Expect::Kind::kSource:
      return FromSource(note.expect.source, result, note.expect.pinned);
    case Expect::Kind::kItems: {
      if (IsConstantTuple(result) || Find(result) != nullptr) return Shadow();  // t[:], t + (): the very one
      if (PyDict_CheckExact(result)) {
        AddFresh(result);
        PyObject *key, *value;
        for (Py_ssize_t at = 0, i = 0; PyDict_Next(result, &at, &key, &value); ++i) {
          const Shadow shadow = note.expect.items[static_cast<size_t>(i)];
          if (shadow.kind != Shadow::Kind::kNone) KeepValue(result, key, shadow);
        }
        return Shadow();
      }
      AddFresh(result).items.assign(note.expect.items.begin(), note.expect.items.end());
      return Shadow();
    }
    case Expect::Kind::kData: {
      const Arg of = Arg::Of(ValueId(note.expect.shadow.id));
      const at::Tensor& tensor = TensorOf(result);
      aten_.Bind(tensor, aten_.AddOpNode("aten::data", "", {of}, Type::Of(tensor)));
      return Shadow();
    }
    case Expect::Kind::kOpen:
      return TakeOpen(e.in[0], result);
    case Expect::Kind::kTaken:
      return AdoptTaken(result, taken_);
    case Expect::Kind::kPinned:
      // A method is made by each read, unless it is one that was kept.
      if (IsTensor(result) || ((PyMethod_Check(result) || PyCFunction_Check(result)) && Py_REFCNT(result) == 1)) {
        return AdoptResult(result);
      }
      AdoptPinned(result, Py_TYPE(result)->tp_name);
      return Shadow();
    case Expect::Kind::kNothing:
      return Shadow();
    default:
      break;
  }
  if (e.op == Op::kUnpack || e.op == Op::kUnpackEx) {
    if (IteratesByPlace(e.in[0])) return UnpackedItem(note, e, result);
    return AdoptResult(result);
  }
  // The value that a defaultdict of the trace has made for a missing key (Subscript).
  if (e.op == Op::kSubscr && PyDict_Check(e.in[0]) && PyType_IsSubtype(Py_TYPE(e.in[0]), DefaultDict()) &&
      !SourceOf(e.in[0]).valid()) {
    return AdoptMade(result);
  }
  if (e.op == Op::kLoadMethod && e.arg == 1) return Shadow();  // a class-level function: fixed with the type
  if (e.op == Op::kForIter || e.op == Op::kGetIter) return AdoptResult(result);
  return AdoptResult(result);
}

// Item e.arg of the object that an instruction unpacks; with a star among the names, one of them is a list of its own.
Shadow Recorder::UnpackedItem(const FrameNote& note, const Event& e, PyObject* result) {
  Py_ssize_t at = e.arg;
  if (e.op == Op::kUnpackEx) {
    const int before = note.unpacks & 0xff, after = note.unpacks >> 8;
    if (e.arg == before) {
      Known& middle = AddFresh(result);
      bool open = false;
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(result); ++i) {
        middle.items.push_back(KeepOpen(PyList_GET_ITEM(result, i), ElementShadow(e.in[0], before + i), &open));
      }
      if (!open) middle.items.clear();
      return Shadow();
    }
    if (e.arg > before) at = PySequence_Fast_GET_SIZE(e.in[0]) - after + (e.arg - before - 1);
  }
  const Shadow shadow = ElementShadow(e.in[0], at);
  return shadow.kind != Shadow::Kind::kNone ? shadow : AdoptResult(result);
}

Shadow Recorder::TorchResult(FrameState&, FrameNote& note, const Event& e, PyObject* result) {
  if (aten_.pending) return Shadow();
  if (note.listed != nullptr) return ListElements(note, result);
  auto read_arguments = [&](bool strides) {
    for (int i = 0; i < e.n; ++i) ReadAllTensors(e.in[i], strides);
  };
  size_t made = node_count() - note.nodes_before;
  if (IsTensor(result)) {
    AtenRecorder::KnownTensor* known = aten_.Find(TensorOf(result));
    if (known == nullptr) throw Break{Reason::tensor_from_nowhere, ""};
    const bool is_plain = Py_TYPE(result) == Objects().tensor || Py_TYPE(result) == Objects().parameter;
    if (!known->source.valid() && !is_plain) {
      throw Break{Reason::tensor_subclass, Py_TYPE(result)->tp_name};  // given by the binding, past the dispatcher
    }
    if (known->value.valid() && TensorOf(result).requires_grad() &&
        !aten_.graph().value(known->value).type.requires_grad) {
      throw Break{Reason::tensor_attribute, "requires_grad=True"};  // set by the binding, past the dispatcher
    }
    bool is_argument = false;
    for (int i = 0; i < e.n; ++i) is_argument = is_argument || e.in[i] == result;
    bool wrote = made > 0 && aten_.graph().nodes.back().op && aten_.graph().nodes.back().op->schema().is_mutable();
    // No op, or an op that gave its argument back: the binding has looked at sizes, strides or dtype and decided.
    const bool has_decided = made == 0 || (is_argument && !wrote);
    if (has_decided ? !GivesBack(note, e, result) : !IsKnownToBeNew(note, e, *known)) read_arguments(true);
    return Shadow();
  }
  if (result == Py_None) return Shadow();
  if (IsOfNumPy(result)) throw Break{Reason::numpy_code, "an array that torch gives"};
  if (IsScalar(result) && made == 1 && aten_.graph().nodes.back().op &&
      FactsOf(*aten_.graph().nodes.back().op).scalar_from_data) {
    const Node& item = aten_.graph().nodes.back();
    const ValueId number = item.outputs[0];
    Shadow shadow{Shadow::Kind::kValue, number.raw()};
    if (item.args.size() == 1 && item.args[0].kind == Arg::Kind::kValue) {
      if (const auto term = IntInTensor(item.args[0].value)) shadow = term->shadow;
      if (shadow.kind == Shadow::Kind::kNone) return shadow;
    }
    const bool is_float = PyFloat_CheckExact(result);
    if (!note.marks.converts || is_float == (aten_.graph().value(number).type.kind == Type::Kind::kFloat))
      return shadow;
    return AddNumber(is_float ? ScalarOp::kFloatOf : ScalarOp::kIntOf, {{nullptr, shadow}});
  }
  if (IsScalar(result)) {
    // A fact of the arguments that is not their data: data would have been seen as an op.
    read_arguments(true);
    return Shadow();
  }
  // The number of tensors that a kernel in Python returns follows from its guarded reads.
  if ((PyTuple_Check(result) || PyList_Check(result)) && !note.marks.follows_kernel) {
    bool list_op = made == 0;
    for (size_t i = note.nodes_before; i < node_count(); ++i) {
      const Node& node = aten_.graph().nodes[i];
      if (!node.op || !FactsOf(*node.op).list_result) continue;
      list_op = true;
      RefuseUnknownLength(node);
    }
    if (list_op && made > 0 && sizes_open()) {
      for (size_t i = note.nodes_before; i < node_count(); ++i) {
        const Node& node = aten_.graph().nodes[i];
        if (node.op && FactsOf(*node.op).list_result) ReadListLength(node, e);
      }
    } else if (list_op) {
      read_arguments(made == 0);
    }
  }
  return AdoptResult(result);
}

}  // namespace frametap
