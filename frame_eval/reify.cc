#include "frame_eval/reify.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "absl/hash/hash.h"
#include "frame_eval/aten_recorder.h"
#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/faults.h"
#include "frame_eval/graph_inputs.h"
#include "frame_eval/hook.h"
#include "frame_eval/known_objects.h"
#include "frame_eval/namespaces.h"
#include "frame_eval/quiet.h"
#include "frame_eval/rollback.h"
#include "frame_eval/self_check.h"
#include "frame_eval/session.h"
#include "frame_eval/stress.h"
#include "guards/kept_warnings.h"
#include "guards/tensor_door.h"
#include "guards/thread_end.h"
#include "guards/watch.h"
#include "ir/ops/below_autograd.h"
#include "ir/ops/scalar.h"

namespace frametap {
namespace {

// Takes so many items from an iterator of C, or what is left in it.
bool Advance(PyObject* iterator, PyObject* times) {
  for (long n = PyLong_AsLong(times); n > 0; --n) {
    const Ref<> item = Ref<>::Steal(Py_TYPE(iterator)->tp_iternext(iterator));
    if (item) continue;
    if (PyErr_Occurred() != nullptr) {
      if (!PyErr_ExceptionMatches(PyExc_StopIteration)) return false;
      PyErr_Clear();
    }
  }
  return true;
}

// A set with these elements; null with an exception.
Ref<> Filled(Ref<> set, const std::vector<Ref<>>& items) {
  for (const Ref<>& item : items) {
    if (!set || PySet_Add(set.get(), item.get()) < 0) return Ref<>();
  }
  return set;
}

PyTypeObject* BuiltinOf(PyObject* container) {
  if (PyList_Check(container)) return &PyList_Type;
  if (PyDict_Check(container)) return PyODict_Check(container) ? &PyODict_Type : &PyDict_Type;
  return PySet_Check(container) ? &PySet_Type : nullptr;
}

}  // namespace

Ref<> EffectMethod(PyObject* target, PyObject* name) {
  PyTypeObject* const builtin = BuiltinOf(target);
  if (builtin == nullptr || Py_TYPE(target) == builtin) return Ref<>::Steal(PyObject_GetAttr(target, name));
  PyObject* const method = _PyType_Lookup(builtin, name);
  if (method != nullptr && Py_TYPE(method)->tp_descr_get != nullptr) {
    return Ref<>::Steal(Py_TYPE(method)->tp_descr_get(method, target, reinterpret_cast<PyObject*>(Py_TYPE(target))));
  }
  PyErr_SetObject(PyExc_AttributeError, name);
  return Ref<>();
}

Reifier::Reifier(const Segment& segment) : segment_(segment) {
  sources_.reserve(segment.operand_sources.size());
  for (SourceId source : segment.operand_sources) {
    sources_.push_back(segment.guards->IsNumber(source)
                           ? Ref<>::Steal(PyLong_FromLongLong(segment.guards->Number(source)))
                           : Ref<>::New(segment.guards->Object(source)));
  }
}

Ref<> Reifier::FromValue(ValueId id) {
  const std::vector<ValueId>& ids = segment_.ir.graph.outputs;
  const c10::IValue& value = outputs_[static_cast<size_t>(std::find(ids.begin(), ids.end(), id) - ids.begin())];
  if (value.isTensor()) return Ref<>::Steal(WrapTensor(value.toTensor()));
  if (value.isInt() || value.isDouble()) {
    Ref<>& number = numbers_[id.raw()];
    if (!number) {
      number = Ref<>::Steal(value.isInt() ? PyLong_FromLongLong(value.toInt()) : PyFloat_FromDouble(value.toDouble()));
    }
    return number;
  }
  if (value.isBool()) return Ref<>::New(value.toBool() ? Py_True : Py_False);
  if (value.isNone()) return Ref<>::New(Py_None);
  if (value.isPyObject()) return Ref<>::New(value.toPyObject());
  PyErr_SetString(PyExc_SystemError, "frametap: a graph gave a value of an unknown kind");
  return Ref<>();
}

bool Reifier::Fill(const Operand& operand, size_t first, std::vector<Ref<>>* items) {
  for (size_t i = first; i < operand.items.size(); ++i) {
    items->push_back(Make(operand.items[i]));
    if (!items->back() && PyErr_Occurred()) return false;
  }
  return true;
}

// A dict, set or frozenset of keys whose own code is not asked for their hashes again.
static Ref<> MakeHashed(PyTypeObject* type, const std::vector<Ref<>>& items) {
  PyObject* const hashes = items[0].get();
  const bool is_dict = type == &PyDict_Type;
  Ref<> dict = Ref<>::Steal(PyDict_New());
  for (Py_ssize_t i = 0; dict && i < PyTuple_GET_SIZE(hashes); ++i) {
    const auto at = static_cast<size_t>(is_dict ? 1 + 2 * i : 1 + i);
    PyObject* const value = is_dict ? items[at + 1].get() : Py_None;
    if (!PutQuietly(dict.get(), items[at].get(), value, PyTuple_GET_ITEM(hashes, i))) return Ref<>();
  }
  if (!dict || is_dict) return dict;
  // A set takes over the hashes of a dict.
  return Ref<>::Steal(type == &PySet_Type ? PySet_New(dict.get()) : PyFrozenSet_New(dict.get()));
}

// The instance's own entry, whatever stands for the name in its class: what a property or __setattr__ does has been done.
static bool SetOwn(PyObject* object, PyObject* name, PyObject* value) {
  PyObject* const descriptor = _PyType_Lookup(Py_TYPE(object), name);
  const bool is_data = descriptor != nullptr && Py_TYPE(descriptor)->tp_descr_set != nullptr;
  if (!is_data || PyFunction_Check(object)) return PyObject_GenericSetAttr(object, name, value) == 0;  // or a field
  PyObject** const dict = _PyObject_GetDictPtr(object);
  if (dict == nullptr) {
    PyErr_SetObject(PyExc_AttributeError, name);
    return false;
  }
  if (*dict == nullptr && (*dict = PyDict_New()) == nullptr) return false;
  return PyDict_SetItem(*dict, name, value) == 0;
}

Ref<> Reifier::MakeNew(const Operand& operand) {
  auto* type = reinterpret_cast<PyTypeObject*>(segment_.constants[operand.constant.raw()].get());
  std::vector<Ref<>> items;
  if (!Fill(operand, 0, &items)) return Ref<>();
  Ref<> object;
  Ref<> none = Ref<>::Steal(PyTuple_New(0));
  std::optional<size_t> slots_from;  // where the slots begin among `items`, in an instance of a Python class
  switch (static_cast<NewKind>(operand.index)) {
    case NewKind::kFunction: {
      object = Ref<>::Steal(PyFunction_NewWithQualName(items[0].get(), items[1].get(), items[2].get()));
      if (!object) return object;
      bool ok = PyFunction_SetDefaults(object.get(), items[3].get()) == 0 &&
                PyFunction_SetKwDefaults(object.get(), items[4].get()) == 0 &&
                PyFunction_SetClosure(object.get(), items[5].get()) == 0;
      if (!ok) return Ref<>();
      break;
    }
    case NewKind::kPartial: {
      Ref<> args = Ref<>::Steal(PyTuple_New(PyTuple_GET_SIZE(items[1].get()) + 1));
      if (!args) return args;
      PyTuple_SET_ITEM(args.get(), 0, Ref<>(items[0]).Release());
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items[1].get()); ++i) {
        PyTuple_SET_ITEM(args.get(), i + 1, Ref<>::New(PyTuple_GET_ITEM(items[1].get(), i)).Release());
      }
      object = Ref<>::Steal(PyObject_Call(reinterpret_cast<PyObject*>(type), args.get(), items[2].get()));
      break;
    }
    case NewKind::kRange:
      return Ref<>::Steal(PyObject_CallFunctionObjArgs(reinterpret_cast<PyObject*>(type), items[0].get(),
                                                       items[1].get(), items[2].get(), nullptr));
    case NewKind::kHashed:
      return MakeHashed(type, items);
    case NewKind::kFrozenSet:
      return Filled(Ref<>::Steal(PyFrozenSet_New(nullptr)), items);  // a new object takes elements
    case NewKind::kDeque:
      return Ref<>::Steal(
          PyObject_CallFunctionObjArgs(reinterpret_cast<PyObject*>(type), items[0].get(), items[1].get(), nullptr));
    case NewKind::kProxy:
      return Ref<>::Steal(PyDictProxy_New(items[0].get()));
    case NewKind::kTuple: {
      if (type->tp_new == PyTuple_Type.tp_new || (type->tp_flags & Py_TPFLAGS_HEAPTYPE)) {
        Ref<> args = Ref<>::Steal(PyTuple_Pack(1, items[0].get()));
        if (!args) return args;
        object = Ref<>::Steal(PyTuple_Type.tp_new(type, args.get(), nullptr));
      } else {
        object = Ref<>::Steal(PyObject_CallOneArg(reinterpret_cast<PyObject*>(type), items[0].get()));
      }
      slots_from = 1;
      break;
    }
    case NewKind::kDict: {
      // The base's own __new__ and store, past any of the class. An OrderedDict keeps its order beside the table.
      const bool is_ordered = PyType_IsSubtype(type, Objects().ordered_dict);
      const PyTypeObject& base = is_ordered ? *Objects().ordered_dict : PyDict_Type;
      object = Ref<>::Steal(base.tp_new(type, none.get(), nullptr));
      if (!object) return object;
      Py_ssize_t at = 0;
      PyObject *key, *value;
      Py_hash_t hash;
      while (_PyDict_Next(items[0].get(), &at, &key, &value, &hash)) {
        const int status = is_ordered ? base.tp_as_mapping->mp_ass_subscript(object.get(), key, value)
                                      : _PyDict_SetItem_KnownHash(object.get(), key, value, hash);
        if (status < 0) return Ref<>();
      }
      slots_from = 1;
      break;
    }
    case NewKind::kObject:
      object = Ref<>::Steal((type == NamespaceType() ? type : &PyBaseObject_Type)->tp_new(type, none.get(), nullptr));
      slots_from = 0;
      break;
  }
  if (!object) return object;
  const size_t first = items.size() - operand.names.size();
  for (size_t i = slots_from.value_or(first); i + 1 < first; i += 2) {
    PyObject* const slot = items[i].get();
    if (Py_TYPE(slot)->tp_descr_set(slot, object.get(), items[i + 1].get()) < 0) return Ref<>();
  }
  for (size_t i = 0; i < operand.names.size(); ++i) {
    Ref<> name = Ref<>::Steal(PyUnicode_InternFromString(operand.names[i].c_str()));
    if (!name || !SetOwn(object.get(), name.get(), items[first + i].get())) return Ref<>();
  }
  return object;
}

