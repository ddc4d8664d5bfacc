// Calls: what kind of callable it is, what it reads, and how its arguments reach the frame of a Python function.
#include <cstddef>
#include <cstring>
#include <string_view>
#include <tuple>

#include "frame_eval/record/callables/getters.h"
#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/numbers/rows.h"
#include "frame_eval/record/objects/outside_containers.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/objects/weak_references.h"
#include "frame_eval/record/recorder.h"
#include "frame_eval/record/semantics/descriptors.h"
#include "frame_eval/record/semantics/elements.h"
#include "frame_eval/segment/compiled_form.h"
#include "frame_eval/segment/new_objects.h"
#include "guards/kinds/keys.h"
#include "guards/must.h"
#include "guards/objects/dict_read.h"
#include "guards/objects/known_objects.h"
#include "guards/objects/tensor_door.h"

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

// The parts of a partial from outside: __setstate__ replaces them. An open one may be another one with equal parts.
void ReadPartial(Recorder& r, PyObject* partial, PyObject* function, PyObject* args, PyObject* keywords, bool is_open) {
  const SourceId source = r.SourceOf(partial);
  if (!source.valid()) return;
  if (is_open) r.guards().Type(source, r.Here());
  static PyObject* const kParts[] = {InternedName("func"), InternedName("args"), InternedName("keywords")};
  PyObject* const values[] = {function, args, keywords};
  for (int i = 0; i < 3; ++i) {
    const SourceId part = r.guards().Child(source, Accessor::kAttr, 0, kParts[i], values[i]);
    if (!is_open) r.guards().Identity(part, r.Here());
    r.FromSource(part, values[i], !is_open);
  }
  if (is_open) {
    r.AdoptElements(args);
    return r.AdoptElements(keywords);
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i) r.AdoptPinned(PyTuple_GET_ITEM(args, i), "partial.args");
  if (PyDict_GET_SIZE(keywords) > 0) r.AdoptElements(keywords);
}

// Its replays compute the same as plain Python. A form of another backend or of int8 does not (its weights belong to
// one model).
bool RunsAsRecorded(Store& store) { return store.backend().calls_python() && !store.options().by_identity; }

// torch.ops.x.y and torch.ops.x.y.z are objects of Python code. Each passes its arguments to a function of C that no
// other object holds. Returns the op's name without its namespace, or null if `callable` is not such a function. If a
// name has several overloads, that function chooses one and passes it to the dispatcher.
const char* CalledOp(Recorder& r, PyObject* callable) {
  static PyObject *const function_name = InternedName("_op"), *const packet_name = InternedName("_qualified_op_name"),
                         *const schema_name = InternedName("_name"), *const overloads = InternedName("_overload_names");
  const Known* known = PyCFunction_Check(callable) ? r.Find(callable) : nullptr;
  if (known == nullptr || known->state != Known::State::kSource) return nullptr;
  if (PyCFunction_GET_FUNCTION(callable) != Objects().bound_by_torch) return nullptr;
  const SourceId parent = r.guards().parent(known->source);
  if (!parent.valid() || r.guards().KeyOf(known->source) != function_name) return nullptr;
  PyObject* const owner = r.guards().seen(parent);
  const bool is_packet = owner != nullptr && Py_TYPE(owner) == Objects().op_packet;
  if (!is_packet && (owner == nullptr || Py_TYPE(owner) != Objects().op_overload)) return nullptr;
  const Ref<> text = Must(PyObject_GenericGetAttr(owner, is_packet ? packet_name : schema_name));
  std::string name = PyUnicode_Check(text.get()) ? PyUnicode_AsUTF8(text.get()) : "", overload;
  if (is_packet) {
    const Ref<> all = Must(PyObject_GenericGetAttr(owner, overloads));
    if (!PyList_Check(all.get()) || PyList_GET_SIZE(all.get()) == 0) return nullptr;
    PyObject* const first = PyList_GET_ITEM(all.get(), 0);
    overload = PyUnicode_Check(first) ? PyUnicode_AsUTF8(first) : "";
  } else if (const size_t dot = name.find('.', name.find("::")); dot != std::string::npos) {
    overload = name.substr(dot + 1);
    name.resize(dot);
  }
  const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
  if (!op) return nullptr;  // an op of TorchScript alone
  const std::string& kept = op->schema().name();
  return kept.c_str() + kept.find("::") + 2;
}

