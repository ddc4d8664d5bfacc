// Builtins that look at objects: types, attributes, identity, context variables, abstract base classes.
#include <cstddef>
#include <cstring>
#include <string_view>

#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/numbers/sequences.h"
#include "frame_eval/record/numbers/sizes.h"
#include "frame_eval/record/numbers/symbolic_args.h"
#include "frame_eval/record/objects/cached_properties.h"
#include "frame_eval/record/objects/class_references.h"
#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/objects/identity.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/open_keys.h"
#include "frame_eval/record/objects/outside_containers.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/objects/variables.h"
#include "frame_eval/record/semantics/attribute_stores.h"
#include "frame_eval/record/semantics/attributes.h"
#include "frame_eval/record/semantics/containers.h"
#include "frame_eval/record/semantics/descriptors.h"
#include "frame_eval/record/semantics/foreign_operators.h"
#include "frame_eval/record/semantics/iterators.h"
#include "frame_eval/record/semantics/mapping_proxies.h"
#include "frame_eval/record/trace/array_nodes.h"
#include "guards/cpython/deque_view.h"
#include "guards/objects/array_view.h"
#include "guards/objects/dict_items.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

// The second argument of isinstance and issubclass: a class whose check is in C is checked by C code.
void RefuseForeignChecks(PyObject* classes) {
  static PyObject* const parts_name = InternedName("__args__");
  if (Py_TYPE(classes) == Objects().union_type) {
    return RefuseForeignKey(Must(PyObject_GetAttr(classes, parts_name)).get());
  }
  RefuseForeignKey(classes);
}

// isinstance also believes what an object says of its class.
bool HasClassFromC(PyObject* object) {
  RefuseOddNames(Py_TYPE(object));
  static PyObject* const name = InternedName("__class__");
  PyObject* const found = _PyType_Lookup(Py_TYPE(object), name);
  if (found == _PyType_Lookup(&PyBaseObject_Type, name) || IsTensor(object)) return false;
  return Py_TYPE(found) != &PyProperty_Type || CallsC(found, "fget");
}

// isinstance(x, C), type(x): read the exact type; the guard of a source's type says it all.
void ReadsType(Trace& trace, Call& call) {
  if (call.args.size() == 2) RefuseForeignChecks(call.args[1]);
  for (PyObject* arg : call.args) {
    if (call.args.size() == 2 && HasClassFromC(arg)) {
      throw Break{Reason::unknown_callable, "isinstance of an object with a __class__ of its own"};
    }
  }
  for (size_t i = 0; i < call.args.size(); ++i) {
    PyObject* object = call.args[i];
    if (IsNumber(object) && i == 0) {
      FixType(trace, call.shadows[i]);
    } else if (IsScalar(object)) {
      Specialize(trace, object, call.shadows[i]);
    } else if (PyTuple_CheckExact(object) && i == 1) {
      SpecializeDeep(trace, object, call.shadows[i], true);
    } else if (!IsTensor(object) && !ReadKind(trace, object)) {
      GuardTypeOrIdentity(trace, object);
    }
  }
  if (PyType_Check(call.callable) && call.args.size() != 1) throw Break{Reason::class_statement, ""};
}

// Python code whose end is known: to go into it would only find a lock or a buffer on the way.
void Refused(Trace&, Call& call) { throw Refusal(call.callable); }

void Callable(Trace& trace, Call& call) {
  if (call.args.size() != 1 || !ReadKind(trace, call.args[0])) SpecializeArguments(trace, call, 0, true);
}