// Called with arguments that are not read: its frame is filled afterwards, at once or by the exit that goes through
// it.
Ref<> Reifier::MakeGenerator(const Operand& operand) {
  const Ref<> function = Make(operand.items[0]);
  if (!function) return Ref<>();
  auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function.get()));
  const Ref<> args = Ref<>::Steal(PyTuple_New(code->co_argcount)), named = Ref<>::Steal(PyDict_New());
  if (!args || !named) return Ref<>();
  for (int i = 0; i < code->co_argcount; ++i) PyTuple_SET_ITEM(args.get(), i, Ref<>::New(Py_None).Release());
  for (int i = code->co_argcount; i < code->co_argcount + code->co_kwonlyargcount; ++i) {
    if (PyDict_SetItem(named.get(), SlotName(code, i), Py_None) < 0) return Ref<>();
  }
  Ref<> generator = Ref<>::Steal(PyObject_Call(function.get(), args.get(), named.get()));
  if (!generator) return generator;
  UnbindLocals(generator.get());
  if (operand.frame.empty()) return generator;
  const SnapshotFrame& frame = operand.frame[0];
  if (frame.is_over()) {
    return Ref<>::Steal(PyObject_CallMethod(generator.get(), "close", nullptr)) ? generator : Ref<>();
  }
  FrameContent content;
  if (!MakeContent(frame, &content)) return Ref<>();
  PutIntoGenerator(generator.get(), frame.offset, frame.slots, std::move(content.locals), std::move(content.stack));
  return generator;
}

