#include "frame_eval/record/semantics/calls.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "frame_eval/record/callables/getters.h"
#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/frames.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/numbers/sequences.h"
#include "frame_eval/record/numbers/symbolic_args.h"
#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/objects/identity.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/objects/weak_references.h"
#include "frame_eval/record/semantics/attribute_stores.h"
#include "frame_eval/record/semantics/cached_calls.h"
#include "frame_eval/record/semantics/descriptors.h"
#include "frame_eval/record/semantics/elements.h"
#include "frame_eval/record/semantics/mutations.h"
#include "frame_eval/record/semantics/named_tuples.h"
#include "frame_eval/record/semantics/observers.h"
#include "frame_eval/segment/compiled_form.h"
#include "guards/objects/dict_items.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"
#include "ir/ops/op_rows.h"

namespace frametap {
namespace {

// Notes what a class that is called asks itself for.
void ReadsConstructor(GuardRecorder& guards) {
  static PyObject* const kNames[] = {InternedName("__init__"), InternedName("__new__")};
  for (PyObject* name : kNames) guards.ReadsName(name);
}

// A class whose instances are made by object.__new__ and Python's __init__, or that is an exception.
bool MakesPlainInstances(PyTypeObject* type) {
  return (type->tp_flags & Py_TPFLAGS_HEAPTYPE) ||
         PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(PyExc_BaseException));
}

// The __init__ or __new__ of a class: Python code, or the code of a base in C, and no other C code (items.append).
bool IsConstructorOf(PyTypeObject* type, PyObject* found) {
  if (found == nullptr || PyFunction_Check(found)) return true;
  if (Py_TYPE(found) == &PyWrapperDescr_Type) return PyType_IsSubtype(type, PyDescr_TYPE(found)) != 0;
  if (PyCFunction_Check(found)) {
    PyObject* const self = PyCFunction_GET_SELF(found);  // of a __new__ in C: the class that made it
    return self != nullptr && PyType_Check(self) && PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(self)) != 0;
  }
  return Py_TYPE(found) == &PyStaticMethod_Type && PyFunction_Check(WrappedFunction(found).get());
}

// Whether C code that no row describes makes the instances: a base's, as in a subclass of io.StringIO. It may set a
// hidden flag, or give an object of another class.
bool IsMadeByUnknownCode(PyTypeObject* type) {
  if (type->tp_new == PyBaseObject_Type.tp_new || type->tp_new == PyType_GenericNew) return false;
  if (PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(PyExc_BaseException))) return false;
  for (const PyTypeObject* base = type; base != nullptr; base = base->tp_base) {
    if (base->tp_new != type->tp_new) break;
    type = const_cast<PyTypeObject*>(base);
  }
  return FindCallable(reinterpret_cast<PyObject*>(type)) == nullptr;
}

// The parts of a partial from outside: __setstate__ replaces them. An open one may be another one with equal parts.
void ReadPartial(Trace& trace, PyObject* partial, PyObject* function, PyObject* args, PyObject* keywords,
                 bool is_open) {
  const SourceId source = SourceOf(trace, partial);
  if (!source.valid()) return;
  if (is_open) trace.guards.Type(source, trace.frames.Here());
  static PyObject* const kParts[] = {InternedName("func"), InternedName("args"), InternedName("keywords")};
  PyObject* const values[] = {function, args, keywords};
  for (int i = 0; i < 3; ++i) {
    const SourceId part = trace.guards.Child(source, Accessor::kAttr, 0, kParts[i], values[i]);
    if (!is_open) trace.guards.Identity(part, trace.frames.Here());
    FromSource(trace, part, values[i], !is_open);
  }
  if (is_open) {
    AdoptElements(trace, args);
    return AdoptElements(trace, keywords);
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i) AdoptPinned(trace, PyTuple_GET_ITEM(args, i), "partial.args");
  AdoptElements(trace, keywords);
}

// Its replays compute the same as plain Python. A form of another backend or of int8 does not (its weights belong to
// one model).
bool RunsAsRecorded(SegmentCache& store) { return store.backend().calls_python() && !store.options().by_identity; }

