#include "frame_eval/replay/reify.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "absl/hash/hash.h"
#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/replay/commit.h"
#include "frame_eval/replay/faults.h"
#include "frame_eval/segment/graph_inputs.h"
#include "frame_eval/segment/new_objects.h"
#include "guards/objects/dict_write.h"
#include "guards/objects/namespaces.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"
#include "ir/dcheck.h"
#include "ir/graph/builtin_op.h"

namespace frametap {
namespace {

// Freeze has put every value and source that an operand names into these lists.
template <class Id>
size_t IndexOf(const std::vector<Id>& ids, Id id) {
  const auto at = std::find(ids.begin(), ids.end(), id);
  FT_DCHECK(at != ids.end());
  return static_cast<size_t>(at - ids.begin());
}

// A set with these elements; null with an exception.
Ref<> Filled(Ref<> set, const std::vector<Ref<>>& items) {
  for (const Ref<>& item : items) {
    if (!set || PySet_Add(set.get(), item.get()) < 0) return Ref<>();
  }
  return set;
}

}  // namespace

Reifier::Reifier(const Segment& segment) : segment_(segment) {
  sources_.reserve(segment.operand_sources.size());
  for (SourceId source : segment.operand_sources) {
    sources_.push_back(segment.guards->IsNumber(source)
                           ? Ref<>::Steal(PyLong_FromLongLong(segment.guards->Number(source)))
                           : Ref<>::New(segment.guards->Object(source)));
  }
}

Ref<> Reifier::FromValue(ValueId id) {
  const c10::IValue& value = outputs_[IndexOf(segment_.ir.graph.outputs, id)];
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
    case Operand::Kind::kSource:
      return sources_[IndexOf(segment_.operand_sources, operand.source)];
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
    Made& made = effects_[i];
    const EffectStep step{
        effect, made.target.get(), made.key.get(), made.value.get(), segment_.effect_names[i].get(), made.content};
    if (!CommitByKind(step)) return false;
  }
  for (const auto& [iterator, state] : states_) {
    if (!Ref<>::Steal(PyObject_CallMethod(iterator.get(), "__setstate__", "(O)", state.get()))) return false;
  }
  return true;
}

// The set of their names may be as large as before with other names in it. But they are registered with a
// torch.library.Library, and each new one leaves a finaliser.
}  // namespace frametap