void Len(Trace& trace, Call& call) {
  PyObject* object = call.args.empty() ? nullptr : call.args[0];
  if (object == nullptr) return;
  if (IsTensor(object) && trace.numbers.sizes_open() && TensorOf(object).dim() > 0) {
    call.note.op.expect.SetShadow(SizeOf(trace, object, 0));
    call.note.op.opaque_operation = true;  // Tensor.__len__ is Python code that asks for the size
    return;
  }
  if (IsTensor(object)) return TorchCall(trace, call.note, &call, "len");
  if (IsArray(object)) return ReadArray(trace, object);
  if (PyObject* dict = DictBelow(trace, object)) object = dict;
  RefuseForeignOperator(object);
  ObjectRecord* known = trace.objects.Find(object);
  bool sized = PyTuple_Check(object) || PyList_Check(object) || PyDict_Check(object) || PyAnySet_Check(object) ||
               IsDeque(object);
  if (sized && known != nullptr && known->state == ObjectRecord::State::kSource && !known->adopted) {
    GuardTypeOrIdentity(trace, object);
    if (PyDict_Check(object)) RefuseWrittenDict(trace, object);
    if (const Shadow length = OpenLength(trace, object); length.kind != Shadow::Kind::kNone)
      return call.note.op.expect.SetShadow(length);
    if (known->changes || (known->mutated && IsDeque(object))) return AdoptElements(trace, object);
    trace.guards.Length(known->source, trace.frames.Here());
    return;
  }
  if (object == call.args[0]) Specialize(trace, object, call.shadows[0]);
  if (IsForeign(trace, object))
    throw Break{Reason::unknown_operation, std::string("len of ") + Py_TYPE(object)->tp_name};
  GuardTypeOrIdentity(trace, object);
}

// The object itself if it is a class, or its class.
bool IsHeldByClass(PyObject* object, PyObject* name) {
  return !PyType_Check(object) || _PyType_Lookup(reinterpret_cast<PyTypeObject*>(object), name) != nullptr ||
         _PyType_Lookup(Py_TYPE(object), name) != nullptr;
}

void GetAttr(Trace& trace, Call& call) {
  if (call.args.size() < 2 || !PyUnicode_Check(call.args[1])) return;  // raises
  if (!PyUnicode_CheckExact(call.args[1]))
    throw Break{Reason::unknown_operation, "getattr by a name that is not a plain string"};
  for (size_t i = 1; i < call.args.size(); ++i) Specialize(trace, call.args[i], call.shadows[i]);
  const Ref<> name = Interned(call.args[1]);
  LoadAttribute(trace, call.note, call.args[0], call.shadows[0], name.get());
  if (call.args.size() > 2 || std::strcmp(FindCallable(call.callable)->name, "hasattr") == 0) {
    // With a default the result may be that, or a bool: nothing is to be expected of it, unless a class has the name.
    // Numbers are fixed.
    if (call.note.op.expect.kind == ResultSpec::Kind::kSource) {
      SourceId source = call.note.op.expect.source;
      PyObject* seen = trace.guards.seen(source);
      if (seen != nullptr) Specialize(trace, seen, FromSource(trace, source, seen, call.note.op.expect.pinned));
    }
    // The object shows which values the trace has written or deleted.
    const bool is_number =
        call.note.op.expect.kind == ResultSpec::Kind::kShadow && call.note.op.expect.shadow.kind != Shadow::Kind::kNone;
    if (is_number && call.args.size() > 2) throw Break{Reason::unknown_operation, "getattr"};
    const bool is_held =
        call.note.op.expect.kind == ResultSpec::Kind::kPinned && IsHeldByClass(call.args[0], name.get());
    call.note.op.expect = ResultSpec();
    if (is_held) call.note.op.expect.kind = ResultSpec::Kind::kPinned;
  }
}

// vars(object): its __dict__. Without an argument it would be the frame's variables.
void Vars(Trace& trace, Call& call) {
  static PyObject* const name = InternedName("__dict__");
  if (call.args.size() != 1) throw Refusal(call.callable);
  LoadAttribute(trace, call.note, call.args[0], call.shadows[0], name);
}

