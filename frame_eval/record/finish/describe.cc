#include "frame_eval/record/finish/describe.h"

#include <algorithm>
#include <cstring>

#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/finish/describe_instances.h"
#include "frame_eval/record/finish/escapes.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/open_keys.h"
#include "frame_eval/record/objects/outside_containers.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/objects/variables.h"
#include "frame_eval/record/semantics/generators.h"
#include "frame_eval/record/semantics/observers.h"
#include "frame_eval/record/semantics/predicted_calls.h"
#include "frame_eval/record/trace/array_nodes.h"
#include "frame_eval/segment/new_objects.h"
#include "guards/cpython/deque_view.h"
#include "guards/cpython/iterator_view.h"
#include "guards/kinds/attention_switches.h"
#include "guards/objects/dict_items.h"
#include "guards/objects/dict_write.h"
#include "guards/objects/held_object.h"
#include "guards/objects/namespaces.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/value.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"
#include "ir/graph/eager_state.h"

namespace frametap {

static Operand DescribeFresh(Trace& trace, PyObject* object, const ObjectRecord& known);
namespace {

// A short text for a constant: equal for equal constants of any process.
std::string ConstantText(PyObject* object) {
  ErrScope keep;
  if (PyFunction_Check(object) || PyCFunction_Check(object) || Py_TYPE(object) == &PyMethodDescr_Type) {
    return CallableName(object);
  }
  if (PyType_Check(object)) return reinterpret_cast<PyTypeObject*>(object)->tp_name;
  if (Py_TYPE(object) == &PyMemberDescr_Type) {
    return std::string(PyDescr_TYPE(object)->tp_name) + "." + PyUnicode_AsUTF8(PyDescr_NAME(object));
  }
  if (PyModule_Check(object)) return ShortRepr(object);
  if (!IsScalar(object) && !PyTuple_CheckExact(object)) return std::string("<") + Py_TYPE(object)->tp_name + ">";
  Ref<> text = Ref<>::Steal(PyObject_Repr(object));
  if (!text) {
    PyErr_Clear();
    return "?";
  }
  return Shortened(PyUnicode_AsUTF8(text.get()), 60);
}

// Whether a set made of these elements one by one has them in the same order: that depends on what else was in it. (Of
// what is hashed by its address, no order is promised from one call to the next.) `hashes` as in HashesByCode, or empty.
bool KeepsItsOrder(PyObject* set, PyObject* hashes) {
  Ref<> again = Must(PySet_New(nullptr));
  Py_ssize_t at = 0, at_again = 0;
  PyObject *element, *other;
  Py_hash_t hash;
  if (hashes != nullptr) {
    const Ref<> keys = Must(PyDict_New());
    for (Py_ssize_t i = 0; _PySet_NextEntry(set, &at, &element, &hash); ++i) {
      if (!PutQuietly(keys.get(), element, Py_None, PyTuple_GET_ITEM(hashes, i))) throw std::bad_alloc();
    }
    again = Must(PySet_New(keys.get()));
  }
  while (hashes == nullptr && _PySet_NextEntry(set, &at, &element, &hash)) {
    if (!IsScalar(element)) return true;
    if (PySet_Add(again.get(), element) < 0) {
      PyErr_Clear();
      return false;
    }
  }
  at = 0;
  while (_PySet_NextEntry(set, &at, &element, &hash)) {
    if (!_PySet_NextEntry(again.get(), &at_again, &other, &hash) || other != element) return false;
  }
  return true;
}

// The parts from which __reduce__ would make the object again, described in turn.
bool IsReducible(PyObject* object) {
  for (PyTypeObject* const* type = Objects().reducible_types; *type != nullptr; ++type) {
    if (Py_TYPE(object) == *type) return true;
  }
  return false;
}

// To make an iterator again asks what it is over for an iterator, or for its length.
bool IsMadeOfPythonCode(PyObject* reduced) {
  PyObject* const parts = PyTuple_GET_SIZE(reduced) > 1 ? PyTuple_GET_ITEM(reduced, 1) : nullptr;
  for (Py_ssize_t i = 0; parts != nullptr && PyTuple_Check(parts) && i < PyTuple_GET_SIZE(parts); ++i) {
    PyObject* const part = PyTuple_GET_ITEM(parts, i);
    if ((Py_TYPE(part)->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0 && Py_TYPE(part)->tp_iter != nullptr) return true;
    if ((Py_TYPE(part)->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0 && Py_TYPE(part)->tp_as_sequence != nullptr &&
        Py_TYPE(part)->tp_as_sequence->sq_length != nullptr) {
      return true;
    }
  }
  return false;
}

}  // namespace

ConstId AddConstant(Trace& trace, PyObject* object) {
  auto [it, is_new] = trace.operands.constant_ids.try_emplace(object, ConstId(trace.operands.constants.size()));
  if (is_new) trace.operands.constants.push_back(Ref<>::New(object));
  return it->second;
}

Operand ConstantOperand(Trace& trace, PyObject* object) {
  Operand operand;
  operand.kind = Operand::Kind::kConst;
  operand.constant = AddConstant(trace, object);
  operand.text = ConstantText(object);
  return operand;
}

namespace {

// How many containers are being described, one in the other. All that handles operands calls itself for each level.
class Nesting {
 public:
  Nesting() { ++depth_; }
  ~Nesting() { --depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;
  bool too_deep() const { return depth_ > 200; }

 private:
  static thread_local inline int depth_ = 0;
};

}  // namespace

Operand Describe(Trace& trace, PyObject* object, Shadow shadow) {
  Operand operand;
  if (object == nullptr) return operand;
  const auto of_value = [&](ValueId value) {
    if (DescribedValues::current != nullptr) DescribedValues::current->objects.emplace_back(value, Ref<>::New(object));
    operand.kind = Operand::Kind::kValue;
    operand.value = value;
    return operand;
  };
  if (shadow.kind == Shadow::Kind::kValue) return of_value(ValueId(shadow.id));
  auto from_source = [&](SourceId id) {
    if (id.raw() >= trace.guards.mark().sources) throw Escapes(object);  // met in the part that was cut away
    operand.kind = Operand::Kind::kSource;
    operand.source = id;
    return operand;
  };
  if (shadow.kind == Shadow::Kind::kSource) return from_source(SourceId(shadow.id));
  if (IsScalar(object)) return ConstantOperand(trace, object);
  if (IsTensor(object)) {
    KnownTensor* known = trace.aten.tensors.Find(TensorOf(object));
    if (known == nullptr) throw Escapes(object);
    if (known->source.valid()) return from_source(known->source);
    // A replay wraps what the graph gives as a plain tensor.
    if (!known->value.valid() || Py_TYPE(object) != Objects().tensor) throw Escapes(object);
    // A view that is made in inference mode keeps `requires_grad`, and has no history. A result of AOTAutograd has neither.
    const at::Tensor& tensor = TensorOf(object);
    if (trace.store.backend().assumptions().static_sizes && tensor.is_view() && tensor.requires_grad() &&
        tensor.grad_fn() == nullptr) {
      throw Break{Reason::escaping_object, "a view made in inference mode that requires grad"};
    }
    return of_value(known->value);
  }
  ObjectRecord* known = trace.objects.Find(object);
  if (known != nullptr && known->state == ObjectRecord::State::kSource &&
      known->source.raw() >= trace.guards.mark().sources) {
    // Met first in the part that was cut away: its source is gone, or is by now another's.
    Forget(trace, object);
    known = nullptr;
  }
  if (known == nullptr) {
    if (PyFunction_Check(object) || PyType_Check(object) || PyModule_Check(object) || PyCFunction_Check(object) ||
        PyCode_Check(object) || Py_TYPE(object) == &PyMethodDescr_Type || Py_TYPE(object) == &PyWrapperDescr_Type ||
        IsConstantTuple(trace, object) || PyFrozenSet_CheckExact(object)) {
      return ConstantOperand(trace, object);
    }
    if (PyTuple_CheckExact(object) || PyMethod_Check(object)) {
      // Made to describe another object, or a method bound by an instruction that does not report it.
      TrackCreated(trace, object, true);
      known = trace.objects.Find(object);
    } else {
      throw Escapes(object);
    }
  }
  if (known->state == ObjectRecord::State::kSource) {
    // Programs that keep it see that two runs give one object.
    const bool is_shared = trace.guards.accessor(known->source) == Accessor::kPinned && IsMark(object);
    if (is_shared && !trace.frames.ends_with_break) throw Escapes(object);
    return from_source(known->source);
  }
  MeetAsObject(trace, object);
  if (IsArrayOperand(trace, object)) return of_value(ArrayValue(trace, object));
  if (trace.frames.ends_with_break && known->mutated_epoch >= trace.frames.cut.epoch) {
    throw Break{Reason::changed_during_call, Py_TYPE(object)->tp_name};
  }
  auto [it, is_new] = trace.operands.labels.try_emplace(object, -1);
  if (!is_new) {
    if (it->second < 0) throw Escapes(object);  // contains itself
    operand.kind = Operand::Kind::kShared;
    operand.index = it->second;
    return operand;
  }
  trace.operands.labelled.push_back(object);
  operand = DescribeFresh(trace, object, *known);
  if (operand.kind == Operand::Kind::kConst || operand.kind == Operand::Kind::kSource) {
    trace.operands.labels.erase(object);
    return operand;
  }
  operand.label = trace.operands.next_label++;
  trace.operands.labels[object] = operand.label;
  return operand;
}

static Operand DescribeFresh(Trace& trace, PyObject* object, const ObjectRecord& known) {
  const Nesting nesting;
  if (nesting.too_deep()) throw Break{Reason::escaping_object, "an object nested very deeply"};
  Operand operand;
  auto add = [&](PyObject* item, Shadow shadow) { operand.items.push_back(Describe(trace, item, shadow)); };
  auto item_shadow = [&](Py_ssize_t i) {
    return static_cast<size_t>(i) < known.items.size() ? known.items[static_cast<size_t>(i)] : Shadow();
  };
  if (PyTuple_CheckExact(object)) {
    operand.kind = Operand::Kind::kTuple;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) add(PyTuple_GET_ITEM(object, i), item_shadow(i));
    return operand;
  }
  if (PyList_CheckExact(object)) {
    operand.kind = Operand::Kind::kList;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(object); ++i) add(PyList_GET_ITEM(object, i), item_shadow(i));
    return operand;
  }
  if (PyDict_CheckExact(object)) {
    if (known.state == ObjectRecord::State::kOpaque) throw Escapes(object);
    operand = EmptyTable(trace, &PyDict_Type, object);
    for (const auto [key, value] : DictItems(object)) {
      add(key, KeyShadow(trace, object, key));
      add(value, ShadowOfItem(trace, object, key));
    }
    return operand;
  }
  if (const OpenKeys* const open = PyAnySet_CheckExact(object) ? known.open_keys.get() : nullptr; open != nullptr) {
    operand.kind = Operand::Kind::kSet;
    for (const auto& [key, shadow] : *open) add(key.get(), shadow);
    return operand;
  }
  if (PyAnySet_CheckExact(object)) {
    operand = EmptyTable(trace, Py_TYPE(object), object);
    Py_ssize_t at = 0;
    PyObject* item;
    Py_hash_t hash;
    while (_PySet_NextEntry(object, &at, &item, &hash)) add(item, Shadow());
    return operand;
  }
  if (PySlice_Check(object)) {
    auto* slice = reinterpret_cast<PySliceObject*>(object);
    operand.kind = Operand::Kind::kSlice;
    Py_ssize_t i = 0;
    for (PyObject* part : {slice->start, slice->stop, slice->step}) add(part, item_shadow(i++));
    return operand;
  }
  if (PyMethod_Check(object)) {
    operand.kind = Operand::Kind::kMethod;
    add(PyMethod_GET_FUNCTION(object), Shadow());
    add(PyMethod_GET_SELF(object), Shadow());
    return operand;
  }
  if (PyCell_Check(object)) {
    // The entry frame's own cell lives on in a resumed frame: a second one would not be shared with it.
    if (trace.frames.ends_with_break && std::find(trace.variables.base_cells.begin(), trace.variables.base_cells.end(),
                                                  object) != trace.variables.base_cells.end()) {
      PyObject** slot =
          std::find(trace.frames.base().objects, trace.frames.base().objects + trace.frames.base().nlocalsplus, object);
      if (slot == trace.frames.base().objects + trace.frames.base().nlocalsplus) throw Escapes(object);
      operand.kind = Operand::Kind::kSource;
      operand.source = CellSource(trace, trace.frames.base(), static_cast<int>(slot - trace.frames.base().objects));
      return operand;
    }
    if (known.state == ObjectRecord::State::kOpaque) throw Escapes(object);
    operand.kind = Operand::Kind::kCell;
    add(PyCell_GET(object), item_shadow(0));
    return operand;
  }
  if (PyFunction_Check(object)) {
    if (known.state != ObjectRecord::State::kOpaque) return ConstantOperand(trace, object);
    auto* function = reinterpret_cast<PyFunctionObject*>(object);
    operand.kind = Operand::Kind::kNew;
    operand.index = static_cast<int64_t>(NewKind::kFunction);
    operand.text = "function";
    operand.constant = AddConstant(trace, reinterpret_cast<PyObject*>(&PyFunction_Type));
    operand.items.push_back(ConstantOperand(trace, function->func_code));
    operand.items.push_back(ConstantOperand(trace, function->func_globals));
    add(function->func_qualname, Shadow());
    for (PyObject* part : {function->func_defaults, function->func_kwdefaults, function->func_closure}) {
      if (part != nullptr && trace.objects.Find(part) == nullptr) TrackCreated(trace, part, true);
      operand.items.push_back(part == nullptr ? ConstantOperand(trace, Py_None) : Describe(trace, part, Shadow()));
    }
    DescribeFunctionFields(trace, object, &operand);
    DescribeAttributes(trace, object, &operand);
    return operand;
  }
  if (PyCFunction_Check(object)) {
    PyObject* self = PyCFunction_GET_SELF(object);
    if (self == nullptr || PyModule_Check(self) || PyType_Check(self)) return ConstantOperand(trace, object);
    throw Escapes(object);
  }
  if (PyType_Check(object) || PyModule_Check(object) || PyCode_Check(object)) return ConstantOperand(trace, object);
  if (Py_TYPE(object) == Objects().partial) {
    operand.kind = Operand::Kind::kNew;
    operand.index = static_cast<int64_t>(NewKind::kPartial);
    operand.text = "partial";
    operand.constant = AddConstant(trace, reinterpret_cast<PyObject*>(Objects().partial));
    for (const char* part : {"func", "args", "keywords"}) {
      Ref<> value = Must(PyObject_GetAttrString(object, part));
      trace.operands.described.push_back(value);
      if (trace.objects.Find(value.get()) == nullptr) TrackCreated(trace, value.get(), true);
      add(value.get(), Shadow());
    }
    DescribeAttributes(trace, object, &operand);
    return operand;
  }
  if (PyRange_Check(object)) {  // the numbers that it was made of are fixed
    operand.kind = Operand::Kind::kNew;
    operand.index = static_cast<int64_t>(NewKind::kRange);
    operand.text = "range";
    operand.constant = AddConstant(trace, reinterpret_cast<PyObject*>(&PyRange_Type));
    for (const char* part : {"start", "stop", "step"}) {
      operand.items.push_back(ConstantOperand(trace, Must(PyObject_GetAttrString(object, part)).get()));
    }
    return operand;
  }
  if (IsDeque(object)) {
    operand.kind = Operand::Kind::kNew;
    operand.index = static_cast<int64_t>(NewKind::kDeque);
    operand.text = "deque";
    operand.constant = AddConstant(trace, reinterpret_cast<PyObject*>(DequeType()));
    Operand content;
    content.kind = Operand::Kind::kList;
    for (Py_ssize_t i = 0; i < DequeLength(object); ++i) {
      content.items.push_back(Describe(trace, DequeItem(object, i), Shadow()));
    }
    operand.items.push_back(std::move(content));
    operand.items.push_back(ConstantOperand(trace, Must(PyObject_GetAttrString(object, "maxlen")).get()));
    return operand;
  }
  if (IsMappingProxy(object)) {
    operand.kind = Operand::Kind::kNew;
    operand.index = static_cast<int64_t>(NewKind::kProxy);
    operand.text = "mappingproxy";
    operand.constant = AddConstant(trace, reinterpret_cast<PyObject*>(&PyDictProxy_Type));
    add(HeldObject(object), Shadow());
    return operand;
  }
  if (PyGen_CheckExact(object)) return DescribeGenerator(trace, object);
  if (IsNumPyNumber(object)) return ConstantOperand(trace, object);  // of fixed arguments, and never another
  if (PyObject* dict = IsOverDict(KindOfIterator(object)) ? IteratedOver(object, 0) : nullptr) {
    // Its __reduce__ returns a list.
    const ObjectRecord* content = trace.objects.Find(dict);
    const int64_t left = ItemsLeft(object);
    const bool is_changed = content == nullptr || (content->state == ObjectRecord::State::kSource && content->mutated);
    if (left < 0 || is_changed) throw Escapes(object);
    const IteratorKind kind = KindOfIterator(object);
    const char* view = kind == IteratorKind::kDictKeys     ? "keys"
                       : kind == IteratorKind::kDictValues ? "values"
                                                           : "items";
    operand.kind = Operand::Kind::kIter;
    operand.items.push_back(
        ConstantOperand(trace, Must(PyObject_GetAttrString(reinterpret_cast<PyObject*>(&PyDict_Type), view)).get()));
    add(dict, Shadow());
    operand.items.push_back(ConstantOperand(trace, Must(PyLong_FromLongLong(PyDict_GET_SIZE(dict) - left)).get()));
    return operand;
  }
  if (IsReducible(object)) {
    Ref<> reduced = Ref<>::Steal(PyObject_CallMethod(object, "__reduce__", nullptr));
    if (!reduced || !PyTuple_Check(reduced.get())) {
      PyErr_Clear();
      throw Escapes(object);
    }
    if (IsMadeOfPythonCode(reduced.get())) throw Escapes(object);
    trace.operands.described.push_back(reduced);
    operand.kind = Operand::Kind::kIter;
    TrackCreated(trace, reduced.get(), true);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(reduced.get()); ++i) add(PyTuple_GET_ITEM(reduced.get(), i), Shadow());
    return operand;
  }
  return DescribeInstance(trace, object);
}

// A dict, set or frozenset that is yet to be given its items.
Operand EmptyTable(Trace& trace, PyTypeObject* type, PyObject* table) {
  Operand operand;
  const Ref<> hashes = HashesByCode(table);
  if (!PyDict_Check(table) && !KeepsItsOrder(table, hashes.get())) throw Escapes(table);
  if (!hashes && type != &PyFrozenSet_Type) {
    operand.kind = type == &PyDict_Type ? Operand::Kind::kDict : Operand::Kind::kSet;
    return operand;
  }
  operand.kind = Operand::Kind::kNew;
  operand.index = static_cast<int64_t>(hashes ? NewKind::kHashed : NewKind::kFrozenSet);
  operand.text = type->tp_name;
  operand.constant = AddConstant(trace, reinterpret_cast<PyObject*>(type));
  if (hashes) operand.items.push_back(ConstantOperand(trace, hashes.get()));
  return operand;
}

void DescribeEffects(Trace& trace, SegmentIr* ir) {
  for (size_t at = 0; at < trace.effects.pending.size(); ++at) {
    const PendingEffect& pending = trace.effects.pending[at];
    Effect effect;
    effect.kind = pending.kind;
    effect.name = pending.name;
    effect.at = pending.at;
    PyObject* target = pending.target.get();
    if (pending.kind == Effect::Kind::kSetGlobal) {
      effect.target = ConstantOperand(trace, target);
      effect.target.text = "globals";
    } else {
      effect.target = Describe(trace, target, Shadow());
    }
    auto value = [&](size_t i) { return Describe(trace, pending.values[i].get(), pending.shadows[i]); };
    switch (pending.kind) {
      case Effect::Kind::kAdvance: {
        long times = 1;
        const auto goes_on = [&](const PendingEffect& next) {
          return next.kind == pending.kind && next.target.get() == target;
        };
        for (; at + 1 < trace.effects.pending.size() && goes_on(trace.effects.pending[at + 1]); ++at) ++times;
        effect.value = ConstantOperand(trace, Must(PyLong_FromLong(times)).get());
        break;
      }
      case Effect::Kind::kSetItem:
        effect.key = value(0);
        effect.value = value(1);
        break;
      case Effect::Kind::kDelItem:
        effect.key = value(0);
        break;
      case Effect::Kind::kDelAttr:
        break;
      case Effect::Kind::kCall:
      case Effect::Kind::kAsk:
      case Effect::Kind::kLookUp:
        effect.value.kind = Operand::Kind::kTuple;
        for (size_t i = 0; i < pending.values.size(); ++i) effect.value.items.push_back(value(i));
        break;
      default:
        effect.value = value(0);
    }
    ir->effects.push_back(std::move(effect));
  }
}

// Adds the calls that set the switches of attention as they are at the exit.
static void DescribeAttention(Trace& trace, const AttentionSwitches& at_exit, SegmentIr* ir) {
  static PyObject* const functions = Must(PyImport_ImportModule("torch._C")).Release();
  const AttentionSwitches at_entry = AttentionSwitches::FromBackends(trace.entry.backends);
  const auto set = [&](const char* name, bool before, bool after) {
    if (before == after) return;
    Effect effect;
    effect.kind = Effect::Kind::kCall;
    effect.name = name;
    effect.target = ConstantOperand(trace, functions);
    effect.value.kind = Operand::Kind::kTuple;
    effect.value.items.push_back(ConstantOperand(trace, after ? Py_True : Py_False));
    ir->effects.push_back(std::move(effect));
  };
  set("_set_sdp_use_flash", at_entry.flash, at_exit.flash);
  set("_set_sdp_use_math", at_entry.math, at_exit.math);
  set("_set_sdp_use_mem_efficient", at_entry.mem_efficient, at_exit.mem_efficient);
  set("_set_sdp_use_cudnn", at_entry.cudnn, at_exit.cudnn);
}

void DescribeState(Trace& trace, SegmentIr* ir) {
  // After a break, the thread's changes were taken back to the cut.
  EagerState now = trace.frames.ends_with_break ? trace.thread.state : CurrentEagerState();
  if (trace.thread.IsContextSet()) {
    throw Break{Reason::escaping_object, "a context variable that is set"};
  }
  auto add = [&](StateSwitch state, long value) {
    Effect effect;
    effect.kind = Effect::Kind::kState;
    effect.state = state;
    Ref<> number = Must(PyLong_FromLong(value));
    effect.value = ConstantOperand(trace, number.get());
    ir->effects.push_back(std::move(effect));
  };
  if (now.grad_mode != trace.entry.state.grad_mode) add(StateSwitch::kGradMode, now.grad_mode);
  if (now.autocast_cpu != trace.entry.state.autocast_cpu) add(StateSwitch::kAutocastCpu, now.autocast_cpu);
  if (now.autocast_cache != trace.entry.state.autocast_cache) add(StateSwitch::kAutocastCache, now.autocast_cache);
  if (now.autocast_cpu_dtype != trace.entry.state.autocast_cpu_dtype) {
    add(StateSwitch::kAutocastCpuDtype, static_cast<long>(now.autocast_cpu_dtype));
  }
  if (trace.thread.autocast_nesting != 0) add(StateSwitch::kAutocastNesting, trace.thread.autocast_nesting);
  const uint16_t backends = trace.frames.ends_with_break ? trace.thread.backends : WorldState::BackendsNow();
  if (((backends ^ trace.entry.backends) & ~kAttentionInBackends) != 0) {
    throw Break{Reason::escaping_object, "a switch of torch.backends"};
  }
  DescribeAttention(trace, AttentionSwitches::FromBackends(backends), ir);
  if (now.inference_mode != trace.entry.state.inference_mode) throw Break{Reason::escaping_object, "inference mode"};
}

// A null operand if it cannot be made again: nothing is left of the attempt.
static Operand DescribeIfPossible(Trace& trace, PyObject* object, Shadow shadow) {
  const size_t before = trace.operands.labelled.size();
  try {
    return Describe(trace, object, shadow);
  } catch (const Break&) {
    for (; trace.operands.labelled.size() > before; trace.operands.labelled.pop_back())
      trace.operands.labels.erase(trace.operands.labelled.back());
    return Operand();
  }
}

// `strict`: what no instruction reads must be made again too.
SnapshotFrame DescribeFrame(Trace& trace, FrameState& f, const Mark& mark, bool strict) {
  SnapshotFrame frame;
  Position at = PositionAt(f.code, mark.offset);
  frame.function = at.function;
  frame.line = at.line;
  frame.offset = mark.offset;
  const int parameters = ParameterCount(f.code);
  // For the base frame only: other frames are made again.
  auto at_entry = [&](int slot) {
    const auto has_slot = [slot](const auto& one) { return one.first == slot; };
    return trace.frames.is_base(f)
               ? std::find_if(trace.frames.bound_at_entry.begin(), trace.frames.bound_at_entry.end(), has_slot)
               : trace.frames.bound_at_entry.end();
  };
  auto bound_at_start = [&](int slot) {
    return trace.frames.is_base(f) ? at_entry(slot) != trace.frames.bound_at_entry.end() : slot < parameters;
  };
  auto is_as_at_entry = [&](int slot) {
    const auto entry = at_entry(slot);
    const Shadow& shadow = f.shadows[slot];
    const SourceId now = shadow.kind == Shadow::Kind::kSource ? SourceId(shadow.id) : SourceOf(trace, f.objects[slot]);
    return entry != trace.frames.bound_at_entry.end() && now.valid() && entry->second == now;
  };
  std::vector<bool> live = LiveLocals(f.code, mark.offset);
  if (strict) live.assign(live.size(), true);
  for (int i = 0; i < f.nlocalsplus; ++i) {
    SlotKind kind = KindOfSlot(f.code, i);
    if (kind == SlotKind::kLocal && f.objects[i] == nullptr && bound_at_start(i)) {
      // Deleted by the trace: what it held must not live on.
      frame.locals.emplace_back(PyUnicode_AsUTF8(SlotName(f.code, i)), Operand());
      frame.slots.push_back(i);
      continue;
    }
    PyObject* object = f.objects[i];
    if (f.shadows[i].kind == Shadow::Kind::kUnread) continue;  // it stays
    if (kind == SlotKind::kFree) continue;
    if (kind == SlotKind::kLocal && !live[static_cast<size_t>(i)] && object != nullptr) {
      if (is_as_at_entry(i)) continue;
      // No instruction reads it, but a traceback shows it, and what it holds may end with it.
      frame.locals.emplace_back(PyUnicode_AsUTF8(SlotName(f.code, i)), DescribeIfPossible(trace, object, f.shadows[i]));
      frame.slots.push_back(i);
      continue;
    }
    ShareCell(trace, f, i);
    Shadow shadow = f.shadows[i];
    if (kind == SlotKind::kCell && trace.frames.is_base(f)) {
      if (object == nullptr || !PyCell_Check(object)) continue;
      ObjectRecord* cell = trace.objects.Find(object);
      if (cell == nullptr || cell->epoch >= trace.frames.cut.epoch)
        continue;  // neither read nor written before the cut
      if (cell->state == ObjectRecord::State::kSource && cell->items.empty()) continue;  // nothing was stored: it stays
      if (cell->mutated_epoch >= trace.frames.cut.epoch)
        throw Break{Reason::changed_during_call, "a variable of a closure"};
      shadow = cell->items.empty() ? Shadow() : cell->items[0];
      object = PyCell_GET(object);
    } else if (object == nullptr) {
      continue;  // unbound: left as it is
    }
    frame.locals.emplace_back(PyUnicode_AsUTF8(SlotName(f.code, i)), Describe(trace, object, shadow));
    frame.slots.push_back(i);
  }
  for (int i = 0; i < mark.depth; ++i) {
    frame.stack.push_back(Describe(trace, f.objects[f.nlocalsplus + i], f.shadows[f.nlocalsplus + i]));
  }
  return frame;
}

}  // namespace frametap
