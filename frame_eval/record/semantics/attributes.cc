#include "frame_eval/record/semantics/attributes.h"

#include <c10/core/InferenceMode.h>
#include <structmember.h>

#include <cstring>

#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/numbers/sequences.h"
#include "frame_eval/record/objects/class_names.h"
#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/own_dicts.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/objects/variables.h"
#include "frame_eval/record/semantics/attribute_lookup.h"
#include "frame_eval/record/semantics/attribute_stores.h"
#include "frame_eval/record/semantics/calls.h"
#include "frame_eval/record/semantics/descriptors.h"
#include "frame_eval/record/semantics/foreign_operators.h"
#include "frame_eval/record/semantics/function_attributes.h"
#include "frame_eval/record/semantics/mapping_proxies.h"
#include "frame_eval/record/semantics/named_tuples.h"
#include "frame_eval/record/semantics/tensor_attributes.h"
#include "frame_eval/record/trace/array_nodes.h"
#include "guards/cpython/deque_view.h"
#include "guards/kinds/accessor.h"
#include "guards/kinds/class_counters.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"

namespace frametap {

static bool PartOfMethod(Trace& trace, FrameNote& note, PyObject* method, PyObject* name);
// Reads an int that a class has under a name, if it was seen to change. The guard on the class leaves it out then. Any other
// int is fixed by that guard.
static bool ReadClassCounter(Trace& trace, FrameNote& note, PyTypeObject* type, PyObject* name, PyObject* value) {
  if (!PyLong_CheckExact(value)) return false;
  PyTypeObject* const owner = ClassThatHas(type, name);
  const bool is_counter = IsClassCounter(owner, name);
  trace.guards.ReadsIntOfClass(owner, name, is_counter);
  if (!is_counter) return false;
  const SourceId of_owner = SourceOrPin(trace, reinterpret_cast<PyObject*>(owner));
  const SourceId dict = trace.guards.Child(of_owner, Accessor::kDict, 0, nullptr, owner->tp_dict);
  note.op.expect.SetSource(trace.guards.Child(dict, Accessor::kKey, 0, name, value));
  return true;
}

// Something else hides what a class has under a name, or replaces it. It makes no difference as long as it is an int.
void LeaveIntOfClassOpen(Trace& trace, PyTypeObject* type, PyObject* name, PyObject* value) {
  if (PyLong_CheckExact(value)) trace.guards.ReadsIntOfClass(ClassThatHas(type, name), name, true);
}

static void ClassAttribute(Trace& trace, FrameNote& note, PyTypeObject* type, PyObject* name);
static void InstanceAttribute(Trace& trace, FrameNote& note, PyObject* owner, PyObject* name);
static void LookUp(Trace& trace, FrameNote& note, PyObject* owner, PyObject* name);
static void ModuleAttribute(Trace& trace, FrameNote& note, PyObject* owner, PyObject* name);
namespace {

// Returns whether a result of super() is a descriptor that only binds the object, or whose code comes as a frame.
bool IsSeenThroughSuper(PyObject* found) {
  PyTypeObject* const kind = Py_TYPE(found);
  if (kind == &PyProperty_Type) return !CallsC(found, "fget");
  return kind->tp_descr_get == nullptr || PyFunction_Check(found) || PyCFunction_Check(found) ||
         kind == &PyStaticMethod_Type || kind == &PyClassMethod_Type || kind == &PyMethodDescr_Type ||
         kind == &PyWrapperDescr_Type || kind == &PyClassMethodDescr_Type ||
         (kind->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0;
}

// The content of a partial that the trace made: nothing else holds its tuple and its dict.
void AdoptPart(Trace& trace, PyObject* partial, PyObject* name) {
  const Ref<> part = Must(PyObject_GenericGetAttr(partial, name));
  if (trace.objects.Find(part.get()) == nullptr && (PyTuple_CheckExact(part.get()) || PyDict_CheckExact(part.get()))) {
    TrackCreated(trace, part.get());
  }
}

bool IsException(PyTypeObject* type) {
  return PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(PyExc_BaseException));
}

bool IsPlainType(PyTypeObject* type) {
  for (PyTypeObject* const* t = Objects().plain_types; *t != nullptr; ++t) {
    if (type == *t) return true;
  }
  return type->tp_base == &PyTuple_Type || IsException(type);
}

// The result of super(): it searches the classes after its own one in the MRO of `start`. Borrowed; null if there is
// none.
PyObject* FoundBySuper(PyObject* super, PyTypeObject* start, PyObject* name, PyTypeObject** owner) {
  static PyObject* const own_name = InternedName("__thisclass__");
  const Ref<> own = Must(PyObject_GenericGetAttr(super, own_name));
  RefuseOddNames(start);
  PyObject* const mro = start->tp_mro;
  Py_ssize_t i = 0;
  while (i < PyTuple_GET_SIZE(mro) && PyTuple_GET_ITEM(mro, i) != own.get()) ++i;
  for (++i; i < PyTuple_GET_SIZE(mro); ++i) {
    *owner = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(mro, i));
    if (PyObject* const found = ItemQuietly((*owner)->tp_dict, name)) return found;
  }
  return nullptr;
}

}  // namespace