// dir(object) of an instance without a __dir__ of its own: the names in its __dict__ and in its class.
void Dir(Trace& trace, Call& call) {
  static PyObject *const dict_name = InternedName("__dict__"), *const dir_name = InternedName("__dir__"),
                         *const class_name = InternedName("__class__");
  PyObject* const object = call.args.size() == 1 ? call.args[0] : nullptr;
  if (object == nullptr || IsTensor(object) || !IsOfPythonClass(object)) throw Refusal(call.callable);
  PyTypeObject* const type = Py_TYPE(object);
  RefuseOddNames(type);
  for (PyObject* name : {dir_name, class_name}) {
    if (_PyType_Lookup(type, name) != _PyType_Lookup(&PyBaseObject_Type, name)) throw Refusal(call.callable);
  }
  PyObject* const own = _PyType_Lookup(type, dict_name);
  if (!HasGenericGet(type) || own == nullptr || Py_TYPE(own) != &PyGetSetDescr_Type) {
    throw Refusal(call.callable);
  }
  GuardTypeOrIdentity(trace, object);
  trace.guards.ReadsName(dict_name);  // counts as all names
  trace.guards.Class(type, trace.frames.Here());
  FrameNote read;
  LoadAttribute(trace, read, object, call.shadows[0], dict_name);
  if (read.op.expect.kind != ResultSpec::Kind::kSource) return;  // of an object of the trace's own
  PyObject* const dict = trace.guards.seen(read.op.expect.source);
  if (dict == nullptr) throw Refusal(call.callable);
  RefuseMutatedDict(trace, dict);
  FromSource(trace, read.op.expect.source, dict, read.op.expect.pinned);
  trace.guards.Keys(read.op.expect.source, trace.frames.Here());
}

// types.MappingProxyType(dict): what is read of it is read of the dict.
void MakeProxy(Trace& trace, Call& call) {
  PyObject* const dict = call.args.size() == 1 && call.names.empty() ? call.args[0] : nullptr;
  if (dict == nullptr || !(PyDict_CheckExact(dict) || PyODict_CheckExact(dict))) throw Refusal(call.callable);
  GuardTypeOrIdentity(trace, dict);
}

// proxy.keys(), values(), items(), copy()
void ReadProxy(Trace& trace, Call& call) {
  PyObject* const dict = call.args.size() == 1 ? DictBelow(trace, call.args[0]) : nullptr;
  if (dict == nullptr) throw Refusal(call.callable);
  if (FindCallable(call.callable)->name == std::string_view("keys")) return AdoptElements(trace, dict);
  SpecializeDeep(trace, call.args[0], Shadow(), true);
}

// Fixes the name that is the second of `count` arguments, and returns it interned. Ends the graph at another call.
Ref<> NameOf(Trace& trace, const Call& call, size_t count, const char* function) {
  if (call.args.size() != count || !PyUnicode_CheckExact(call.args[1])) throw Break{Reason::unknown_mutation, function};
  Specialize(trace, call.args[1], call.shadows[1]);
  return Interned(call.args[1]);
}

void SetAttr(Trace& trace, Call& call) {
  const Ref<> name = NameOf(trace, call, 3, "setattr");
  StoreAttribute(trace, call.note, call.args[0], name.get(), call.args[2], call.shadows[2]);
}

void DelAttr(Trace& trace, Call& call) {
  const Ref<> name = NameOf(trace, call, 2, "delattr");
  DeleteAttribute(trace, call.note, call.args[0], name.get());
}

// object.__setattr__(x, name, value), and super().__setattr__ bound to x.
void ObjectSetAttr(Trace& trace, Call& call) {
  const Ref<> name = NameOf(trace, call, 3, "setattr");
  call.note.op.expect.kind = ResultSpec::Kind::kNothing;
  GenericStore(trace, call.args[0], name.get(), call.args[2], call.shadows[2]);
}

// object.__delattr__(x, name), and super().__delattr__ bound to x.
void ObjectDelAttr(Trace& trace, Call& call) {
  const Ref<> name = NameOf(trace, call, 2, "delattr");
  GenericDelete(trace, call.note, call.args[0], name.get());
}