// torch.ops.x.y and torch.ops.x.y.z are objects of Python code. Each passes its arguments to a function of C that no
// other object holds. Returns the op, or nothing if `callable` is not such a function. If a name has several overloads, that
// function chooses one and passes it to the dispatcher.
std::optional<c10::OperatorHandle> CalledOp(Trace& trace, PyObject* callable) {
  static PyObject *const function_name = InternedName("_op"), *const packet_name = InternedName("_qualified_op_name"),
                         *const schema_name = InternedName("_name"), *const overloads = InternedName("_overload_names");
  const ObjectRecord* known = PyCFunction_Check(callable) ? trace.objects.Find(callable) : nullptr;
  if (known == nullptr || known->state != ObjectRecord::State::kSource) return std::nullopt;
  if (PyCFunction_GET_FUNCTION(callable) != Objects().bound_by_torch) return std::nullopt;
  const SourceId parent = trace.guards.parent(known->source);
  if (!parent.valid() || trace.guards.KeyOf(known->source) != function_name) return std::nullopt;
  PyObject* const owner = trace.guards.seen(parent);
  const bool is_packet = owner != nullptr && Py_TYPE(owner) == Objects().op_packet;
  if (!is_packet && (owner == nullptr || !PyObject_TypeCheck(owner, Objects().op_overload))) return std::nullopt;
  const Ref<> text = Must(PyObject_GenericGetAttr(owner, is_packet ? packet_name : schema_name));
  std::string name = PyUnicode_Check(text.get()) ? PyUnicode_AsUTF8(text.get()) : "", overload;
  if (is_packet) {
    const Ref<> all = Must(PyObject_GenericGetAttr(owner, overloads));
    if (!PyList_Check(all.get()) || PyList_GET_SIZE(all.get()) == 0) return std::nullopt;
    PyObject* const first = PyList_GET_ITEM(all.get(), 0);
    overload = PyUnicode_Check(first) ? PyUnicode_AsUTF8(first) : "";
  } else if (const size_t dot = name.find('.', name.find("::")); dot != std::string::npos) {
    overload = name.substr(dot + 1);
    name.resize(dot);
  }
  return c10::Dispatcher::singleton().findSchema({name, overload});  // nothing for an op of TorchScript alone
}

void CallOp(Trace& trace, Call& call, const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  if (OpRowOf(op).Has(ops::kObserved)) return CallObserved(trace, call, !op.schema().returns().empty());
  TorchCall(trace, call.note, &call, name.c_str() + name.find("::") + 2);
}

// The result of functools.cmp_to_key: it calls the function that it was given.
PyTypeObject* ComparisonKey() {
  static PyTypeObject* const type = [] {
    const Ref<> module = Must(PyImport_ImportModule("_functools"));
    const Ref<> any = Must(PyObject_CallMethod(module.get(), "cmp_to_key", "O", Py_None));
    return reinterpret_cast<PyTypeObject*>(Py_NewRef(reinterpret_cast<PyObject*>(Py_TYPE(any.get()))));
  }();
  return type;
}

// sorted(objects, key=getter), map(getter, objects): the reads of each object. Returns false if they are not known.
bool GetsFromAll(Trace& trace, const Call& call, PyObject* getter) {
  for (PyObject* other : call.args) {
    if (other == getter || other == nullptr || IsScalar(other)) continue;
    if (!PyTuple_CheckExact(other) && !PyList_CheckExact(other)) {
      if (!ReadByGetter(trace, getter, other)) return false;
      continue;
    }
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(other); ++i) {
      if (!ReadByGetter(trace, getter, PySequence_Fast_GET_ITEM(other, i))) return false;
    }
  }
  return true;
}

// Whether what an object refers to is all that C code gets when it iterates over it.
bool IsPlainIterator(PyObject* object) {
  static const PyTypeObject* const kTypes[] = {
      &PyTupleIter_Type,   &PyListIter_Type,      &PyListRevIter_Type, &PyReversed_Type,  &PyZip_Type,
      &PyEnum_Type,        &PyDict_Type,          &PyDictValues_Type,  &PyDictItems_Type, &PyDictKeys_Type,
      &PyDictIterKey_Type, &PyDictIterValue_Type, &PyDictIterItem_Type};
  return std::find(std::begin(kTypes), std::end(kTypes), Py_TYPE(object)) != std::end(kTypes);
}