void LoadAttribute(Trace& trace, FrameNote& note, PyObject* owner, Shadow shadow, PyObject* name) {
  trace.guards.ReadsName(name);
  Specialize(trace, owner, shadow);
  if (PyDict_CheckExact(owner)) ViewDict(trace, owner, name);
  RefuseOddNames(Py_TYPE(owner));
  if (IsTensor(owner)) return TensorAttribute(trace, note, owner, name);
  if (ArrayAttribute(trace, note, owner, name)) return;
  if (Shadow* written = WrittenShadow(trace, owner, name)) return note.op.expect.SetShadow(*written);
  if (PyModule_CheckExact(owner)) {
    GuardTypeOrIdentity(trace, owner);
    RefuseMutatedDict(trace, PyModule_GetDict(owner));
    if (Shadow* written = WrittenShadow(trace, PyModule_GetDict(owner), name)) {  // by `global`
      note.op.expect.SetShadow(*written);
      return;
    }
    PyObject* value = ItemQuietly(PyModule_GetDict(owner), name);
    if (value == nullptr) {
      if (_PyType_Lookup(&PyModule_Type, name) != nullptr && SourceOf(trace, owner).valid()) {
        note.op.expect.kind = ResultSpec::Kind::kAny;
        return LookUp(trace, note, owner, name);
      }
      throw Break{Reason::unknown_attribute, ShortRepr(owner) + "." + Text(name)};
    }
    SourceId source = SourceOf(trace, owner);
    if (!source.valid()) source = trace.guards.Pinned(owner, ShortRepr(owner));
    if (_PyType_Lookup(&PyModule_Type, name) == nullptr) note.op.expect.answer = value;
    note.op.expect.SetSource(trace.guards.Child(source, Accessor::kAttr, 0, name, value), /*is_pinned=*/true);
    return;
  }
  if (PySlice_Check(owner)) SpecializeItems(trace, owner);
  if (PyType_Check(owner)) return ClassAttribute(trace, note, reinterpret_cast<PyTypeObject*>(owner), name);
  InstanceAttribute(trace, note, owner, name);
}

