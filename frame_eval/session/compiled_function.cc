#include "frame_eval/session/compiled_function.h"

#include <structmember.h>

#include <algorithm>
#include <cstring>

#include "absl/container/inlined_vector.h"
#include "frame_eval/checks/fault_observer.h"
#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/cpython/parameters.h"
#include "frame_eval/interpreter/hook.h"
#include "frame_eval/record/trace/aten_recorder.h"
#include "frame_eval/replay/faults.h"
#include "frame_eval/replay/reify.h"
#include "frame_eval/replay/run_graph.h"
#include "frame_eval/session/module_target.h"
#include "frame_eval/session/self_check.h"
#include "frame_eval/session/session.h"
#include "guards/objects/import.h"
#include "guards/objects/thread_end.h"
#include "guards/objects/torch_tensor.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

using Slots = absl::InlinedVector<PyObject*, 24>;

// Binds arguments to a function's parameters. `made` keeps *args and **kwargs alive. Returns false if plain Python
// shall raise.
bool Bind(PyFunctionObject* function, PyObject* const* args, size_t count, PyObject* kwnames, Slots* slots,
          std::vector<Ref<>>* made) {
  auto* code = reinterpret_cast<PyCodeObject*>(function->func_code);
  const Parameters parameters(code);
  const size_t argcount = static_cast<size_t>(parameters.positional);
  const size_t named = static_cast<size_t>(parameters.named);
  slots->assign(static_cast<size_t>(SlotCount(code)), nullptr);
  const size_t given_names = kwnames ? static_cast<size_t>(PyTuple_GET_SIZE(kwnames)) : 0;
  if (count > argcount && parameters.varargs < 0) return false;
  for (size_t i = 0; i < count && i < argcount; ++i) (*slots)[i] = args[i];
  if (parameters.varargs >= 0) {
    size_t extra = count > argcount ? count - argcount : 0;
    Ref<> tuple = Ref<>::Steal(PyTuple_New(static_cast<Py_ssize_t>(extra)));
    if (!tuple) return false;
    for (size_t i = 0; i < extra; ++i) {
      PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), Ref<>::New(args[argcount + i]).Release());
    }
    (*slots)[static_cast<size_t>(parameters.varargs)] = tuple.get();
    made->push_back(std::move(tuple));
  }
  PyObject* kwargs = nullptr;
  if (parameters.kwargs >= 0) {
    made->push_back(Ref<>::Steal(PyDict_New()));
    kwargs = made->back().get();
    if (kwargs == nullptr) return false;
    (*slots)[static_cast<size_t>(parameters.kwargs)] = kwargs;
  }
  for (size_t k = 0; k < given_names; ++k) {
    PyObject* name = PyTuple_GET_ITEM(kwnames, static_cast<Py_ssize_t>(k));
    if (const int slot = parameters.SlotOf(name); slot >= 0) {
      PyObject*& taken = (*slots)[static_cast<size_t>(slot)];
      if (taken != nullptr) return false;
      taken = args[count + k];
    } else {
      if (kwargs == nullptr || PyDict_SetItem(kwargs, name, args[count + k]) < 0) return false;
    }
  }
  if (count < argcount) {
    size_t defaults = function->func_defaults ? static_cast<size_t>(PyTuple_GET_SIZE(function->func_defaults)) : 0;
    for (size_t i = count; i < argcount; ++i) {
      if ((*slots)[i] != nullptr) continue;
      if (i + defaults < argcount) return false;
      (*slots)[i] = PyTuple_GET_ITEM(function->func_defaults, static_cast<Py_ssize_t>(i + defaults - argcount));
    }
  }
  for (size_t i = argcount; i < named; ++i) {
    if ((*slots)[i] != nullptr) continue;
    PyObject* value = function->func_kwdefaults
                          ? PyDict_GetItemWithError(function->func_kwdefaults, SlotName(code, static_cast<int>(i)))
                          : nullptr;
    if (value == nullptr) return false;
    (*slots)[i] = value;
  }
  return true;
}

enum class Fast : uint8_t { kDone, kRaised, kSlow };