// Fixes sizes and strides of the tensors that a C function of torch gets one after the other. No event shows such a call, and
// the binding may look at them and decide, as x.contiguous() does.
void ReadTensorsBelow(Trace& trace, PyObject* object) {
  struct Walk {
    Trace& trace;
    absl::flat_hash_set<PyObject*> met;
    std::vector<PyObject*> waiting;
  } walk{trace, {}, {object}};
  while (!walk.waiting.empty()) {
    PyObject* const next = walk.waiting.back();
    walk.waiting.pop_back();
    if (next == nullptr || IsScalar(next) || PyRange_Check(next)) continue;
    if (!walk.met.insert(next).second) continue;
    if (IsTensor(next)) {
      ReadTensor(trace, next, true, true);
      continue;
    }
    if (PyTuple_Check(next) || PyList_Check(next)) {
      PyObject** const items = PySequence_Fast_ITEMS(next);
      walk.waiting.insert(walk.waiting.end(), items, items + PySequence_Fast_GET_SIZE(next));
      continue;
    }
    if (!IsPlainIterator(next)) {
      throw Break{Reason::unknown_operation,
                  std::string("a function of torch that takes its arguments from ") + Py_TYPE(next)->tp_name};
    }
    const auto visit = [](PyObject* part, void* data) {
      static_cast<Walk*>(data)->waiting.push_back(part);
      return 0;
    };
    Py_TYPE(next)->tp_traverse(next, visit, &walk);
  }
}

// Whether C code calls its callback with one argument.
bool CallsWithOne(const Call& call) {
  const std::string_view name = FindCallable(call.callable)->name;
  if (name == "map") return call.args.size() == 2;
  return name == "groupby" || name == "sorted" || name == "min" || name == "max" || name == "sort";
}

}  // namespace

// map, sorted(key=…), reduce: a function of Python code comes as a frame. The reads of C code are not reported, and
// must follow from fixed facts.
void ReadCallbacks(Trace& trace, const Call& call) {
  for (PyObject* arg : call.args) {
    if (arg == nullptr || !PyCallable_Check(arg) || IsTensor(arg)) continue;
    PyObject* function = PyMethod_Check(arg) ? PyMethod_GET_FUNCTION(arg) : arg;
    Ref<> inner, args, keywords;
    if (Py_TYPE(arg) == Objects().partial) {
      inner = Must(PyObject_GetAttrString(arg, "func"));
      args = Must(PyObject_GetAttrString(arg, "args"));
      keywords = Must(PyObject_GetAttrString(arg, "keywords"));
      ReadPartial(trace, arg, inner.get(), args.get(), keywords.get(), false);
      function = inner.get();
    }
    if (PyFunction_Check(function)) continue;
    static PyObject* const call_name = InternedName("__call__");
    const CallableRow* row = FindCallable(function);
    if (inner && (row == nullptr || row->conduct != Conduct::kTorch)) {
      throw Break{Reason::unknown_callable, "functools.partial of what is not a function of Python code"};
    }
    if (row == nullptr && PyType_Check(function)) {
      if (MakesPlainInstances(reinterpret_cast<PyTypeObject*>(function))) {
        ReadsConstructor(trace.guards);
        continue;
      }
    } else if (row == nullptr) {
      PyObject* method = _PyType_Lookup(Py_TYPE(function), call_name);
      if (method != nullptr && PyFunction_Check(method)) continue;
      if (IsGetter(function) && GetsFromAll(trace, call, arg)) continue;
      if (Py_TYPE(function) == ComparisonKey() && trace.objects.Find(function) != nullptr &&
          !SourceOf(trace, function).valid())
        continue;
    } else if (row->conduct == Conduct::kTorch) {
      for (PyObject* part : {args.get(), keywords.get()}) {
        if (part != nullptr) SpecializeDeep(trace, part, Shadow(), true);
        if (part != nullptr) ReadTensorsBelow(trace, part);
      }
      if (PyCFunction_Check(function) && !IsModuleFunction(function)) {
        ReadTensorsBelow(trace, PyCFunction_GET_SELF(function));
      }
      for (PyObject* other : call.args) {
        if (other != arg) ReadTensorsBelow(trace, other);
      }
      continue;
    } else if (function == reinterpret_cast<PyObject*>(&PyType_Type) && CallsWithOne(call)) {
      continue;  // who calls it has fixed all that is in its arguments
    } else if (row->by_value) {
      const bool bound = PyCFunction_Check(function) && !IsModuleFunction(function);
      PyObject* const self = bound ? PyCFunction_GET_SELF(function) : nullptr;
      if (bound) SpecializeDeep(trace, self, MeetSelf(trace, function, self), false);
      if (bound && PyDict_Check(self) && !HoldsPlainValues(self)) throw Refusal(function);  // it compares with the keys
      ReadIdentities(trace, row->reads, call);
      continue;
    } else if (row->conduct == Conduct::kPure && row->reads != Reads::kValues && PyType_Check(function)) {
      // str of numbers and strings
      bool scalars = true;
      for (PyObject* other : call.args) {
        if (other == arg || other == nullptr || IsScalar(other)) continue;
        const bool row_of_scalars = PyTuple_CheckExact(other) || PyList_CheckExact(other);
        for (Py_ssize_t i = 0; row_of_scalars && i < PySequence_Fast_GET_SIZE(other); ++i) {
          scalars = scalars && IsScalar(PySequence_Fast_GET_ITEM(other, i));
        }
        scalars = scalars && (row_of_scalars || PyRange_Check(other));
      }
      if (scalars) continue;
    }
    throw Refusal(function);
  }
}