// import a.b of a module that is imported already: an entry of sys.modules. Anything else runs the import system.
void Import(Trace& trace, FrameState& f, FrameNote& note, const Event& e) {
  const char* text = Text(e.name);
  // Another __import__ is the program's own.
  static PyObject* const import_name = InternedName("__import__");
  PyObject* builtins = f.function->func_builtins;
  PyObject* importer = ItemQuietly(builtins, import_name);
  if (importer != Objects().import) throw Break{Reason::import_statement, text};
  FromSource(trace, trace.guards.Child(trace.guards.Pinned(builtins, "B"), Accessor::kGlobal, 0, import_name, importer),
             importer, true);
  GuardTypeOrIdentity(trace, importer);
  long level = PyLong_AsLong(e.in[0]);
  std::string full = text;
  if (level > 0) {
    static PyObject* const package_name = InternedName("__package__");
    Shadow shadow;
    PyObject* package = ReadGlobal(trace, f, note, package_name, &shadow);
    if (package == nullptr || !PyUnicode_Check(package)) throw Break{Reason::import_statement, text};
    Specialize(trace, package, shadow);
    std::string base_name = Text(package);
    for (long i = 1; i < level; ++i) base_name = base_name.substr(0, base_name.rfind('.'));
    full = full.empty() ? base_name : base_name + "." + full;
  }
  bool wants_leaf = e.in[1] != Py_None && Must(PyObject_IsTrue(e.in[1]));
  std::string result = wants_leaf || level > 0 ? full : full.substr(0, full.find('.'));
  SourceId modules = trace.guards.Pinned(PyImport_GetModuleDict(), "sys.modules");
  for (const std::string& name : {full, result}) {
    Ref<> key = Must(PyUnicode_InternFromString(name.c_str()));
    PyObject* module = ItemQuietly(PyImport_GetModuleDict(), key.get());
    if (module == nullptr || !PyModule_Check(module)) throw Break{Reason::import_statement, full};
    SourceId id = trace.guards.Child(modules, Accessor::kKey, 0, key.get(), module);
    FromSource(trace, id, module, true);
    GuardTypeOrIdentity(trace, module);
    note.op.expect.source = id;
    if (!wants_leaf) continue;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(e.in[1]); ++i) {
      // A name that the module does not have may be a submodule that is yet to be imported.
      PyObject* member = PyTuple_GET_ITEM(e.in[1], i);
      if (ItemQuietly(PyModule_GetDict(module), member) == nullptr) {
        throw Break{Reason::import_statement, full + "." + Text(member)};
      }
    }
  }
  note.op.expect.kind = ResultSpec::Kind::kSource;
  note.op.expect.pinned = true;
  note.op.opaque_operation = true;
}