// Replays a segment that ends in `return`. kSlow: no segment fits, or it needs a frame.
Fast ReplayCall(SegmentCache& store, PyFunctionObject* function, PyObject* const* args, size_t count, PyObject* kwnames,
                PyObject** result) {
  if (fault_observer != nullptr) [[unlikely]]
    fault_observer->BeforeLookUp(store);
  AllocZone zone;
  auto* code = reinterpret_cast<PyCodeObject*>(function->func_code);
  EntryPoint* entry = store.Find(code, StartOffset(code));
  if (entry == nullptr || entry->empty()) return Fast::kSlow;
  Slots slots;
  std::vector<Ref<>> made;
  if (!Bind(function, args, count, kwnames, &slots, &made)) {
    PyErr_Clear();
    return Fast::kSlow;
  }
  Roots roots;
  roots.localsplus = slots.data();
  roots.nlocalsplus = static_cast<int>(slots.size());
  roots.cells_are_plain = true;
  roots.function = reinterpret_cast<PyObject*>(function);
  const EntryPoint::Candidates candidates = entry->LookUp(roots);
  // The one that was hit last is likely to be hit, and the session checks it anyway.
  if (!candidates.empty() && candidates.front()->ir.exit.kind != Exit::Kind::kReturn) return Fast::kSlow;
  for (const std::shared_ptr<Segment>& segment : candidates) {
    const Verdict verdict = Fits(*segment, roots);
    if (verdict == Verdict::kError) return Fast::kRaised;
    if (verdict != Verdict::kHit) continue;
    if (segment->ir.exit.kind != Exit::Kind::kReturn) return Fast::kSlow;
    if (segment != candidates.front()) store.MoveToFront(code, StartOffset(code), *segment, roots);
    Reifier reifier(*segment);
    if (PyErr_Occurred() != nullptr) return Fast::kRaised;
    std::vector<c10::IValue> outputs;
    if (const Ran ran = RunGraph(*segment, &outputs); ran != Ran::kThrough) {
      if (ran == Ran::kRaised) return Fast::kRaised;
      const bool is_fault = ran == Ran::kFault || ran == Ran::kBroken;
      if (is_fault && !TellFault(store, *segment, ran == Ran::kFault)) return Fast::kRaised;
      if (ran == Ran::kRefused) store.LeftAlone(Reason::cannot_take_back, code, StartOffset(code));
      Suspicion suspicion;
      if (ran == Ran::kOpRaised) suspicion.Take(segment);
      // The call has done nothing yet: plain Python raises the exception at its own line.
      PyErr_Clear();
      AllocZone outside(false);
      *result = PyObject_Vectorcall(reinterpret_cast<PyObject*>(function), args, count, kwnames);
      if (*result != nullptr && suspicion.is_held() && !suspicion.Confirm(store)) Py_CLEAR(*result);
      return *result ? Fast::kDone : Fast::kRaised;
    }
    reifier.set_outputs(std::move(outputs));
    if (!reifier.Prepare()) return Fast::kRaised;
    Ref<> value = reifier.Make(segment->ir.exit.result);
    if (!value || !reifier.Commit()) return Fast::kRaised;
    store.Hit(*segment);
    *result = value.Release();
    return Fast::kDone;
  }
  return Fast::kSlow;
}

PyObject* CallTarget(const CompiledFunction* self, PyObject* target, PyObject* const* args, size_t count,
                     PyObject* kwnames) {
  if (!PyFunction_Check(target) || Session::IsRecording() || IsInsideOp()) {
    return PyObject_Vectorcall(target, args, count, kwnames);
  }
  std::shared_ptr<SegmentCache> store = *self->store;
  if (!self->capturable && store->options().fullgraph) {
    RaiseFullGraphError(Reason::generator_function, reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(target)));
    return nullptr;
  }
  if (!self->capturable || ThreadIsTraced()) {
    store->LeftAlone(self->capturable ? Reason::thread_is_traced : Reason::generator_function,
                     reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(target)), 0);
    return PyObject_Vectorcall(target, args, count, kwnames);
  }
  PyObject* result = nullptr;
  switch (ReplayCall(*store, reinterpret_cast<PyFunctionObject*>(target), args, count, kwnames, &result)) {
    case Fast::kDone:
      return result;
    case Fast::kRaised:
      return nullptr;
    case Fast::kSlow:
      break;
  }
  bool is_taken_back = false;
  {
    Session session(store, target);
    result = session.Run(target, args, count, kwnames);
    is_taken_back = session.is_taken_back();
  }
  if (!is_taken_back || result == nullptr) return result;
  // Answered by the replay. Where that is not possible after all, plain Python is.
  Py_CLEAR(result);
  const Fast again = ReplayCall(*store, reinterpret_cast<PyFunctionObject*>(target), args, count, kwnames, &result);
  if (again != Fast::kSlow) return again == Fast::kDone ? result : nullptr;
  return PyObject_Vectorcall(target, args, count, kwnames);
}