// A callable that may be another one of the same kind at replay: nothing has been read of which one it is.
bool IsOpen(Trace& trace, PyObject* callable) {
  const ObjectRecord* known = trace.objects.Find(callable);
  return known != nullptr && known->state == ObjectRecord::State::kSource && !known->pinned && !known->touched &&
         !trace.store.options().by_identity;
}

PendingCall& ExpectFrame(Trace& trace, PyObject* function) {
  FixCode(trace, function);
  if (!IsOpen(trace, function)) GuardTypeOrIdentity(trace, function);
  trace.frames.pending.function = function;
  trace.frames.has_pending = true;
  return trace.frames.pending;
}

static void InvokePython(Trace& trace, Call& call, PyObject* function) {
  PendingCall& pending = ExpectFrame(trace, function);
  pending.args.assign(call.args.begin(), call.args.end());
  pending.shadows.assign(call.shadows.begin(), call.shadows.end());
  pending.names.assign(call.names.begin(), call.names.end());
  call.note.op.expect.kind = ResultSpec::Kind::kAny;
}

static void InvokePartial(Trace& trace, Call& call) {
  Ref<> partial = Ref<>::New(call.callable);
  const bool is_open = IsOpen(trace, partial.get());
  if (!is_open) GuardTypeOrIdentity(trace, partial.get());
  Ref<> function = Ref<>::Steal(PyObject_GetAttrString(partial.get(), "func"));
  Ref<> args = Ref<>::Steal(PyObject_GetAttrString(partial.get(), "args"));
  Ref<> keywords = Ref<>::Steal(PyObject_GetAttrString(partial.get(), "keywords"));
  if (!function || !args || !keywords || !PyTuple_Check(args.get()) || !PyDict_Check(keywords.get())) {
    PyErr_Clear();
    throw Break{Reason::unknown_callable, "functools.partial"};
  }
  ReadPartial(trace, partial.get(), function.get(), args.get(), keywords.get(), is_open);
  Call inner{call.f, call.note, function.get(), {}, {}, {}};
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args.get()); ++i) {
    inner.args.push_back(PyTuple_GET_ITEM(args.get(), i));
    inner.shadows.push_back(is_open ? ElementShadow(trace, args.get(), i) : Shadow());
  }
  for (size_t i = 0; i < call.positional(); ++i) {
    inner.args.push_back(call.args[i]);
    inner.shadows.push_back(call.shadows[i]);
  }
  for (const auto [key, value] : DictItems(keywords.get())) {
    bool overridden = false;
    for (PyObject* name : call.names) overridden = overridden || PyUnicode_Compare(name, key) == 0;
    if (overridden) continue;
    inner.args.push_back(value);
    inner.shadows.push_back(Shadow());
    inner.names.push_back(key);
  }
  for (size_t k = 0; k < call.names.size(); ++k) {
    inner.args.push_back(call.args[call.positional() + k]);
    inner.shadows.push_back(call.shadows[call.positional() + k]);
    inner.names.push_back(call.names[k]);
  }
  Invoke(trace, std::move(inner));
}