bool Reifier::MakeContent(const SnapshotFrame& frame, FrameContent* content) {
  const auto make = [this](const Operand& operand, std::vector<Ref<>>* into) {
    into->push_back(Make(operand));
    return PyErr_Occurred() == nullptr;
  };
  content->locals.reserve(frame.locals.size());
  content->stack.reserve(frame.stack.size());
  for (const auto& [name, operand] : frame.locals) {
    if (!make(operand, &content->locals)) return false;
  }
  for (const Operand& operand : frame.stack) {
    if (!make(operand, &content->stack)) return false;
  }
  return true;
}

Ref<> Reifier::Make(const Operand& operand) {
  Ref<> object;
  std::vector<Ref<>> items;
  switch (operand.kind) {
    case Operand::Kind::kNull:
      return Ref<>();
    case Operand::Kind::kValue:
      return FromValue(operand.value);
    case Operand::Kind::kConst:
      return segment_.constants[operand.constant.raw()];
    case Operand::Kind::kShared:
      return shared_[operand.index];
    case Operand::Kind::kSource: {
      const std::vector<SourceId>& ids = segment_.operand_sources;
      return sources_[static_cast<size_t>(std::find(ids.begin(), ids.end(), operand.source) - ids.begin())];
    }
    case Operand::Kind::kNew:
      object = MakeNew(operand);
      break;
    case Operand::Kind::kGenerator:
      object = MakeGenerator(operand);
      break;
    default:
      break;
  }
  const bool is_made = operand.kind == Operand::Kind::kNew || operand.kind == Operand::Kind::kGenerator;
  if (!is_made && !Fill(operand, 0, &items)) return Ref<>();
  switch (operand.kind) {
    case Operand::Kind::kTuple:
    case Operand::Kind::kList: {
      bool tuple = operand.kind == Operand::Kind::kTuple;
      auto size = static_cast<Py_ssize_t>(items.size());
      object = Ref<>::Steal(tuple ? PyTuple_New(size) : PyList_New(size));
      for (Py_ssize_t i = 0; object && i < size; ++i) {
        PyObject* item = items[static_cast<size_t>(i)].Release();
        if (tuple)
          PyTuple_SET_ITEM(object.get(), i, item);
        else
          PyList_SET_ITEM(object.get(), i, item);
      }
      break;
    }
    case Operand::Kind::kDict:
      object = Ref<>::Steal(PyDict_New());
      for (size_t i = 0; object && i + 1 < items.size(); i += 2) {
        if (PyDict_SetItem(object.get(), items[i].get(), items[i + 1].get()) < 0) return Ref<>();
      }
      break;
    case Operand::Kind::kSet:
      object = Filled(Ref<>::Steal(PySet_New(nullptr)), items);
      break;
    case Operand::Kind::kSlice:
      object = Ref<>::Steal(PySlice_New(items[0].get(), items[1].get(), items[2].get()));
      break;
    case Operand::Kind::kMethod:
      object = Ref<>::Steal(PyMethod_New(items[0].get(), items[1].get()));
      break;
    case Operand::Kind::kCell:
      object = Ref<>::Steal(PyCell_New(items.empty() ? nullptr : items[0].get()));
      break;
    case Operand::Kind::kIter:
      if (PyDict_Check(items[1].get())) {
        Ref<> view = Ref<>::Steal(PyObject_CallOneArg(items[0].get(), items[1].get()));
        object = view ? Ref<>::Steal(PyObject_GetIter(view.get())) : Ref<>();
        if (object && !Advance(object.get(), items[2].get())) return Ref<>();
        break;
      }
      object = Ref<>::Steal(PyObject_CallObject(items[0].get(), items[1].get()));
      if (object && items.size() > 2 && items[2].get() != Py_None) states_.emplace_back(object, items[2]);
      break;
    default:
      break;
  }
  if (object && operand.label >= 0) shared_[operand.label] = object;
  return object;
}