// Whether it is a descriptor, and of which kind, is its class's to say, and that can change.
void FixDescriptorKind(Trace& trace, PyObject* in_class) {
  if ((Py_TYPE(in_class)->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0) return;
  RefuseOddNames(Py_TYPE(in_class));
  trace.guards.Class(Py_TYPE(in_class), trace.frames.Here());
  RefuseForeignOperator(in_class);
}

// The first read of the annotations of a class that has none stores an empty dict in it.
static bool MakesAnnotations(PyTypeObject* type, PyObject* name) {
  const bool is_read = std::strcmp(Text(name), "__annotations__") == 0 && (type->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0;
  return is_read && PyDict_GetItemWithError(type->tp_dict, name) == nullptr;
}

static void ClassAttribute(Trace& trace, FrameNote& note, PyTypeObject* type, PyObject* name) {
  PyTypeObject* meta = Py_TYPE(type);
  RefuseOddNames(type);
  if (meta->tp_getattro != PyType_Type.tp_getattro) {
    // A metaclass with a __getattr__ (enumerations): type's look-up comes first, and what it finds is the answer.
    PyObject* const found = IsNativeMetaclass(meta) ? _PyType_Lookup(type, name) : nullptr;
    const bool is_plain = found != nullptr && Py_TYPE(found)->tp_descr_get == nullptr;
    if (!is_plain && Override(meta, Slots().get, reinterpret_cast<void*>(PyType_Type.tp_getattro)) != nullptr)
      throw Break{Reason::unknown_attribute, Qualified(type, name)};
  }
  trace.guards.Class(type, trace.frames.Here());
  GuardTypeOrIdentity(trace, reinterpret_cast<PyObject*>(type));
  if (ReadClassDict(trace, note, type, name)) return;
  ReadIfClassName(trace, type, name);
  if (meta->tp_flags & Py_TPFLAGS_HEAPTYPE)
    trace.guards.Class(meta, trace.frames.Here());  // the look-up asks it as well
  PyObject* const of_meta = _PyType_Lookup(meta, name);
  if (of_meta != nullptr) FixDescriptorKind(trace, of_meta);
  if (MakesAnnotations(type, name)) throw Break{Reason::done_once, Qualified(type, name)};
  PyObject* value = _PyType_Lookup(type, name);
  if (value != nullptr && ReadClassCounter(trace, note, type, name, value)) return;
  if (value == nullptr && of_meta != nullptr && ReadClassCounter(trace, note, meta, name, of_meta)) return;
  if (value != nullptr && Py_TYPE(value)->tp_descr_get == nullptr) AdoptOfClass(trace, value, type, name);
  // A descriptor of Python code runs as a frame; its result is not a constant.
  bool runs_code =
      value != nullptr && (Py_TYPE(value)->tp_flags & Py_TPFLAGS_HEAPTYPE) && Py_TYPE(value)->tp_descr_get != nullptr;
  if (runs_code) AdoptOfClass(trace, value, type, name);
  note.op.expect.kind = runs_code ? ResultSpec::Kind::kAny : ResultSpec::Kind::kPinned;
}

// The value that a class holds under a name. The guard on the class determines the object; reads of the object are
// guarded. Its own class decides whether it is a descriptor, and that can change. (A descriptor of Python code runs as
// a frame.)
void AdoptOfClass(Trace& trace, PyObject* object, PyTypeObject* type, PyObject* name) {
  AdoptPinned(
      trace, object,
      trace.objects.Find(object) == nullptr ? Qualified(type, name) : std::string());  // of most it is not asked for
  GuardTypeOrIdentity(trace, object);
}

bool HasGenericGet(PyTypeObject* type) {
  return Override(type, Slots().get, reinterpret_cast<void*>(PyObject_GenericGetAttr)) == nullptr;
}

// Guards the object whose attribute is read. Only its own dict gives a function some attributes. These leave open which
// function it is, as a call does. A lambda may be a fresh one each time.
static void GuardOwner(Trace& trace, PyObject* owner, PyObject* name) {
  const bool only_in_dict = PyFunction_Check(owner) && _PyType_Lookup(Py_TYPE(owner), name) == nullptr;
  if (!only_in_dict || !IsOpen(trace, owner)) return GuardTypeOrIdentity(trace, owner);
  ObjectRecord* const known = trace.objects.Find(owner);
  known->adopted = true;  // the trace may write to another function, which must not be this one
  trace.guards.Type(known->source, trace.frames.Here());
}

static void InstanceAttribute(Trace& trace, FrameNote& note, PyObject* owner, PyObject* name) {
  PyTypeObject* type = Py_TYPE(owner);
  note.op.expect.kind = ResultSpec::Kind::kAny;
  GuardOwner(trace, owner, name);
  if (PyObject* override_get = Override(type, Slots().get, reinterpret_cast<void*>(PyObject_GenericGetAttr))) {
    if (PyFunction_Check(override_get)) return;  // runs as a frame of the recording
    if (type == &PySuper_Type) {
      // The look-up follows the MRO of the instance's class. The object's own fields are not looked for there: a class
      // may have such names, too.
      static PyObject* const self_name = InternedName("__self__");
      static PyObject* const class_name = InternedName("__self_class__");
      Ref<> self = Ref<>::Steal(PyObject_GenericGetAttr(owner, self_name));
      Ref<> self_class = Ref<>::Steal(PyObject_GenericGetAttr(owner, class_name));
      if (!self || !self_class || !PyType_Check(self_class.get())) {
        PyErr_Clear();
        throw Break{Reason::unknown_attribute, Qualified(type, name)};
      }
      GuardTypeOrIdentity(trace, self.get());
      auto* const start = reinterpret_cast<PyTypeObject*>(self_class.get());
      trace.guards.Class(start, trace.frames.Here());
      PyTypeObject* of_found = nullptr;
      PyObject* const found = FoundBySuper(owner, start, name, &of_found);
      if (found == nullptr || ReadClassCounter(trace, note, of_found, name, found)) return;
      FixDescriptorKind(trace, found);
      if (!IsSeenThroughSuper(found)) throw Break{Reason::unknown_attribute, Qualified(start, name)};
      const bool is_plain = Py_TYPE(found)->tp_descr_get == nullptr;
      if (is_plain) AdoptOfClass(trace, found, start, name);
      if (is_plain || Py_TYPE(found) == &PyStaticMethod_Type) note.op.expect.kind = ResultSpec::Kind::kPinned;
      return;
    }
    if (PyMethod_Check(owner)) {
      PyObject* function = PyMethod_GET_FUNCTION(owner);
      if (PartOfMethod(trace, note, owner, name)) return;
      // `__doc__` is in the type, but its getter asks the function as well.
      if (_PyType_Lookup(&PyMethod_Type, name) != nullptr && std::strcmp(Text(name), "__doc__") != 0) return;
      if (PyCFunction_Check(function)) return;  // its attributes cannot change
      if (!PyFunction_Check(function)) throw Break{Reason::unknown_attribute, Qualified(type, name)};
      AdoptPinned(trace, function);
      return GenericLoad(trace, note, function, name);
    }
    // A subclass of types.ModuleType: object's look-up, then the class's __getattr__.
    static PyObject* module_get = Override(&PyModule_Type, Slots().get, nullptr);
    if (override_get == module_get) return LookUp(trace, note, owner, name);
    throw Break{Reason::unknown_attribute, Qualified(type, name)};
  }
  LookUp(trace, note, owner, name);
}

// The object that a method from outside binds, and for Python code the function that it runs.
static bool PartOfMethod(Trace& trace, FrameNote& note, PyObject* method, PyObject* name) {
  const ObjectRecord* known = trace.objects.Find(method);
  if (known == nullptr || known->state != ObjectRecord::State::kSource) return false;
  const bool is_self = std::strcmp(Text(name), "__self__") == 0;
  PyObject* part = nullptr;
  if (PyMethod_Check(method) && (is_self || std::strcmp(Text(name), "__func__") == 0)) {
    part = is_self ? PyMethod_GET_SELF(method) : PyMethod_GET_FUNCTION(method);
  } else if (PyCFunction_Check(method) && is_self) {
    part = PyCFunction_GET_SELF(method);
  }
  if (part == nullptr) return false;
  note.op.expect.SetSource(
      trace.guards.Child(known->source, is_self ? Accessor::kSelf : Accessor::kFunc, 0, nullptr, part), known->pinned);
  return true;
}

void GenericLoad(Trace& trace, FrameNote& note, PyObject* owner, PyObject* name) {
  trace.guards.ReadsName(name);
  note.op.expect.kind = ResultSpec::Kind::kAny;
  if (Shadow* written = WrittenShadow(trace, owner, name)) return note.op.expect.SetShadow(*written);
  GuardOwner(trace, owner, name);
  LookUp(trace, note, owner, name);
}

// ctx.needs_input_grad of a call of an autograd.Function: the guards of its arguments fix it.
static bool IsNeedOfInputs(PyObject* descriptor, PyObject* name) {
  PyObject* const apply = Objects().function_apply;
  return PyDescr_TYPE(descriptor) == PyDescr_TYPE(apply) && std::strcmp(Text(name), "needs_input_grad") == 0;
}

// Reads an attribute as object.__getattribute__ does, and then __getattr__ if it finds none. The owner is guarded
// already, and the trace has not written the attribute.
static void LookUp(Trace& trace, FrameNote& note, PyObject* owner, PyObject* name) {
  PyTypeObject* type = Py_TYPE(owner);
  ObjectRecord* known = trace.objects.Find(owner);
  PyObject* descriptor = _PyType_Lookup(type, name);
  bool data = descriptor != nullptr && Py_TYPE(descriptor)->tp_descr_set != nullptr;
  if (descriptor != nullptr) FixDescriptorKind(trace, descriptor);
  bool is_source = known != nullptr && known->state == ObjectRecord::State::kSource;
  if (known == nullptr && !IsScalar(owner) && (type->tp_flags & Py_TPFLAGS_HEAPTYPE) && !PyFunction_Check(owner)) {
    // An object that a class or a constant holds.
    AdoptPinned(trace, owner, type->tp_name);
    GuardTypeOrIdentity(trace, owner);
    known = trace.objects.Find(owner);
    is_source = known != nullptr && known->state == ObjectRecord::State::kSource;
  }
  if (data) {
    if (Py_TYPE(descriptor) == Objects().tuple_getter) return NamedTupleField(trace, note, owner, descriptor);
    if (PyFunction_Check(owner) && FunctionAttribute(trace, note, owner, name)) return;
    if (Py_TYPE(descriptor) == &PyProperty_Type) {
      Ref<> getter = Ref<>::Steal(PyObject_GetAttrString(descriptor, "fget"));
      if (getter && PyFunction_Check(getter.get())) {
        trace.frames.pending = {getter.get(), {owner}, {Shadow()}, {}};  // the property keeps the function alive
        trace.frames.has_pending = true;
        return;
      }
      throw Break{Reason::unknown_attribute, Qualified(type, name)};
    }
    if (Py_TYPE(descriptor) == &PyMemberDescr_Type) {
      if (IsSecondName(descriptor, name)) throw Break{Reason::unknown_attribute, Qualified(type, name)};
      if (!is_source || (IsPlainType(type) && !IsException(type))) {
        if (is_source) FixContent(trace, owner);
        if (PyTuple_Check(owner)) SpecializeDeep(trace, owner, Shadow(), true);
        if (!is_source && known != nullptr && type == Objects().partial) AdoptPart(trace, owner, name);
        return;
      }
      const int kind = reinterpret_cast<PyMemberDescrObject*>(descriptor)->d_member->type;
      if (kind != T_OBJECT_EX && kind != T_OBJECT) {
        // C code makes it from a number or a string at each read: a guard could not reach anything.
        throw Break{SortOf(owner).value_or(Reason::unknown_attribute), Qualified(type, name)};
      }
      Ref<> value = Ref<>::Steal(PyObject_GenericGetAttr(owner, name));
      if (!value) {
        PyErr_Clear();
        throw Break{Reason::unknown_attribute, Qualified(type, name)};
      }
      if (value.get() == Py_None && kind == T_OBJECT) {
        throw Break{Reason::unknown_attribute, Qualified(type, name)};  // None may stand for nothing in C
      }
      note.op.expect.SetSource(trace.guards.Child(known->source, Accessor::kAttr, 0, name, value.get()), known->pinned);
      return;
    }
    if (Py_TYPE(descriptor) == &PyGetSetDescr_Type) {
      if (OneOf(Text(name), {"__class__", "__doc__"})) return;
      if (std::strcmp(Text(name), "__dict__") == 0) {
        PyObject* dict = InstanceDict(owner);
        if (dict == nullptr) throw Break{Reason::unknown_attribute, Qualified(type, name)};
        RefuseSharedDict(trace, owner, dict);
        if (!is_source) return HandOutDict(trace, owner, dict);
        // A value that the trace has written is not in it at a replay before the end.
        if (known->written)
          throw Break{Reason::unknown_operation, Qualified(type, name) + " of an object that was written to"};
        note.op.expect.SetSource(trace.guards.Child(known->source, Accessor::kDict, 0, nullptr, dict), known->pinned);
        return;
      }
      if (PartOfMethod(trace, note, owner, name)) return;
      if (!is_source && (IsDeque(owner) || IsNeedOfInputs(descriptor, name))) return;  // maxlen
      const bool is_changeable = is_source && IsException(type);
      if (IsPlainType(type) && is_source) FixContent(trace, owner);
      if ((IsPlainType(type) && !is_changeable) || PyFunction_Check(owner)) return;
      throw Break{Reason::unknown_attribute, Qualified(type, name)};
    }
    if (Py_TYPE(descriptor)->tp_flags & Py_TPFLAGS_HEAPTYPE) return AdoptOfClass(trace, descriptor, type, name);
    throw Break{Reason::unknown_attribute, Qualified(type, name)};
  }
  PyObject* dict = InstanceDict(owner);
  if (dict != nullptr) {
    RefuseMutatedDict(trace, dict);
    RefuseSharedDict(trace, owner, dict);
    PyObject* value = ItemQuietly(dict, name);
    if (value != nullptr) {
      if (descriptor != nullptr) LeaveIntOfClassOpen(trace, type, name, descriptor);
      note.op.expect.answer = value;
      if (!is_source) return;
      note.op.expect.SetSource(trace.guards.Child(known->source, Accessor::kAttr, 0, name, value), known->pinned);
      return;
    }
  }
  static PyObject* const getattr_name = InternedName("__getattr__");
  PyObject* const fallback = descriptor == nullptr ? _PyType_Lookup(type, getattr_name) : nullptr;
  if (is_source && fallback != nullptr && fallback == Objects().module_getattr) {
    ModuleAttribute(trace, note, owner, name);
    return;
  }
  // A function or exception gets its dict with its first attribute.
  if (is_source && OwnDict(owner) != nullptr) trace.guards.NoInstanceAttr(known->source, name, trace.frames.Here());
  if (descriptor != nullptr) {
    PyTypeObject* kind = Py_TYPE(descriptor);
    if (ReadClassCounter(trace, note, type, name, descriptor)) return;
    if (kind->tp_descr_get == nullptr) return AdoptOfClass(trace, descriptor, type, name);
    if (kind == &PyStaticMethod_Type) {  // the class says which object it holds
      note.op.expect.kind = ResultSpec::Kind::kPinned;
      return;
    }
    if (PyFunction_Check(descriptor) || kind == &PyClassMethod_Type || kind == &PyMethodDescr_Type ||
        kind == &PyWrapperDescr_Type || kind == &PyClassMethodDescr_Type || PyCFunction_Check(descriptor) ||
        kind == &PyInstanceMethod_Type) {
      return;
    }
    if (kind->tp_flags & Py_TPFLAGS_HEAPTYPE) return AdoptOfClass(trace, descriptor, type, name);
    throw Break{Reason::unknown_attribute, Qualified(type, name)};
  }
  if (fallback == nullptr && PyModule_Check(owner)) throw Break{Reason::unknown_attribute, Qualified(type, name)};
  if (fallback != nullptr && !PyFunction_Check(fallback)) {
    throw Break{Reason::unknown_attribute, Qualified(type, name)};
  }
}

// nn.Module.__getattr__: parameters, then buffers, then submodules. Their content is the answer. Calling __getattr__
// as well would raise an AttributeError and run a frame, for each attribute of each module. The path to the attribute
// implies that the instance itself has no such attribute.
static void ModuleAttribute(Trace& trace, FrameNote& note, PyObject* owner, PyObject* name) {
  constexpr int kHomes = 3;  // as in Step::home
  ObjectRecord* known = trace.objects.Find(owner);
  PyObject* own = InstanceDict(owner);
  note.op.opaque_operation = true;  // the accessor repeats the look-up; __getattr__'s frame adds nothing
  bool is_changed = false;          // a dict that is asked earlier
  const auto source_of = [&](int home, PyObject* dict) {
    return trace.guards.Child(known->source, Accessor::kAttr, 0, ModuleDictName(home), dict);
  };
  for (int home = 0; home < kHomes; ++home) {
    PyObject* dict = own ? ItemQuietly(own, ModuleDictName(home)) : nullptr;
    if (dict == nullptr || !PyDict_CheckExact(dict)) {
      throw Break{Reason::unknown_attribute, Qualified(Py_TYPE(owner), name)};
    }
    PyObject* value = ItemQuietly(dict, name);
    if (Shadow* written = WrittenShadow(trace, dict, name)) {
      trace.guards.NoInstanceAttr(known->source, name, trace.frames.Here());
      note.op.expect.SetShadow(*written);
      note.op.expect.answer = value;
      return;
    }
    if (trace.objects.has_mutated_dicts && IsMutatedDict(trace, dict)) {
      // Everything is known about an item that the trace has put there.
      FromSource(trace, source_of(home, dict), dict, known->pinned);
      is_changed = true;
      if (value == nullptr) continue;
      trace.guards.NoInstanceAttr(known->source, name, trace.frames.Here());
      note.op.expect.answer = value;
      return;
    }
    if (value == nullptr) continue;
    note.op.expect.answer = value;
    note.op.expect.kind = ResultSpec::Kind::kSource;
    if (is_changed) trace.guards.NoInstanceAttr(known->source, name, trace.frames.Here());
    note.op.expect.source = is_changed ? trace.guards.Child(source_of(home, dict), Accessor::kKey, 0, name, value)
                                       : trace.guards.Child(known->source, Accessor::kModuleAttr, home, name, value);
    note.op.expect.pinned = known->pinned;
    return;
  }
  trace.guards.NoInstanceAttr(known->source, name, trace.frames.Here());
  for (int home = 0; home < kHomes; ++home) {
    PyObject* dict = ItemQuietly(own, ModuleDictName(home));
    if (!is_changed || !IsMutatedDict(trace, dict))
      trace.guards.Absent(source_of(home, dict), name, trace.frames.Here());
  }
}

}  // namespace frametap