// object.__getattribute__(x, name): the generic look-up, whatever the class overrides.
void ObjectGetAttr(Trace& trace, Call& call) {
  if (call.args.size() != 2 || !PyUnicode_CheckExact(call.args[1]) || IsTensor(call.args[0])) {
    throw Break{Reason::unknown_operation, "object.__getattribute__"};
  }
  Specialize(trace, call.args[1], call.shadows[1]);
  GenericLoad(trace, call.note, call.args[0], call.args[1]);
}

// module.__getattribute__(name)
void ModuleGetAttr(Trace& trace, Call& call) {
  if (call.args.size() != 2 || !PyUnicode_CheckExact(call.args[1]) || !PyModule_Check(call.args[0])) {
    throw Break{Reason::unknown_operation, "module.__getattribute__"};
  }
  Specialize(trace, call.args[1], call.shadows[1]);
  const Ref<> name = Interned(call.args[1]);
  GenericLoad(trace, call.note, call.args[0], name.get());
}

void TruthValue(Trace& trace, Call& call) {
  if (call.args.size() == 1) TruthOf(trace, call.note, call.args[0], call.shadows[0]);
}

// issubclass(C, D): reads the classes' bases.
void IsSubclass(Trace& trace, Call& call) {
  if (call.args.size() == 2) RefuseForeignChecks(call.args[1]);
  SpecializeArguments(trace, call, 0, true);
  for (PyObject* arg : call.args) {
    if (PyType_Check(arg)) trace.guards.Class(reinterpret_cast<PyTypeObject*>(arg), trace.frames.Here());
  }
}

// The check of a protocol (typing.Protocol) reads annotations of classes, which stores an empty dict in each that has none.
bool MayStoreAnnotations(PyObject* protocol, PyObject* object) {
  static PyObject *const mark = InternedName("_is_protocol"), *const name = InternedName("__annotations__");
  if (!PyType_Check(protocol) || !HasPlainNames(reinterpret_cast<PyTypeObject*>(protocol))) return true;
  if (_PyType_Lookup(reinterpret_cast<PyTypeObject*>(protocol), mark) != Py_True) return false;
  PyTypeObject* const type = PyType_Check(object) ? reinterpret_cast<PyTypeObject*>(object) : Py_TYPE(object);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    auto* const base = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(type->tp_mro, i));
    const bool is_of_python = (base->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0;
    if (is_of_python && ItemQuietly(base->tp_dict, name) == nullptr) return true;
  }
  return false;
}

// isinstance(x, Sequence), issubclass(type, Sequence). CPython calls the class and its __subclasshook__ once for each
// type. It keeps the answer until a class is registered somewhere. That the first call runs Python code is of no
// interest.
void AbstractCheck(Trace& trace, Call& call) {
  if (call.args.size() != 2) throw Break{Reason::unknown_callable, "isinstance"};
  Specialize(trace, call.args[1], call.shadows[1]);
  PyObject* object = call.args[1];
  RefuseOddNames(Py_TYPE(object));
  static PyObject* const class_name = InternedName("__class__");
  if (_PyType_Lookup(Py_TYPE(object), class_name) != _PyType_Lookup(&PyBaseObject_Type, class_name) &&
      !IsTensor(object)) {
    throw Break{Reason::unknown_callable, "isinstance of an object with a __class__ of its own"};
  }
  if (MayStoreAnnotations(call.args[0], object)) throw Break{Reason::done_once, "a check of a protocol"};
  GuardTypeOrIdentity(trace, call.args[0]);
  GuardTypeOrIdentity(trace, object);
  trace.guards.Registry(trace.frames.Here());
  call.note.op.opaque_operation = true;
}

// abc.get_cache_token(): it counts the registrations.
void RegistryToken(Trace& trace, Call&) { trace.guards.Registry(trace.frames.Here()); }

// super(): reads the frame's own class cell and first argument.
void Super(Trace& trace, Call& call) {
  if (call.args.empty()) ReadClassCell(trace, call.f);
  for (PyObject* arg : call.args) GuardTypeOrIdentity(trace, arg);
}