bool Reifier::Prepare() {
  // An operand may be absent, so that null says nothing. None is made with an exception pending.
  const auto make = [this](const Operand& operand, Ref<>* into) {
    *into = Make(operand);
    return PyErr_Occurred() == nullptr;
  };
  for (const Effect& effect : segment_.ir.effects) {
    Made made;
    const bool is_made = make(effect.target, &made.target) && make(effect.key, &made.key) &&
                         make(effect.value, &made.value) && MakeContent(effect.frame, &made.content);
    if (!is_made) return false;
    effects_.push_back(std::move(made));
  }
  return true;
}

const SnapshotFrame* Reifier::TakeYield(const _PyInterpreterFrame* of, FrameContent* content) {
  for (size_t i = 0; i < effects_.size(); ++i) {
    const Effect& effect = segment_.ir.effects[i];
    if (effect.kind != Effect::Kind::kYield || FrameOfGenerator(effects_[i].target.get()) != of) continue;
    *content = std::move(effects_[i].content);
    return &effect.frame;
  }
  return nullptr;
}

bool Reifier::Commit() {
  for (size_t i = 0; i < effects_.size(); ++i) {
    const Effect& effect = segment_.ir.effects[i];
    PyObject* target = effects_[i].target.get();
    PyObject* key = effects_[i].key.get();
    PyObject* value = effects_[i].value.get();
    PyObject* name = segment_.effect_names[i].get();
    int status = 0;
    switch (effect.kind) {
      case Effect::Kind::kSetAttr:
      case Effect::Kind::kDelAttr:
        status = PyObject_GenericSetAttr(target, name, value);
        break;
      case Effect::Kind::kSetItem:
        if (PyDict_Check(target) && StoresByIdentity(target, key)) {
          status = StoreByIdentity(target, key, value) ? 0 : -1;
        } else {
          status = PyObject_SetItem(target, key, value);
        }
        break;
      case Effect::Kind::kDelItem:
        status = PyObject_DelItem(target, key);
        break;
      case Effect::Kind::kSetGlobal:
        status = PyDict_SetItem(target, name, value);
        break;
      case Effect::Kind::kSetCell:
        status = PyCell_Set(target, value);
        break;
      case Effect::Kind::kAppend:
        status = PyList_Append(target, value);
        break;
      case Effect::Kind::kExtend:
      case Effect::Kind::kCall: {
        Ref<> method = EffectMethod(target, name);
        Ref<> done = method ? Ref<>::Steal(PyObject_CallObject(method.get(), value)) : Ref<>();
        status = done ? 0 : -1;
        break;
      }
      case Effect::Kind::kYield: {
        if (IsRunning(target)) break;  // the session leaves it
        FrameContent& content = effects_[i].content;
        PutIntoGenerator(target, effect.frame.offset, effect.frame.slots, std::move(content.locals),
                         std::move(content.stack));
        break;
      }
      case Effect::Kind::kAdvance:
        status = Advance(target, value) ? 0 : -1;
        break;
      case Effect::Kind::kState: {
        long number = PyLong_AsLong(value);
        if (effect.name == "grad_mode") c10::GradMode::set_enabled(number != 0);
        if (effect.name == "autocast_cpu") at::autocast::set_autocast_enabled(at::kCPU, number != 0);
        if (effect.name == "autocast_cache") at::autocast::set_autocast_cache_enabled(number != 0);
        if (effect.name == "autocast_cpu_dtype") {
          at::autocast::set_autocast_dtype(at::kCPU, static_cast<at::ScalarType>(number));
        }
        for (long n = 0; effect.name == "autocast_nesting" && n < number; ++n) at::autocast::increment_nesting();
        for (long n = 0; effect.name == "autocast_nesting" && n > number; --n) {
          if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
        }
        break;
      }
    }
    if (status < 0) return false;
  }
  for (const auto& [iterator, state] : states_) {
    if (!Ref<>::Steal(PyObject_CallMethod(iterator.get(), "__setstate__", "(O)", state.get()))) return false;
  }
  return true;
}