static void InvokeType(Trace& trace, Call& call, PyTypeObject* type) {
  RefuseOddNames(type);
  RefuseOddNames(Py_TYPE(type));
  GuardTypeOrIdentity(trace, call.callable);
  if (const CallableRow* row = FindCallable(call.callable); row != nullptr) {
    if (row->special != nullptr) return row->special(trace, call);
    for (size_t i = 0; i < call.args.size(); ++i) {
      if (row->conduct == Conduct::kPure && IsTensor(call.args[i])) {
        throw Break{Reason::value_of_tensor, row->name};
      }
      if (row->conduct == Conduct::kTransparent && IsTensor(call.args[i])) ReadTensor(trace, call.args[i], true, false);
      SpecializeDeep(trace, call.args[i], call.shadows[i], true);
    }
    if (row->conduct == Conduct::kTransparent) {  // an iterator
      for (PyObject* arg : call.args) ViewRows(trace, arg);
      ReadCallbacks(trace, call);
    }
    return ReadIdentities(trace, row->reads, call);
  }
  const bool is_other_tensor = type != Objects().parameter && PyType_IsSubtype(type, Objects().tensor_base) != 0;
  if (!MakesPlainInstances(type) || is_other_tensor || PyType_IsSubtype(type, Objects().weak_reference)) {
    throw Refusal(call.callable);
  }
  if (type->tp_finalize != nullptr) throw Break{Reason::finaliser_made, type->tp_name};
  if (Py_TYPE(type) != &PyType_Type && Py_TYPE(type)->tp_call != PyType_Type.tp_call) {
    // A metaclass with a __call__ of its own runs as a frame (enumerations, singletons).
    static PyObject* call_name = InternedName("__call__");
    PyObject* meta_call = _PyType_Lookup(Py_TYPE(type), call_name);
    if (meta_call == nullptr || !PyFunction_Check(meta_call)) {
      throw Refusal(call.callable);
    }
  }
  trace.guards.Class(type, trace.frames.Here());
  ReadsConstructor(trace.guards);
  static PyObject* init_name = InternedName("__init__");
  static PyObject* new_name = InternedName("__new__");
  PyObject* init = _PyType_Lookup(type, init_name);
  PyObject* make = _PyType_Lookup(type, new_name);
  bool python_new = make != nullptr && Py_TYPE(make) == &PyStaticMethod_Type;
  if (!IsConstructorOf(type, init) || !IsConstructorOf(type, make)) throw Refusal(call.callable);
  if (init != nullptr && PyFunction_Check(init) && !python_new) {
    // A constructor in C gets the arguments as well; these do not look at them.
    const newfunc make_in_c = type->tp_new;
    if (make_in_c != PyBaseObject_Type.tp_new && make_in_c != PyDict_Type.tp_new && make_in_c != PyType_GenericNew) {
      SpecializeArguments(trace, call, 0, true);
    }
    // The new object is the first argument; it is not there yet, and needs no shadow.
    trace.frames.pending.function = init;
    trace.frames.pending.args.assign(1, Py_None);
    trace.frames.pending.shadows.assign(1, Shadow());
    trace.frames.pending.args.insert(trace.frames.pending.args.end(), call.args.begin(), call.args.end());
    trace.frames.pending.shadows.insert(trace.frames.pending.shadows.end(), call.shadows.begin(), call.shadows.end());
    trace.frames.pending.names.assign(call.names.begin(), call.names.end());
    trace.frames.has_pending = true;
    call.note.op.for_new.assign(call.shadows.begin(), call.shadows.end());
    return;
  }
  static PyObject* const plain_init = _PyType_Lookup(&PyBaseObject_Type, init_name);
  const Ref<> function = python_new && init == plain_init ? WrappedFunction(make) : Ref<>();
  if (!function) {
    if (!python_new && IsMadeByUnknownCode(type)) throw Refusal(call.callable);
    return SpecializeArguments(trace, call, 0, true);
  }
  // Nothing but its __new__ looks at the arguments, if that gives an instance of the class itself (After).
  PendingCall& pending = ExpectFrame(trace, function.get());  // the class keeps it
  pending.args.assign(1, call.callable);
  pending.shadows.assign(1, Shadow());
  pending.args.insert(pending.args.end(), call.args.begin(), call.args.end());
  pending.shadows.insert(pending.shadows.end(), call.shadows.begin(), call.shadows.end());
  pending.names.assign(call.names.begin(), call.names.end());
  call.note.op.for_new.assign(call.shadows.begin(), call.shadows.end());
  call.note.op.called_type = type;
}