// Which variable it is: the value of any other one is another question.
void FixContextVariable(Trace& trace, PyObject* variable) {
  SourceOrPin(trace, variable);
  ObjectRecord* known = trace.objects.Find(variable);
  if (known == nullptr || known->state != ObjectRecord::State::kSource)
    throw Break{Reason::unknown_callable, "ContextVar"};
  Fix(trace, *known);
}

// ContextVar.get([default]), .set(value), .reset(token). A variable that is reset again by the end leaves no trace, and
// between is as at the entry while nothing is set.
void ContextGet(Trace& trace, Call& call) {
  PyObject* variable = call.args.empty() ? nullptr : call.args[0];
  if (variable == nullptr || !PyContextVar_CheckExact(variable))
    throw Break{Reason::unknown_callable, "ContextVar.get"};
  for (size_t i = 1; i < call.args.size(); ++i) Specialize(trace, call.args[i], call.shadows[i]);
  if (trace.thread.IsContextSet()) FixContextVariable(trace, variable);
  if (trace.thread.IsContextSet(variable)) return;
  PyObject* value = nullptr;
  if (PyContextVar_Get(variable, Py_NotImplemented, &value) < 0) {
    PyErr_Clear();
    throw Break{Reason::unknown_callable, "ContextVar.get"};
  }
  Ref<> keep = Ref<>::Steal(value);
  SourceId source = trace.guards.Child(SourceOrPin(trace, variable), Accessor::kContextValue, 0, nullptr, value);
  if (value != Py_NotImplemented) {
    const SourceId not_set = trace.guards.Pinned(Py_NotImplemented, "NotImplemented");
    trace.guards.SameObject(source, not_set, false, trace.frames.Here());
    call.note.op.expect.SetSource(source);
    return;
  }
  trace.guards.Identity(source, trace.frames.Here());
  // Its own default, unless one was given: the variable keeps it for good.
  if (call.args.size() < 2) FixContextVariable(trace, variable);
  call.note.op.expect.kind = call.args.size() < 2 ? ResultSpec::Kind::kPinned : ResultSpec::Kind::kAny;
}

void ContextSet(Trace& trace, Call& call) {
  if (call.args.size() != 2 || !PyContextVar_CheckExact(call.args[0]))
    throw Break{Reason::unknown_callable, "ContextVar"};
  Specialize(trace, call.args[1], call.shadows[1]);
  FixContextVariable(trace, call.args[0]);
  trace.thread.SetContext(call.args[0], ++trace.epoch);
}

// If the order differs from the order of the sets, the replaced values come back in that order.
void ContextReset(Trace& trace, Call& call) {
  ObjectRecord* token = call.args.size() == 2 ? trace.objects.Find(call.args[1]) : nullptr;
  if (token == nullptr || token->state == ObjectRecord::State::kSource) {
    throw Break{Reason::unknown_callable, "ContextVar.reset of a token that existed before"};
  }
  if (!trace.thread.ResetContext(call.args[0], token->epoch)) {
    throw Break{Reason::unknown_callable, "ContextVar.reset of a token that is not the last one"};
  }
}

// The id of an object that is passed is a number like its sizes.
bool GivesOpenAddress(Trace& trace, Call& call) {
  const Shadow address = call.args.size() == 1 ? OpenAddress(trace, call.args[0]) : Shadow();
  if (address.kind == Shadow::Kind::kNone) return false;
  call.note.op.expect.SetShadow(address);
  return true;
}

// id(x): the same for the same object, so the object is fixed. (That of a new object differs from run to run, and an
// object that the program made for this call must not be held until the next.)
void ObjectId(Trace& trace, Call& call) {
  ReadsAddress(trace);
  if (GivesOpenAddress(trace, call)) return;
  if (call.args.size() == 1 && IsTensor(call.args[0])) return ReadTensorAddress(trace, call.args[0]);
  ObjectRecord* known = call.args.size() == 1 ? trace.objects.Find(call.args[0]) : nullptr;
  const bool is_fixed =
      known != nullptr && known->state == ObjectRecord::State::kSource && IsFixed(trace, call.args[0]);
  if (!is_fixed) throw Break{Reason::unknown_callable, "id"};
}