// The set of their names may be as large as before with other names in it. But they are registered with a
// torch.library.Library, and each new one leaves a finaliser.
void NotePythonKernels() {
  NoteKernels(absl::HashOf(PySet_GET_SIZE(Objects().python_kernels), DictVersion(Objects().finalizers)));
}

GuardLine DecisionLine(Segment& segment, size_t i) {
  const Decisions& decisions = segment.Shown().decisions;
  const Graph& graph = decisions.graph;
  GuardLine line;
  ValueId value = graph.outputs[i];
  if (NodeId def = graph.value(value).def; def.valid() && graph.node(def).where) {
    line.why = graph.node(def).where->position;
  }
  while (graph.value(value).def.valid()) {
    ValueId first;
    ForEachUse(graph.node(graph.value(value).def).args, [&](ValueId use) {
      if (!first.valid()) first = use;
    });
    if (!first.valid()) break;
    value = first;
  }
  line.source = decisions.sources.empty() ? SourceId() : decisions.sources[0];
  for (size_t k = 0; k < graph.inputs.size(); ++k) {
    if (graph.inputs[k] == value) line.source = decisions.sources[k];
  }
  line.predicate = decisions.outcomes[i] ? "branch on its elements is True" : "branch on its elements is False";
  return line;
}

bool DecisionsHold(Segment& segment, MissReport* miss) {
  if (segment.decisions == nullptr) return true;
  const Decisions& decisions = segment.ir.decisions;
  std::vector<c10::IValue> inputs(decisions.sources.size()), outputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (GatherInput(*segment.guards, decisions.sources[i], &inputs[i])) continue;
    PyErr_Clear();
    return false;
  }
  try {
    AtenPause uncounted;  // ops that the program has yet to come to
    NotePythonKernels();
    // With Python's lock: the guards' registers hold until Python code runs.
    outputs = segment.decisions->Run(inputs);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].toTensor().is_nonzero() == decisions.outcomes[i]) continue;
      if (miss != nullptr) {
        const GuardLine line = DecisionLine(segment, i);
        if (line.source.valid()) miss->source = segment.Shown().sources.Name(line.source);
        miss->want = line.predicate;
        miss->got = decisions.outcomes[i] ? "False" : "True";
        miss->why = "the elements of the tensor differ";
        miss->line = line.why;
      }
      return false;
    }
    return true;
  } catch (const abi::__forced_unwind&) {
    WaitForProcessEnd();
  } catch (...) {
    return false;  // the recording raises the exception where the program does
  }
}