// The function that a call runs, borrowed. Null means the result of Python's look-up at the call.
PyObject* TargetOf(CompiledFunction* self, bool* is_forward) {
  if (self->function == nullptr) return nullptr;  // the garbage collection has cleared it
  if (self->callee == Callee::kModule) return ModuleTarget(self, is_forward);
  return self->callee == Callee::kObject ? CallOfClass(self->self) : self->function;
}

PyObject* CallPlainly(const CompiledFunction* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  if (self->function == nullptr) {
    PyErr_SetString(PyExc_ReferenceError, "what was compiled is being collected as garbage");
    return nullptr;
  }
  const Ref<> held = Ref<>::New(self->self);
  return PyObject_Vectorcall(held.get(), args, nargsf, kwnames);
}

PyObject* Call(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  auto* self = reinterpret_cast<CompiledFunction*>(object);
  size_t count = static_cast<size_t>(PyVectorcall_NARGS(nargsf));
  bool is_forward = false;
  // A recorder sees __call__ for itself (and asks of it only what there is to ask).
  const bool is_watched = self->callee == Callee::kModule && Session::IsRecording();
  PyObject* target = is_watched ? nullptr : TargetOf(self, &is_forward);
  if (target == nullptr) return CallPlainly(self, args, nargsf, kwnames);
  // `self` goes first.
  absl::InlinedVector<PyObject*, 12> all;
  if (self->self != nullptr) {
    size_t total = count + (kwnames ? static_cast<size_t>(PyTuple_GET_SIZE(kwnames)) : 0);
    all.reserve(total + 1);
    all.push_back(self->self);
    all.insert(all.end(), args, args + total);
    args = all.data();
    ++count;
  }
  // Held for the call: the class or the object may drop it meanwhile.
  Ref<> held = Ref<>::New(target);
  PyObject* result = CallTarget(self, target, args, count, kwnames);
  if (result == nullptr && is_forward) AddModuleFrames();
  return result;
}

// Law F3: what the package says of copies, pickles and classes.
PyObject* AskPackage(const char* name, PyObject* args) {
  const Ref<> arguments = Ref<>::Steal(args);
  const Ref<> module = arguments ? ImportModule("frametap._compile") : Ref<>();
  const Ref<> function = module ? Ref<>::Steal(PyObject_GetAttrString(module.get(), name)) : Ref<>();
  return function ? PyObject_CallObject(function.get(), arguments.get()) : nullptr;
}

// A module may be given another class, by its own first call too (lazy modules): what users hold is to follow.
void AnnounceClass(PyObject* object) {
  auto* self = reinterpret_cast<CompiledFunction*>(object);
  if (self->self == nullptr || self->route->announced == Py_TYPE(self->self)) return;
  const ErrScope keep;
  self->route->announced = Py_TYPE(self->self);
  const Ref<> done = Ref<>::Steal(AskPackage("follow_class", PyTuple_Pack(1, object)));
  if (!done) PyErr_WriteUnraisable(object);
}

PyObject* CallFunction(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* kwnames) noexcept {
  try {
    PyObject* result = Call(object, args, nargsf, kwnames);
    if (reinterpret_cast<CompiledFunction*>(object)->callee == Callee::kModule) AnnounceClass(object);
    return result;
  } catch (const abi::__forced_unwind&) {
    WaitForProcessEnd();
  } catch (...) {  // no memory before the program began
    if (PyErr_Occurred() == nullptr) SetPythonErrorFromException();
    return nullptr;
  }
}

PyObject* CallModule(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  const Ref<> compiled = Ref<>::New(FunctionOfKind(Py_TYPE(module)));
  if (compiled) return CallFunction(compiled.get(), args, static_cast<size_t>(count), kwnames);
  PyErr_Format(PyExc_TypeError, "'%.200s' object was not made by frametap.compile", Py_TYPE(module)->tp_name);
  return nullptr;
}

int Traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<CompiledFunction*>(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->function);
  Py_VISIT(self->self);
  Py_VISIT(self->callable);
  Py_VISIT(self->dict);
  // A store that a running call, a Python-side view or a bound copy shares may be reached from outside.
  if (self->store != nullptr && self->store->use_count() == 1) return (*self->store)->Traverse(visit, arg);
  return 0;
}