bool IsOwnAndMayChange(Recorder& r, PyObject* object) {
  const Known* known = r.Find(object);
  const bool may_change = PyList_Check(object) || PyDict_Check(object) || PySet_Check(object);
  return may_change && known != nullptr && known->state != Known::State::kSource;
}

// Methods that keep what their argument holds, and not the argument.
bool TakesContent(const char* method) {
  for (const char* one :
       {"extend", "update", "difference_update", "intersection_update", "symmetric_difference_update"}) {
    if (std::strcmp(method, one) == 0) return true;
  }
  return false;
}

// A row of the trace's own as a tuple that holds the same.
Ref<> TupleOf(Recorder& r, PyObject* row) {
  Ref<> tuple = Must(PySequence_Tuple(row));
  if (PyTuple_GET_SIZE(tuple.get()) == 0) return tuple;  // there is one
  Known& known = r.AddFresh(tuple.get());
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple.get()); ++i) known.items.push_back(r.ElementShadow(row, i));
  return tuple;
}

// A copy of the present content of `arg`, for an effect that takes it. Effects are described at the end, when the
// trace may have changed it. An object from outside changes by effects, which come in their order.
Ref<> ContentNow(Recorder& r, PyObject* arg, const char* method) {
  const auto iterates_as = [arg](const PyTypeObject& builtin) { return Py_TYPE(arg)->tp_iter == builtin.tp_iter; };
  const Known* known = r.Find(arg);
  const bool is_ordered = PyODict_CheckExact(arg);
  const bool is_dict = is_ordered || (PyDict_Check(arg) && iterates_as(PyDict_Type));
  const bool is_list = PyList_Check(arg) && iterates_as(PyList_Type);
  const bool is_builtin = is_dict || is_list || PyAnySet_CheckExact(arg);
  if (Recorder::IsScalar(arg) || PyRange_Check(arg) || PyFrozenSet_CheckExact(arg) ||
      (PyTuple_Check(arg) && iterates_as(PyTuple_Type)) ||
      (is_builtin && known != nullptr && known->state == Known::State::kSource)) {
    return Ref<>::New(arg);
  }
  if (is_list) return TupleOf(r, arg);
  if (PyDictViewSet_Check(arg) || PyDictValues_Check(arg)) {
    Ref<> content = Must(PySequence_Tuple(arg));
    r.AdoptResult(content.get());
    return content;
  }
  Ref<> copy;
  if (is_ordered) {
    copy = Must(PyDict_New());
    const Ref<> keys = KeysInOrder(arg);
    if (PyTuple_GET_SIZE(keys.get()) != PyDict_GET_SIZE(arg)) copy = Ref<>();
    for (Py_ssize_t i = 0; copy && i < PyTuple_GET_SIZE(keys.get()); ++i) {
      PyObject* key = PyTuple_GET_ITEM(keys.get(), i);
      PyObject* value = Recorder::IsScalar(key) ? ItemQuietly(arg, key) : nullptr;  // no hash of code
      if (value == nullptr || PyDict_SetItem(copy.get(), key, value) < 0) copy = Ref<>();
    }
    PyErr_Clear();
  } else if (is_dict) {
    copy = CopyDict(arg);
  } else if (PySet_CheckExact(arg)) {
    if (std::strcmp(method, "extend") == 0) return TupleOf(r, arg);
    copy = Must(PySet_New(arg));
    const Ref<> order = Must(PySequence_Tuple(arg)), order_of_copy = Must(PySequence_Tuple(copy.get()));
    for (Py_ssize_t i = 0; copy && i < PyTuple_GET_SIZE(order.get()); ++i) {
      if (PyTuple_GET_ITEM(order.get(), i) != PyTuple_GET_ITEM(order_of_copy.get(), i)) copy = Ref<>();
    }
  }
  if (!copy) {
    throw Break{Reason::unknown_mutation, std::string(method) + " with an object of type " + Py_TYPE(arg)->tp_name};
  }
  r.AddFresh(copy.get());
  return copy;
}

// dict.update([[key, value]]): the pairs are taken apart too, also the pairs of a sequence from outside.
Ref<> PairsNow(Recorder& r, PyObject* rows) {
  const PyTypeObject& builtin = PyTuple_Check(rows) ? PyTuple_Type : PyList_Type;
  if (Py_TYPE(rows)->tp_iter != builtin.tp_iter) return ContentNow(r, rows, "update");
  Ref<> pairs = Must(PyList_New(0));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(rows); ++i) {
    const Ref<> pair = ContentNow(r, PySequence_Fast_GET_ITEM(rows, i), "update");
    if (PyList_Append(pairs.get(), pair.get()) < 0) throw std::bad_alloc();
  }
  return TupleOf(r, pairs.get());
}