namespace {

// A segment that ends in a block of autocast continues with the casts of the run: the cache is not emptied between
// them.
class KeptAutocastCache {
 public:
  explicit KeptAutocastCache(const SegmentIr& ir) {
    if (ir.graph.states.size() == 1) return;
    for (const Effect& effect : ir.effects) {
      keeps_ = keeps_ || (effect.kind == Effect::Kind::kState && effect.name == "autocast_nesting");
    }
    if (keeps_) at::autocast::increment_nesting();
  }
  ~KeptAutocastCache() {
    if (keeps_ && at::autocast::decrement_nesting() == 0 && !succeeded_) at::autocast::clear_cache();
  }
  KeptAutocastCache(const KeptAutocastCache&) = delete;
  KeptAutocastCache& operator=(const KeptAutocastCache&) = delete;
  void Succeeded() { succeeded_ = true; }

 private:
  bool keeps_ = false;
  bool succeeded_ = false;
};

// How a run ended that the pending exception has ended. `take_back`: undoes what it has changed; false if that cannot be.
Ran EndOfRaised(const Segment& segment, GraphInputs& inputs, const Rollback& rollback,
                const std::function<bool()>& take_back) {
  const bool is_undone = take_back();
  // An interruption of the program (Ctrl-C in an op that is Python code) is not raised a second time.
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return Ran::kRaised;
  if (inputs.executable().runs_recorded_ops()) return is_undone ? Ran::kOpRaised : Ran::kRaised;
  // Its result differs from the graph: a fault of the backend, not of a call. But a backend that compiles for the sizes of
  // this call cannot do so where the program's own ops raise.
  if (Errors().backend != nullptr && PyErr_ExceptionMatches(Errors().backend)) {
    if (!is_undone || Armed(Fault::kRaise) || !RunsOnlyOpsOfTorch(segment)) return Ran::kRaised;
    const bool is_of_program = RecordedOpsRaise(segment, inputs.values());
    return take_back() && is_of_program ? Ran::kUndone : Ran::kRaised;
  }
  const bool may_be_fault = MayBeFault() && !Armed(Fault::kRaise) && RunsOnlyOpsOfTorch(segment);
  if (!may_be_fault) return is_undone ? Ran::kUndone : Ran::kRaised;
  if (!is_undone) return rollback.ops_cannot_raise() ? Ran::kBroken : Ran::kRaised;
  const bool is_of_program = RecordedOpsRaise(segment, inputs.values());
  if (!take_back()) return Ran::kRaised;
  return is_of_program ? Ran::kUndone : Ran::kFault;
}

}  // namespace