// dict.__setitem__ and list.__setitem__, also through super().
void SetItem(Trace& trace, Call& call) {
  if (call.args.size() != 3) throw Break{Reason::unknown_mutation, "__setitem__"};
  if (PySlice_Check(call.args[1])) {
    SpecializeArguments(trace, call, 1, true);  // what is assigned is iterated over
  } else {
    SpecializeKey(trace, call.args[1], call.shadows[1]);
    Specialize(trace, call.args[2], call.shadows[2]);
  }
  ObjectRecord* known = trace.objects.Find(call.args[0]);
  bool is_source = known == nullptr || known->state == ObjectRecord::State::kSource;
  if (is_source && !PyDict_CheckExact(call.args[0])) throw Break{Reason::unknown_mutation, "__setitem__"};
  BeginMutation(trace, call.args[0]);
  if (PyDict_Check(call.args[0])) ReadKey(trace, call.args[0], call.args[1]);
  if (is_source) {
    AddEffect(trace, Effect::Kind::kSetItem, call.args[0], "", {call.args[1], call.args[2]}, {Shadow(), Shadow()});
  }
}

// Records dict.__delitem__, also where super() leads to it.
void DeleteItem(Trace& trace, Call& call) {
  ObjectRecord* const known = call.args.size() == 2 ? trace.objects.Find(call.args[0]) : nullptr;
  const bool is_source = known == nullptr || known->state == ObjectRecord::State::kSource;
  if (call.args.size() != 2 || !PyDict_Check(call.args[0]) || (is_source && !PyDict_CheckExact(call.args[0]))) {
    throw Break{Reason::unknown_mutation, "__delitem__"};
  }
  SpecializeKey(trace, call.args[1], call.shadows[1]);
  BeginMutation(trace, call.args[0]);
  ReadKey(trace, call.args[0], call.args[1]);
  if (is_source) AddEffect(trace, Effect::Kind::kDelItem, call.args[0], "", {call.args[1]}, {Shadow()});
}

// hash(x): of a tensor its id, which Tensor.__hash__ says in Python code.
void Hash(Trace& trace, Call& call) {
  if (call.args.size() == 1 && IsTensor(call.args[0])) {
    ReadsAddress(trace);
    if (!GivesOpenAddress(trace, call)) ReadTensorAddress(trace, call.args[0]);
    call.note.op.opaque_operation = true;
    return;
  }
  SpecializeArguments(trace, call, 0, false);
  if (!call.args.empty()) ReadHash(trace, call.args[0]);
}

// types.SimpleNamespace(name=value …): what is read of its attributes later is read of the values.
void MakeNamespace(Trace& trace, Call& call) {
  for (size_t i = 0; i < call.args.size(); ++i) Specialize(trace, call.args[i], call.shadows[i]);
}

// sys.exc_info() where nothing is handled, in the recording or by the caller.
void HandledException(Trace& trace, Call& call) {
  static PyObject* const question = [] {
    const Ref<> module = Must(PyImport_ImportModule("sys"));
    return Must(PyObject_GetAttrString(module.get(), "exception")).Release();
  }();
  if (!call.args.empty() || Must(PyObject_CallNoArgs(question)).get() != Py_None) throw Refusal(call.callable);
  trace.guards.Answer(question, "sys.exception", trace.frames.Here());
}

[[noreturn]] void RefuseSignature(PyObject* object) {
  throw Break{Reason::unknown_callable, std::string("inspect.signature of ") + Py_TYPE(object)->tp_name};
}

// All that is in a dict of the function.
void FixDict(Trace& trace, PyObject* dict) {
  SourceOrPin(trace, dict);
  ObjectRecord* known = trace.objects.Find(dict);
  if (known == nullptr || known->state != ObjectRecord::State::kSource || known->mutated) RefuseSignature(dict);
  Fix(trace, *known);
  AdoptElements(trace, dict);
  for (const auto [key, value] : DictItems(dict)) {
    if (!IsTensor(value)) GuardTypeOrIdentity(trace, value);
  }
}