int Clear(PyObject* object) {
  auto* self = reinterpret_cast<CompiledFunction*>(object);
  if (self->store != nullptr) (*self->store)->Reset();
  Py_CLEAR(self->function);
  Py_CLEAR(self->self);
  Py_CLEAR(self->callable);
  Py_CLEAR(self->dict);
  return 0;
}

void Dealloc(PyObject* object) {
  // The call's exception may be on its way, and what the segments held may run code.
  ErrScope keep;
  auto* self = reinterpret_cast<CompiledFunction*>(object);
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  if (self->weakrefs != nullptr) PyObject_ClearWeakRefs(object);
  Py_CLEAR(self->function);
  Py_CLEAR(self->self);
  Py_CLEAR(self->callable);
  Py_CLEAR(self->dict);
  delete self->store;
  self->store = nullptr;
  delete self->route;
  self->route = nullptr;
  type->tp_free(object);
  Py_DECREF(type);
}

// Returns the original, or null with an AttributeError once the garbage collection has cleared it.
Ref<> OriginalOf(PyObject* object) {
  auto* self = reinterpret_cast<CompiledFunction*>(object);
  if (self->callee == Callee::kBoundMethod && self->self != nullptr) {
    return Ref<>::Steal(PyMethod_New(self->function, self->self));
  }
  PyObject* original = self->callable != nullptr ? self->callable : self->self != nullptr ? self->self : self->function;
  if (original == nullptr) PyErr_SetString(PyExc_AttributeError, "_original");
  return Ref<>::New(original);
}
PyObject* Original(PyObject* object, void*) { return OriginalOf(object).Release(); }

bool StandsForObject(const CompiledFunction* self) {
  return self->callee == Callee::kObject || self->callee == Callee::kCallable;
}

// Law F4: functions are bound, methods and modules are not, and other objects as their classes say.
PyObject* Get(PyObject* object, PyObject* instance, PyObject* owner) {
  auto* self = reinterpret_cast<CompiledFunction*>(object);
  if (self->callee == Callee::kFunction && instance != nullptr && instance != Py_None) {
    return PyMethod_New(object, instance);
  }
  if (!StandsForObject(self)) return Ref<>::New(object).Release();
  const Ref<> original = OriginalOf(object);
  if (!original) return nullptr;
  descrgetfunc get = Py_TYPE(original.get())->tp_descr_get;
  if (get == nullptr) return Ref<>::New(object).Release();
  Ref<> bound = Ref<>::Steal(get(original.get(), instance, owner));
  if (!bound) return nullptr;
  if (bound.get() == original.get()) return Ref<>::New(object).Release();
  if (PyMethod_Check(bound.get()) && PyMethod_GET_FUNCTION(bound.get()) == original.get()) {
    return PyMethod_New(object, PyMethod_GET_SELF(bound.get()));
  }
  return bound.Release();
}

// Law F4: what type() does to functions of these names while it makes a class.
PyObject* SetName(PyObject* object, PyObject* args) {
  PyObject *owner = nullptr, *name = nullptr;
  if (!PyArg_UnpackTuple(args, "__set_name__", 2, 2, &owner, &name)) return nullptr;
  auto* self = reinterpret_cast<CompiledFunction*>(object);
  if (StandsForObject(self)) {
    static PyObject* set_name = InternedName("__set_name__");
    const Ref<> original = OriginalOf(object);
    if (!original) return nullptr;
    if (_PyType_Lookup(Py_TYPE(original.get()), set_name) == nullptr) Py_RETURN_NONE;
    return PyObject_CallMethodObjArgs(original.get(), set_name, owner, name, nullptr);
  }
  if (self->callee != Callee::kFunction || !PyUnicode_Check(name)) Py_RETURN_NONE;
  const bool of_class = PyUnicode_CompareWithASCIIString(name, "__init_subclass__") == 0 ||
                        PyUnicode_CompareWithASCIIString(name, "__class_getitem__") == 0;
  if (!of_class && PyUnicode_CompareWithASCIIString(name, "__new__") != 0) Py_RETURN_NONE;
  const Ref<> wrapped = Ref<>::Steal(of_class ? PyClassMethod_New(object) : PyStaticMethod_New(object));
  if (!wrapped || PyObject_SetAttr(owner, name, wrapped.get()) < 0) return nullptr;
  Py_RETURN_NONE;
}