Ran RunGraph(Segment& segment, std::vector<c10::IValue>* outputs) {
  if (segment.given_up) return Ran::kUndone;
  GraphInputs inputs(segment);
  if (!inputs.Gather()) return Ran::kUndone;
  if (SelfChecking() && !inputs.AreRight()) {
    PyErr_SetString(PyExc_SystemError, "frametap self-check: a weight of the graph is another one");
    return Ran::kRaised;
  }
  const uint64_t places = PlacesPassed();
  const bool is_struck = Armed(Fault::kRaise) && PlacesToStrike() <= segment.ops_met;
  std::optional<AtenPause> uncounted;
  // A session leaves frames of kernels in Python alone, as it does below a recorded op.
  const bool runs_kernels = !segment.kernels.empty() && !Armed(Fault::kRaise);
  if ((Armed(Fault::kRaise) && !is_struck) || runs_kernels) uncounted.emplace();
  Rollback rollback(segment, inputs.values());
  if (rollback.is_refused()) return Ran::kRefused;
  bool changed = false;
  KeptWarnings warnings;
  const auto may_restart = [&] {
    const ErrScope keep;
    const bool is_undone = segment.restartable || !changed || rollback.TakeBack();
    if (is_undone && Armed(Fault::kRaise)) SetPlacesPassed(places);
    return is_undone;
  };
  NotePythonKernels();
  KeptAutocastCache casts(segment.ir);
  try {
    AllocZone outside(false);
    std::optional<c10::WarningUtils::WarningHandlerGuard> keep(&warnings);
    Executable& executable = inputs.executable();
    if (executable.releases_gil()) {
      // The thread's own state goes with it: nothing of Python is touched until the lock is back.
      const UnlockedToThreadEnd unlocked;
      *outputs = executable.Run(inputs.values(), &changed);
    } else {
      HookPause pause;  // the executable's own Python code is not the program's
      *outputs = executable.Run(inputs.values(), &changed);
    }
    TORCH_CHECK(!is_struck, "forced at an op that is not in the graph");
    if (Armed(Fault::kRaise)) SetPlacesPassed(places + segment.ops_met);
    rollback.Succeeded();
    casts.Succeeded();
    keep.reset();
    if (warnings.empty()) return Ran::kThrough;
    HookPause pause;  // as below a binding
    if (warnings.TellPython()) return Ran::kThrough;
    return may_restart() ? Ran::kUndone : Ran::kRaised;
  } catch (const abi::__forced_unwind&) {
    WaitForProcessEnd();
  } catch (...) {
    bool is_of_graph = false;
    try {
      throw;
    } catch (const AssumptionFails&) {
      segment.refuted = is_of_graph = true;
    } catch (const IntOverflow&) {  // Python's numbers have no such limit
      is_of_graph = true;
    } catch (...) {
    }
    SetPythonErrorFromException();
    if (!is_of_graph) return EndOfRaised(segment, inputs, rollback, may_restart);
    return may_restart() ? Ran::kUndone : Ran::kRaised;
  }
}

}  // namespace frametap