Ref<> KeywordsOf(const Call& call) {
  Ref<> names = Must(PyTuple_New(static_cast<Py_ssize_t>(call.names.size())));
  for (size_t i = 0; i < call.names.size(); ++i)
    PyTuple_SET_ITEM(names.get(), static_cast<Py_ssize_t>(i), Py_NewRef(call.names[i]));
  return names;
}

void Invoke(Trace& trace, Call call) {
  PyObject* callable = call.callable;
  call.note.op.expect.kind = ResultSpec::Kind::kAny;
  if (PyMethod_Check(callable)) {
    PyObject* self = PyMethod_GET_SELF(callable);
    Shadow shadow;
    if (ObjectRecord* known = trace.objects.Find(callable);
        known != nullptr && known->state == ObjectRecord::State::kSource && !known->pinned) {
      // `obj.method` makes a new one each time: what it binds is what counts.
      const SourceId source = known->source;
      PyObject* function = PyMethod_GET_FUNCTION(callable);
      trace.guards.Type(source, trace.frames.Here());
      shadow = MeetSelf(trace, callable, self);
      FromSource(trace, trace.guards.Child(source, Accessor::kFunc, 0, nullptr, function), function, false);
    } else {
      GuardTypeOrIdentity(trace, callable);
      shadow = MeetSelf(trace, callable, self);
    }
    call.args.insert(call.args.begin(), self);
    call.shadows.insert(call.shadows.begin(), shadow);
    call.callable = PyMethod_GET_FUNCTION(callable);
    return Invoke(trace, std::move(call));
  }
  if (PyFunction_Check(callable)) {
    if (PyFunction_GET_CODE(callable) == Objects().tuple_replace && InvokeReplace(trace, call)) return;
    if (callable == Objects().module_setattr && StoreByModule(trace, call)) return;
    const CallableRow* row = FindCallable(callable);
    if (row == nullptr || row->special == nullptr) return InvokePython(trace, call, callable);
    GuardTypeOrIdentity(trace, callable);
    return row->special(trace, call);
  }
  if (PyObject* compiled = CompiledFormOf(callable)) {
    // Inside a recording it only passes the call on, to one and the same object.
    GuardTypeOrIdentity(trace, callable);
    FixContent(trace, callable);
    if (!RunsAsRecorded(*StoreOf(compiled))) throw Break{Reason::own_executable, CallableName(callable)};
    if (PyObject* self = SelfOf(compiled)) AdoptPinned(trace, self);
    const Ref<> original = Must(PyObject_GetAttrString(compiled, "_original"));
    call.callable =
        PyMethod_Check(original.get()) || SelfOf(compiled) != nullptr ? original.get() : FunctionOf(compiled);
    return Invoke(trace, std::move(call));
  }
  if (Py_TYPE(callable) == Objects().partial) return InvokePartial(trace, call);
  if (Py_TYPE(callable) == Objects().cached_function) return InvokeCached(trace, call);
  if (IsGetter(callable)) return CallGetter(trace, call);
  if (PyWeakref_CheckRefExact(callable)) return CallWeakReference(trace, call);
  for (PyObject* arg : call.args) {
    if (!CopiesRow(callable) || !trace.iteration.open.contains(arg)) MarkAdvanced(trace, arg);
  }
  if (PyType_Check(callable)) return InvokeType(trace, call, reinterpret_cast<PyTypeObject*>(callable));

  const CallableRow* row = FindCallable(callable);
  if (row == nullptr) {
    PyTypeObject* type = Py_TYPE(callable);
    RefuseOddNames(type);
    static PyObject* call_name = InternedName("__call__");
    PyObject* method = (type->tp_flags & Py_TPFLAGS_HEAPTYPE) ? _PyType_Lookup(type, call_name) : nullptr;
    if (method != nullptr && PyFunction_Check(method)) {
      GuardTypeOrIdentity(trace, callable);
      call.args.insert(call.args.begin(), callable);
      call.shadows.insert(call.shadows.begin(), Shadow());
      return InvokePython(trace, call, method);
    }
    if (const std::optional<c10::OperatorHandle> op = CalledOp(trace, callable)) {
      GuardTypeOrIdentity(trace, callable);
      FixContent(trace, callable);
      return CallOp(trace, call, *op);
    }
    throw Refusal(callable);
  }
  // A bound method of a builtin object that existed before: which method, and of which object. The row of a callable of
  // another type (np.median) says nothing about other callables of the type.
  GuardTypeOrIdentity(trace, callable);
  FixContent(trace, callable);
  if (Py_TYPE(callable) == Objects().method_wrapper) {
    Ref<> self = Must(PyObject_GetAttrString(callable, "__self__"));
    AdoptResult(trace, self.get());
    call.args.insert(call.args.begin(), self.get());  // the wrapper keeps it
    call.shadows.insert(call.shadows.begin(), Shadow());
  }
  if (PyCFunction_Check(callable)) {
    // A bound method of a builtin object: the object is an argument like any other.
    PyObject* self = PyCFunction_GET_SELF(callable);
    if (!IsModuleFunction(callable)) {
      const Shadow shadow = MeetSelf(trace, callable, self);
      call.args.insert(call.args.begin(), self);
      call.shadows.insert(call.shadows.begin(), shadow);
    }
  }
  switch (row->conduct) {
    case Conduct::kSpecial:
      return row->special(trace, call);
    case Conduct::kPure:
      for (size_t i = 0; i < call.args.size(); ++i) {
        if (IsTensor(call.args[i])) throw Break{Reason::unknown_operation, std::string(row->name) + " of a tensor"};
        SpecializeDeep(trace, call.args[i], call.shadows[i], false);
      }
      return ReadIdentities(trace, row->reads, call);
    case Conduct::kPureObjects:
    case Conduct::kTransparent:
      for (size_t i = 0; i < call.args.size(); ++i) {
        if (row->conduct == Conduct::kTransparent && IsTensor(call.args[i])) {
          // min(t), any(t): iterates over the tensor and asks for truth.
          throw Break{Reason::value_of_tensor, row->name};
        }
        SpecializeDeep(trace, call.args[i], call.shadows[i], true);
        if (row->conduct == Conduct::kPureObjects) ReadLayout(trace, call.args[i]);
      }
      if (row->conduct == Conduct::kTransparent) ReadCallbacks(trace, call);
      return ReadIdentities(trace, row->reads, call);
    case Conduct::kTorch:
      return TorchCall(trace, call.note, &call, row->name);
    case Conduct::kState:
      for (size_t i = 0; i < call.args.size(); ++i) Specialize(trace, call.args[i], call.shadows[i]);
      if (std::strcmp(row->name, "autocast_increment_nesting") == 0) trace.thread.autocast_nesting += 1;
      if (std::strcmp(row->name, "autocast_decrement_nesting") == 0) trace.thread.autocast_nesting -= 1;
      if (std::strcmp(row->name, "clear_autocast_cache") == 0) ++trace.aten.autocast_cleared;
      return;
    case Conduct::kTensorValue:
      throw Break{Reason::value_of_tensor, row->name};
    case Conduct::kRefused:
      throw Refusal(callable);
    case Conduct::kMutates:
      return Mutate(trace, call, *row);
  }
}

}  // namespace frametap