// The one that `function` wraps, or null.
PyObject* FixSignature(Trace& trace, PyObject* function) {
  static PyObject* const wrapped_name = InternedName("__wrapped__");
  static PyObject* const hooks[] = {InternedName("__signature__"), InternedName("__text_signature__"),
                                    InternedName("_partialmethod")};
  auto* const f = reinterpret_cast<PyFunctionObject*>(function);
  AdoptPinned(trace, function);
  ObjectRecord* known = trace.objects.Find(function);
  if (known == nullptr || known->state != ObjectRecord::State::kSource || known->written) RefuseSignature(function);
  Fix(trace, *known);
  const SourceId source = known->source;
  const auto own = [&](PyObject* name) {
    PyObject* value = f->func_dict != nullptr ? ItemQuietly(f->func_dict, name) : nullptr;
    if (value == nullptr) trace.guards.NoInstanceAttr(source, name, trace.frames.Here());
    return value;
  };
  for (PyObject* name : hooks) {
    if (own(name) != nullptr) RefuseSignature(function);
  }
  if (PyObject* wrapped = own(wrapped_name)) {
    FromSource(trace, trace.guards.Child(source, Accessor::kAttr, 0, wrapped_name, wrapped), wrapped, true);
    GuardTypeOrIdentity(trace, wrapped);
    return wrapped;
  }
  for (Py_ssize_t i = 0; f->func_defaults != nullptr && i < PyTuple_GET_SIZE(f->func_defaults); ++i) {
    PyObject* item = PyTuple_GET_ITEM(f->func_defaults, i);
    FromSource(trace, trace.guards.Child(source, Accessor::kDefault, i, nullptr, item), item, true);
  }
  if (f->func_kwdefaults != nullptr) FixDict(trace, f->func_kwdefaults);
  // To ask for annotations makes the dict.
  if (f->func_annotations == nullptr || !PyDict_CheckExact(f->func_annotations)) {
    throw Break{Reason::done_once, "inspect.signature"};
  }
  trace.guards.Field(source, offsetof(PyFunctionObject, func_annotations), trace.frames.Here());
  FixDict(trace, f->func_annotations);
  return nullptr;
}

// inspect.signature of a Python function or of a method: not watched. All that it reads is fixed, and what it gives is
// the trace's own (IsPartOfSignature).
void InspectSignature(Trace& trace, Call& call) {
  constexpr int kLongestChain = 16;
  if (call.args.size() != 1) throw Break{Reason::unknown_callable, "inspect.signature"};
  PyObject* object = call.args[0];
  SpecializeDeep(trace, object, call.shadows[0], false);
  for (int i = 0; object != nullptr; ++i) {
    if (PyMethod_Check(object)) object = PyMethod_GET_FUNCTION(object);
    if (!PyFunction_Check(object) || i == kLongestChain) RefuseSignature(object);
    object = FixSignature(trace, object);
  }
  call.note.op.opaque_operation = true;
}

void ObjectInit(Trace&, Call&) {}

// object.__new__(cls), tuple.__new__(cls, items): all types in C share one method definition.
void New(Trace& trace, Call& call) {
  PyObject* const maker = PyCFunction_GET_SELF(call.callable);
  PyObject* const row = call.args.size() == 2 && call.names.empty() ? call.args[1] : nullptr;
  const bool is_row = row != nullptr && (PyTuple_CheckExact(row) || PyList_CheckExact(row));
  if (maker == reinterpret_cast<PyObject*>(&PyTuple_Type) && is_row && PyType_Check(call.args[0])) {
    GuardTypeOrIdentity(trace, call.args[0]);
    return KeepItems(trace, call.note, {row});
  }
  SpecializeArguments(trace, call, 0, true);
}

}  // namespace