PyObject* Copy(PyObject* object, PyObject*) {
  if (!StandsForObject(reinterpret_cast<CompiledFunction*>(object))) return Ref<>::New(object).Release();
  return AskPackage("copy_of", PyTuple_Pack(1, object));
}
PyObject* DeepCopy(PyObject* object, PyObject* memo) {
  return AskPackage("deepcopy_of", PyTuple_Pack(2, object, memo));
}
PyObject* Reduce(PyObject* object, PyObject*) { return AskPackage("reduced", PyTuple_Pack(1, object)); }

PyObject* GetOfFunction(PyObject* object, void* name) {
  PyObject* function = FunctionOf(object);
  if (function != nullptr) return PyObject_GetAttrString(function, static_cast<const char*>(name));
  PyErr_SetString(PyExc_AttributeError, static_cast<const char*>(name));  // the garbage collection has cleared it
  return nullptr;
}
int SetOfFunction(PyObject* object, PyObject* value, void* name) {
  PyObject* function = FunctionOf(object);
  if (function != nullptr) return PyObject_SetAttrString(function, static_cast<const char*>(name), value);
  PyErr_SetString(PyExc_AttributeError, static_cast<const char*>(name));
  return -1;
}

// Law F5: the attributes of an object, a partial or a C function are the original's, and so are those that a method has
// of its function. `__wrapped__` leads to it, unless it has one of its own.
PyObject* GetAttribute(PyObject* object, PyObject* name) {
  static PyObject* const wrapped_name = InternedName("__wrapped__");
  static PyObject* const original_name = InternedName("_original");
  auto* self = reinterpret_cast<CompiledFunction*>(object);
  const bool is_method = self->callee == Callee::kBoundMethod;
  // It is called, copied, pickled and bound in its own way. The fields of objects in general come from the original.
  PyObject* own = _PyType_Lookup(Py_TYPE(object), name);
  const bool is_field = own == nullptr || Py_TYPE(own)->tp_descr_get == nullptr || Py_TYPE(own) == &PyGetSetDescr_Type;
  if (!is_method && (!is_field || PyUnicode_Compare(name, original_name) == 0))
    return PyObject_GenericGetAttr(object, name);
  if (is_method) {
    PyObject* found = PyObject_GenericGetAttr(object, name);
    if (found != nullptr || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
    PyErr_Clear();
  }
  const Ref<> original = OriginalOf(object);
  if (!original) return nullptr;
  PyObject* found = PyObject_GetAttr(original.get(), name);
  if (found != nullptr || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
  if (PyUnicode_Compare(name, wrapped_name) != 0) return nullptr;
  PyErr_Clear();
  return Ref<>(original).Release();
}

int SetAttribute(PyObject* object, PyObject* name, PyObject* value) {
  if (!StandsForObject(reinterpret_cast<CompiledFunction*>(object)))
    return PyObject_GenericSetAttr(object, name, value);
  const Ref<> original = OriginalOf(object);
  return original ? PyObject_SetAttr(original.get(), name, value) : -1;
}

// Law F5: it equals what it stands for, and what equals that; it is true where that is.
PyObject* Compare(PyObject* object, PyObject* other, int op) {
  const Ref<> left = OriginalOf(object);
  const Ref<> right = !left ? Ref<>() : Py_TYPE(other) == CompiledObjectType() ? OriginalOf(other) : Ref<>::New(other);
  return right ? PyObject_RichCompare(left.get(), right.get(), op) : nullptr;
}
int Truth(PyObject* object) {
  const Ref<> original = OriginalOf(object);
  return original ? PyObject_IsTrue(original.get()) : -1;
}
Py_hash_t Hash(PyObject* object) {
  const Ref<> original = OriginalOf(object);
  return original ? PyObject_Hash(original.get()) : -1;
}

PyObject* Repr(PyObject* object) {
  auto* self = reinterpret_cast<CompiledFunction*>(object);
  PyObject* held = self->callable != nullptr ? self->callable : self->self;
  return PyUnicode_FromFormat("<frametap.compile of %R>",
                              held && self->callee != Callee::kBoundMethod ? held : self->function);
}

PyMemberDef members[] = {
    {"_function", T_OBJECT_EX, offsetof(CompiledFunction, function), READONLY, "The function that is captured."},
    {"__self__", T_OBJECT, offsetof(CompiledFunction, self), READONLY, "The instance or module, or None."},
    {"__dictoffset__", T_PYSSIZET, offsetof(CompiledFunction, dict), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(CompiledFunction, weakrefs), READONLY, nullptr},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(CompiledFunction, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

template <size_t n>
PyGetSetDef OfFunction(const char (&name)[n]) {
  return {name, GetOfFunction, SetOfFunction, nullptr, const_cast<char*>(name)};
}

PyGetSetDef getset[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
                        {"_original", Original, nullptr, "What was compiled.", nullptr},
                        OfFunction("__code__"),
                        OfFunction("__defaults__"),
                        OfFunction("__kwdefaults__"),
                        OfFunction("__closure__"),
                        OfFunction("__globals__"),
                        {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMethodDef methods[] = {{"__copy__", Copy, METH_NOARGS, nullptr},
                         {"__deepcopy__", DeepCopy, METH_O, nullptr},
                         {"__reduce__", Reduce, METH_NOARGS, nullptr},
                         {"__set_name__", SetName, METH_VARARGS, nullptr},
                         {nullptr, nullptr, 0, nullptr}};

PyMethodDef module_call = {"__call__", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(CallModule)),
                           METH_FASTCALL | METH_KEYWORDS, "__call__($self, /, *args, **kwargs)\n--\n\n"};

template <class F>
void* Slot(F* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

PyTypeObject* CompiledFunctionType() {
  static PyTypeObject* type = [] {
    PyType_Slot slots[] = {{Py_tp_dealloc, Slot(Dealloc)}, {Py_tp_traverse, Slot(Traverse)},
                           {Py_tp_clear, Slot(Clear)},     {Py_tp_call, Slot(PyVectorcall_Call)},
                           {Py_tp_descr_get, Slot(Get)},   {Py_tp_repr, Slot(Repr)},
                           {Py_tp_members, members},       {Py_tp_getset, getset},
                           {Py_tp_methods, methods},       {0, nullptr}};
    PyType_Spec spec = {"frametap.CompiledFunction", sizeof(CompiledFunction), 0,
                        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                            Py_TPFLAGS_DISALLOW_INSTANTIATION,
                        slots};
    return compiled_types.function = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  }();
  return type;
}

PyTypeObject* CompiledObjectType() {
  static PyTypeObject* type = [] {
    PyType_Slot slots[] = {{Py_tp_dealloc, Slot(Dealloc)},
                           {Py_tp_traverse, Slot(Traverse)},
                           {Py_tp_clear, Slot(Clear)},
                           {Py_tp_getattro, Slot(GetAttribute)},
                           {Py_tp_setattro, Slot(SetAttribute)},
                           {Py_nb_bool, Slot(Truth)},
                           {Py_tp_hash, Slot(Hash)},
                           {Py_tp_richcompare, Slot(Compare)},
                           {0, nullptr}};
    PyType_Spec spec = {
        "frametap.CompiledObject", sizeof(CompiledFunction), 0,
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
        slots};
    return compiled_types.object = reinterpret_cast<PyTypeObject*>(
               PyType_FromSpecWithBases(&spec, reinterpret_cast<PyObject*>(CompiledFunctionType())));
  }();
  return type;
}

PyObject* NewCompiledFunction(PyObject* function, PyObject* self, Callee callee, std::shared_ptr<SegmentCache> store) {
  const bool is_plain = callee == Callee::kFunction || callee == Callee::kModule;
  PyTypeObject* type = is_plain ? CompiledFunctionType() : CompiledObjectType();
  if (type == nullptr) return nullptr;
  auto* compiled = reinterpret_cast<CompiledFunction*>(type->tp_alloc(type, 0));
  if (compiled == nullptr) return nullptr;
  compiled->vectorcall = CallFunction;
  compiled->function = Ref<>::New(function).Release();
  (callee == Callee::kCallable ? compiled->callable : compiled->self) = Ref<>::New(self).Release();
  compiled->store = new std::shared_ptr<SegmentCache>(std::move(store));
  if (callee == Callee::kModule) {
    compiled->route = new Route();
    compiled->route->announced = Py_TYPE(self);
  }
  compiled->callee = callee;
  int flags = PyFunction_Check(function) ? reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function))->co_flags : 0;
  compiled->capturable = !(flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR));
  return reinterpret_cast<PyObject*>(compiled);
}

PyObject* NewCompiledModuleCall(PyTypeObject* type) {
  compiled_types.module_call = &module_call;
  return PyDescr_NewMethod(type, &module_call);
}

}  // namespace frametap