// dict.update(key=value …) of a dict that existed before: a store under each key. Returns false if it is another call.
bool UpdateByNames(Recorder& r, const Call& call) {
  PyObject* const dict = call.args[0];
  const Known* const known = r.Find(dict);
  if (known == nullptr || known->state != Known::State::kSource || !PyDict_CheckExact(dict)) return false;
  if (call.positional() != 1 || call.names.empty()) return false;
  for (size_t i = 0; i < call.names.size(); ++i) {
    FrameNote store;
    r.StoreSubscript(store, dict, call.names[i], call.args[i + 1], Shadow(), call.shadows[i + 1]);
  }
  return true;
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
bool GetsFromAll(Recorder& r, const Call& call, PyObject* getter) {
  for (PyObject* other : call.args) {
    if (other == getter || other == nullptr || Recorder::IsScalar(other)) continue;
    if (!PyTuple_CheckExact(other) && !PyList_CheckExact(other)) {
      if (!ReadByGetter(r, getter, other)) return false;
      continue;
    }
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(other); ++i) {
      if (!ReadByGetter(r, getter, PySequence_Fast_GET_ITEM(other, i))) return false;
    }
  }
  return true;
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
void Recorder::ReadCallbacks(const Call& call) {
  for (PyObject* arg : call.args) {
    if (arg == nullptr || !PyCallable_Check(arg) || IsTensor(arg)) continue;
    PyObject* function = PyMethod_Check(arg) ? PyMethod_GET_FUNCTION(arg) : arg;
    Ref<> inner;
    if (Py_TYPE(arg) == Objects().partial) {
      inner = Must(PyObject_GetAttrString(arg, "func"));
      Ref<> args = Must(PyObject_GetAttrString(arg, "args"));
      Ref<> keywords = Must(PyObject_GetAttrString(arg, "keywords"));
      ReadPartial(*this, arg, inner.get(), args.get(), keywords.get(), false);
      function = inner.get();
    }
    if (PyFunction_Check(function)) continue;
    if (inner) throw Break{Reason::unknown_callable, "functools.partial of what is not a function of Python code"};
    static PyObject* const call_name = InternedName("__call__");
    const CallableRow* row = FindCallable(function);
    if (row == nullptr && PyType_Check(function)) {
      if (MakesPlainInstances(reinterpret_cast<PyTypeObject*>(function))) {
        ReadsConstructor(guards_);
        continue;
      }
    } else if (row == nullptr) {
      PyObject* method = _PyType_Lookup(Py_TYPE(function), call_name);
      if (method != nullptr && PyFunction_Check(method)) continue;
      if (IsGetter(function) && GetsFromAll(*this, call, arg)) continue;
      if (Py_TYPE(function) == ComparisonKey() && Find(function) != nullptr && !SourceOf(function).valid()) continue;
    } else if (row->conduct == Conduct::kTorch) {
      for (PyObject* other : call.args) ReadAllTensors(other, true);
      continue;
    } else if (function == reinterpret_cast<PyObject*>(&PyType_Type) && CallsWithOne(call)) {
      continue;  // who calls it has fixed all that is in its arguments
    } else if (row->by_value) {
      const bool bound = PyCFunction_Check(function) && !IsModuleFunction(function);
      PyObject* const self = bound ? PyCFunction_GET_SELF(function) : nullptr;
      if (bound) ForceDeep(self, MeetSelf(function, self), false);
      if (bound && PyDict_Check(self) && !HoldsPlainValues(self)) throw Refusal(function);  // it compares with the keys
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
bool Recorder::IsOpen(PyObject* callable) {
  const Known* known = Find(callable);
  return known != nullptr && known->state == Known::State::kSource && !known->pinned && !known->touched &&
         !store_.options().by_identity;
}

Recorder::Pending& Recorder::ExpectFrame(PyObject* function) {
  FixCode(function);
  if (!IsOpen(function)) Touch(function);
  pending_.function = function;
  has_pending_ = true;
  return pending_;
}

void Recorder::InvokePython(Call& call, PyObject* function) {
  Pending& pending = ExpectFrame(function);
  pending.args.assign(call.args.begin(), call.args.end());
  pending.shadows.assign(call.shadows.begin(), call.shadows.end());
  pending.names.assign(call.names.begin(), call.names.end());
  call.note.expect.kind = Expect::Kind::kAny;
}

void Recorder::InvokePartial(Call& call) {
  Ref<> partial = Ref<>::New(call.callable);
  const bool is_open = IsOpen(partial.get());
  if (!is_open) Touch(partial.get());
  Ref<> function = Ref<>::Steal(PyObject_GetAttrString(partial.get(), "func"));
  Ref<> args = Ref<>::Steal(PyObject_GetAttrString(partial.get(), "args"));
  Ref<> keywords = Ref<>::Steal(PyObject_GetAttrString(partial.get(), "keywords"));
  if (!function || !args || !keywords || !PyTuple_Check(args.get()) || !PyDict_Check(keywords.get())) {
    PyErr_Clear();
    throw Break{Reason::unknown_callable, "functools.partial"};
  }
  ReadPartial(*this, partial.get(), function.get(), args.get(), keywords.get(), is_open);
  Call inner{call.f, call.note, function.get(), {}, {}, {}};
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args.get()); ++i) {
    inner.args.push_back(PyTuple_GET_ITEM(args.get(), i));
    inner.shadows.push_back(is_open ? ElementShadow(args.get(), i) : Shadow());
  }
  for (size_t i = 0; i < call.positional(); ++i) {
    inner.args.push_back(call.args[i]);
    inner.shadows.push_back(call.shadows[i]);
  }
  Py_ssize_t at = 0;
  PyObject *key, *value;
  while (PyDict_Next(keywords.get(), &at, &key, &value)) {
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
  Invoke(std::move(inner));
}

void Recorder::InvokeType(Call& call, PyTypeObject* type) {
  RefuseOddNames(type);
  RefuseOddNames(Py_TYPE(type));
  Touch(call.callable);
  if (const CallableRow* row = FindCallable(call.callable); row != nullptr) {
    if (row->special != nullptr) return row->special(*this, call);
    for (size_t i = 0; i < call.args.size(); ++i) {
      if (row->conduct == Conduct::kPure && IsTensor(call.args[i])) {
        throw Break{Reason::value_of_tensor, row->name};
      }
      if (row->conduct == Conduct::kTransparent && IsTensor(call.args[i])) ReadTensor(call.args[i], true, false);
      ForceDeep(call.args[i], call.shadows[i], true);
    }
    if (row->conduct == Conduct::kTransparent) {  // an iterator
      for (PyObject* arg : call.args) ViewRows(*this, arg);
      ReadCallbacks(call);
    }
    return ReadIdentities(row->reads, call);
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
  guards_.Class(type, Here());
  ReadsConstructor(guards_);
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
      ForceArguments(call, 0, true);
    }
    // The new object is the first argument; it is not there yet, and needs no shadow.
    pending_.function = init;
    pending_.args.assign(1, Py_None);
    pending_.shadows.assign(1, Shadow());
    pending_.args.insert(pending_.args.end(), call.args.begin(), call.args.end());
    pending_.shadows.insert(pending_.shadows.end(), call.shadows.begin(), call.shadows.end());
    pending_.names.assign(call.names.begin(), call.names.end());
    has_pending_ = true;
    call.note.for_new.assign(call.shadows.begin(), call.shadows.end());
    return;
  }
  static PyObject* const plain_init = _PyType_Lookup(&PyBaseObject_Type, init_name);
  const Ref<> function = python_new && init == plain_init ? WrappedFunction(make) : Ref<>();
  if (!function) return ForceArguments(call, 0, true);
  // Nothing but its __new__ looks at the arguments, if that gives an instance of the class itself (After).
  Pending& pending = ExpectFrame(function.get());  // the class keeps it
  pending.args.assign(1, call.callable);
  pending.shadows.assign(1, Shadow());
  pending.args.insert(pending.args.end(), call.args.begin(), call.args.end());
  pending.shadows.insert(pending.shadows.end(), call.shadows.begin(), call.shadows.end());
  pending.names.assign(call.names.begin(), call.names.end());
  call.note.for_new.assign(call.shadows.begin(), call.shadows.end());
  call.note.called_type = type;
}

void Recorder::Invoke(Call call) {
  PyObject* callable = call.callable;
  call.note.expect.kind = Expect::Kind::kAny;
  if (PyMethod_Check(callable)) {
    PyObject* self = PyMethod_GET_SELF(callable);
    Shadow shadow;
    if (Known* known = Find(callable); known != nullptr && known->state == Known::State::kSource && !known->pinned) {
      // `obj.method` makes a new one each time: what it binds is what counts.
      const SourceId source = known->source;
      PyObject* function = PyMethod_GET_FUNCTION(callable);
      guards_.Type(source, Here());
      shadow = MeetSelf(callable, self);
      FromSource(guards_.Child(source, Accessor::kFunc, 0, nullptr, function), function, false);
    } else {
      Touch(callable);
      shadow = MeetSelf(callable, self);
    }
    call.args.insert(call.args.begin(), self);
    call.shadows.insert(call.shadows.begin(), shadow);
    call.callable = PyMethod_GET_FUNCTION(callable);
    return Invoke(std::move(call));
  }
  if (PyFunction_Check(callable)) {
    if (PyFunction_GET_CODE(callable) == Objects().tuple_replace && InvokeReplace(call)) return;
    const CallableRow* row = FindCallable(callable);
    if (row == nullptr || row->special == nullptr) return InvokePython(call, callable);
    Touch(callable);
    return row->special(*this, call);
  }
  if (PyObject* compiled = CompiledFormOf(callable)) {
    // Inside a recording it only passes the call on, to one and the same object.
    Touch(callable);
    FixContent(callable);
    if (!RunsAsRecorded(*StoreOf(compiled))) throw Break{Reason::own_executable, CallableName(callable)};
    if (PyObject* self = SelfOf(compiled)) AdoptPinned(self);
    const Ref<> original = Must(PyObject_GetAttrString(compiled, "_original"));
    call.callable =
        PyMethod_Check(original.get()) || SelfOf(compiled) != nullptr ? original.get() : FunctionOf(compiled);
    return Invoke(std::move(call));
  }
  if (Py_TYPE(callable) == Objects().partial) return InvokePartial(call);
  if (Py_TYPE(callable) == Objects().cached_function) return InvokeCached(call);
  if (IsGetter(callable)) return CallGetter(*this, call);
  if (PyWeakref_CheckRefExact(callable)) return CallWeakReference(*this, call);
  for (PyObject* arg : call.args) MarkAdvanced(arg);
  if (PyType_Check(callable)) return InvokeType(call, reinterpret_cast<PyTypeObject*>(callable));

  const CallableRow* row = FindCallable(callable);
  if (row == nullptr) {
    PyTypeObject* type = Py_TYPE(callable);
    RefuseOddNames(type);
    static PyObject* call_name = InternedName("__call__");
    PyObject* method = (type->tp_flags & Py_TPFLAGS_HEAPTYPE) ? _PyType_Lookup(type, call_name) : nullptr;
    if (method != nullptr && PyFunction_Check(method)) {
      Touch(callable);
      call.args.insert(call.args.begin(), callable);
      call.shadows.insert(call.shadows.begin(), Shadow());
      return InvokePython(call, method);
    }
    if (const char* name = CalledOp(*this, callable)) {
      Touch(callable);
      return TorchCall(call.note, &call, name);
    }
    throw Refusal(callable);
  }
  // A bound method of a builtin object that existed before: which method, and of which object.
  Touch(callable);
  if (Py_TYPE(callable) == Objects().method_wrapper) {
    Ref<> self = Must(PyObject_GetAttrString(callable, "__self__"));
    AdoptResult(self.get());
    call.args.insert(call.args.begin(), self.get());  // the wrapper keeps it
    call.shadows.insert(call.shadows.begin(), Shadow());
  }
  if (PyCFunction_Check(callable)) {
    // A bound method of a builtin object: the object is an argument like any other.
    PyObject* self = PyCFunction_GET_SELF(callable);
    if (!IsModuleFunction(callable)) {
      const Shadow shadow = MeetSelf(callable, self);
      call.args.insert(call.args.begin(), self);
      call.shadows.insert(call.shadows.begin(), shadow);
    }
  }
  switch (row->conduct) {
    case Conduct::kSpecial:
      return row->special(*this, call);
    case Conduct::kPure:
      for (size_t i = 0; i < call.args.size(); ++i) {
        if (IsTensor(call.args[i])) throw Break{Reason::unknown_operation, std::string(row->name) + " of a tensor"};
        ForceDeep(call.args[i], call.shadows[i], false);
      }
      return ReadIdentities(row->reads, call);
    case Conduct::kPureObjects:
    case Conduct::kTransparent:
      for (size_t i = 0; i < call.args.size(); ++i) {
        if (row->conduct == Conduct::kTransparent && IsTensor(call.args[i])) {
          // min(t), any(t): iterates over the tensor and asks for truth.
          throw Break{Reason::value_of_tensor, row->name};
        }
        ForceDeep(call.args[i], call.shadows[i], true);
        if (row->conduct == Conduct::kPureObjects) ReadLayout(call.args[i]);
      }
      if (row->conduct == Conduct::kTransparent) ReadCallbacks(call);
      return ReadIdentities(row->reads, call);
    case Conduct::kTorch:
      return TorchCall(call.note, &call, row->name);
    case Conduct::kState:
      for (size_t i = 0; i < call.args.size(); ++i) Force(call.args[i], call.shadows[i]);
      if (std::strcmp(row->name, "autocast_increment_nesting") == 0) CountAutocastNesting(1);
      if (std::strcmp(row->name, "autocast_decrement_nesting") == 0) CountAutocastNesting(-1);
      if (std::strcmp(row->name, "clear_autocast_cache") == 0) aten_.NoteAutocastCleared();
      return;
    case Conduct::kTensorValue:
      throw Break{Reason::value_of_tensor, row->name};
    case Conduct::kRefused:
      throw Refusal(callable);
    case Conduct::kMutates:
      return Mutate(call, *row);
  }
}

// A method that changes its first argument, a builtin container.
void Recorder::Mutate(Call& call, const CallableRow& row) {
  if (call.args.empty()) return;
  PyObject* self = call.args[0];
  if (ChangeList(call, row.name)) return;
  if (std::strcmp(row.name, "update") == 0 && (UpdateOwn(call) || UpdateByNames(*this, call))) return;
  if (std::strcmp(row.name, "pop") == 0 && PopOwn(call)) return;
  if (call.args.size() == 2 && call.names.empty() && PyList_CheckExact(self)) {
    if (std::strcmp(row.name, "append") == 0 && AppendOutside(self, nullptr, call.args[1], call.shadows[1])) return;
    if (std::strcmp(row.name, "extend") == 0 && AppendOutside(self, call.args[1], nullptr, Shadow())) return;
  }
  const auto adds_key = [&] { return std::strcmp(row.name, IsAnySet(self) ? "add" : "setdefault") == 0; };
  const bool may_be_open = call.args.size() > 1 && (has_open_keys_ || AddressedBy(call.shadows[1]).valid());
  const bool stays_open = may_be_open && adds_key() && AddKey(self, call.args[1], call.shadows[1]);
  for (size_t i = stays_open ? 2 : 1; i < call.args.size(); ++i) {
    if (std::strcmp(row.name, "append") == 0 || std::strcmp(row.name, "add") == 0) {
      IsAnySet(self) ? ForceKey(call.args[i], call.shadows[i]) : Force(call.args[i], call.shadows[i]);
    } else {
      ForceDeep(call.args[i], call.shadows[i], true);
      ReadLayout(call.args[i]);
    }
  }
  if (std::strcmp(row.name, "pop") == 0) {
    if (IsAnySet(self)) ReadOrder(self);
    ReadLayout(self);
  }
  Known* known = Find(self);
  if (known == nullptr) throw Break{Reason::unknown_mutation, CallableName(call.callable)};
  bool is_source = known->state == Known::State::kSource;
  Own(self);
  ReadIdentities(row.reads, call);
  if (is_source) {
    const Ref<> method = EffectMethod(self, Must(PyUnicode_InternFromString(row.name)).get());
    PyErr_Clear();
    // dict.pop of an OrderedDict is not its pop.
    const bool is_own = method && FindCallable(method.get()) == &row;
    if (!call.names.empty() || !is_own) throw Break{Reason::unknown_mutation, CallableName(call.callable)};
    std::vector<PyObject*> values(call.args.begin() + 1, call.args.end());
    std::vector<Ref<>> contents;  // AddEffect keeps them
    for (PyObject*& value : values) {
      if (!TakesContent(row.name)) break;
      const bool is_row = PyTuple_Check(value) || PyList_Check(value);
      contents.push_back(is_row && PyDict_Check(self) ? PairsNow(*this, value) : ContentNow(*this, value, row.name));
      value = contents.back().get();
    }
    if (row.reads != Reads::kValues && contents.empty() && !values.empty() && IsOwnAndMayChange(*this, values[0])) {
      throw Break{Reason::unknown_mutation, CallableName(call.callable)};  // remove: compared with the present content
    }
    AddEffect(Effect::Kind::kCall, self, row.name, values, std::vector<Shadow>(values.size()));
  }
}

}  // namespace frametap