void LoadBuiltins() {
  AddSpecial("builtins", "", "hash", Hash);
  AddRows("builtins", "", Conduct::kPureObjects, {"classmethod", "object", "staticmethod", "property"});
  AddSpecial("builtins", "", "callable", Callable);
  AddSpecial("builtins", "", "issubclass", IsSubclass);
  for (const char* name : {"isinstance", "type"}) AddSpecial("builtins", "", name, ReadsType);
  for (const char* name : {"getattr", "hasattr"}) AddSpecial("builtins", "", name, GetAttr);
  AddSpecial("builtins", "", "len", Len, true);
  AddSpecial("builtins", "", "vars", Vars);
  AddSpecial("builtins", "", "dir", Dir);
  AddSpecial("types", "", "MappingProxyType", MakeProxy);
  for (const char* name : {"keys", "values", "items", "copy"}) AddSpecial("types", "MappingProxyType", name, ReadProxy);
  AddRows("types", "", Conduct::kPureObjects, {"MethodType"});
  AddSpecial("types", "", "SimpleNamespace", MakeNamespace);
  AddSpecial("_weakref", "", "ref", ReferToClass);
  AddSpecial("_thread", "RLock", "__exit__", LeaveLock);
  AddSpecial("sys", "", "exc_info", HandledException);
  AddRows("types", "FunctionType", Conduct::kPureObjects, {"__get__"});
  AddSpecial("builtins", "", "id", ObjectId);
  AddSpecial("logging", "Logger", "_log", Refused);
  AddSpecial("torch.autograd.graph", "", "_engine_run_backward", Refused);
  AddSpecial("contextvars", "ContextVar", "get", ContextGet);
  AddSpecial("contextvars", "ContextVar", "set", ContextSet);
  AddSpecial("contextvars", "ContextVar", "reset", ContextReset);
  for (const char* owner : {"dict", "list"}) AddSpecial("builtins", owner, "__setitem__", SetItem);
  AddSpecial("collections", "OrderedDict", "__setitem__", SetItem);
  AddSpecial("builtins", "dict", "__delitem__", DeleteItem);
  AddSpecial("collections", "OrderedDict", "__delitem__", DeleteItem);
  AddSpecial("inspect", "", "signature", InspectSignature);
  AddRows("sys", "", Conduct::kPureObjects, {"intern", "is_finalizing"});
  AddSpecial("builtins", "", "setattr", SetAttr);
  AddSpecial("builtins", "", "delattr", DelAttr);
  for (const char* name : {"__instancecheck__", "__subclasscheck__"}) AddSpecial("builtins", "type", name, ReadsType);
  AddSpecial("builtins", "", "bool", TruthValue);
  AddSpecial("builtins", "", "super", Super);
  AddSpecial("builtins", "object", "__setattr__", ObjectSetAttr);
  AddSpecial("builtins", "object", "__delattr__", ObjectDelAttr);
  AddSpecial("builtins", "object", "__getattribute__", ObjectGetAttr);
  AddSpecial("types", "ModuleType", "__getattribute__", ModuleGetAttr);
  AddSpecial("builtins", "object", "__init__", ObjectInit);
  for (const char* name : {"object", "tuple", "list", "dict", "set", "frozenset", "int", "float", "complex", "str",
                           "bytes", "BaseException", "OSError", "MemoryError", "BaseExceptionGroup"}) {
    AddSpecial("builtins", name, "__new__", New);
  }
  AddSpecial("torch", "Size", "__new__", New);
  AddRows("builtins", "object", Conduct::kPureObjects, {"__init_subclass__"});
  AddRows("builtins", "object", Conduct::kPureObjects, {"__eq__", "__ne__"}, Reads::kEqual);

  for (const char* name : {"_abc_instancecheck", "_abc_subclasscheck"}) AddSpecial("_abc", "", name, AbstractCheck);
  AddSpecial("_abc", "", "get_cache_token", RegistryToken);
}

}  // namespace frametap
