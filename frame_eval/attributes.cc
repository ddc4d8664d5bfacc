// Attribute reads and writes: the look-up order of CPython's generic getattr, of nn.Module and of modules and classes,
// step by step, so that each step that decided is guarded.
#include <Python.h>
#include <c10/core/InferenceMode.h>
#include <structmember.h>

#include <cstring>

#include "frame_eval/array_nodes.h"
#include "frame_eval/callables/table.h"
#include "frame_eval/class_names.h"
#include "frame_eval/descriptors.h"
#include "frame_eval/known_objects.h"
#include "frame_eval/mapping_proxies.h"
#include "frame_eval/quiet.h"
#include "frame_eval/recorder.h"
#include "frame_eval/repeated_calls.h"
#include "guards/accessor.h"
#include "guards/deque_view.h"
#include "guards/kinds/no_hooks.h"
#include "guards/kinds/value.h"
#include "guards/must.h"
#include "guards/tensor_door.h"
#include "ir/ops/op_facts.h"

namespace frametap {
namespace {

const char* Text(PyObject* name) { return PyUnicode_AsUTF8(name); }

bool OneOf(const char* name, std::initializer_list<const char*> names) {
  for (const char* n : names) {
    if (std::strcmp(n, name) == 0) return true;
  }
  return false;
}

struct SlotNames {
  PyObject* get = InternedName("__getattribute__");
  PyObject* set = InternedName("__setattr__");
  PyObject* del = InternedName("__delattr__");
};

const SlotNames& Slots() {
  static const SlotNames names;
  return names;
}

// The type's own __getattribute__, __setattr__ or __delattr__, or null if it comes down to object's. (Builtin types
// repeat object's slot in their dict.)
PyObject* Override(PyTypeObject* type, PyObject* slot, void* generic) {
  PyObject* found = _PyType_Lookup(type, slot);
  if (found != nullptr && Py_TYPE(found) == &PyWrapperDescr_Type &&
      reinterpret_cast<PyWrapperDescrObject*>(found)->d_wrapped == generic) {
    return nullptr;
  }
  return found;
}

// Borrowed; null if the object has none.
PyObject* InstanceDict(PyObject* object) {
  PyObject** dict = _PyObject_GetDictPtr(object);
  return dict ? *dict : nullptr;
}

// A slot under a second name (`C.b = C.a`): what is written by one name is read by the other.
bool IsSecondName(PyObject* descriptor, PyObject* name) {
  return Py_TYPE(descriptor) == &PyMemberDescr_Type &&
         (PyDescr_TYPE(descriptor)->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0 &&
         PyUnicode_Compare(PyDescr_NAME(descriptor), name) != 0;
}

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
void AdoptPart(Recorder& r, PyObject* partial, PyObject* name) {
  const Ref<> part = Must(PyObject_GenericGetAttr(partial, name));
  if (r.Find(part.get()) == nullptr && (PyTuple_CheckExact(part.get()) || PyDict_CheckExact(part.get()))) {
    r.AdoptMade(part.get());
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
PyObject* FoundBySuper(PyObject* super, PyTypeObject* start, PyObject* name) {
  static PyObject* const own_name = InternedName("__thisclass__");
  const Ref<> own = Must(PyObject_GenericGetAttr(super, own_name));
  RefuseOddNames(start);
  PyObject* const mro = start->tp_mro;
  Py_ssize_t i = 0;
  while (i < PyTuple_GET_SIZE(mro) && PyTuple_GET_ITEM(mro, i) != own.get()) ++i;
  for (++i; i < PyTuple_GET_SIZE(mro); ++i) {
    PyObject* const dict = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(mro, i))->tp_dict;
    if (PyObject* const found = ItemQuietly(dict, name)) return found;
  }
  return nullptr;
}

// The value that the instruction gives is asked only whether it is None or another constant.
bool ComparesIdentityNext(const FrameState& f) {
  const InstructionInfo next = InstructionAt(f.code, InstructionAt(f.code, f.offset).next);
  if (std::strstr(next.name, "POP_JUMP_") == next.name && std::strstr(next.name, "NONE") != nullptr) return true;
  return std::strcmp(next.name, "LOAD_CONST") == 0 && std::strcmp(InstructionAt(f.code, next.next).name, "IS_OP") == 0;
}

std::string Qualified(PyTypeObject* type, PyObject* name) { return TypeName(type) + "." + Text(name); }

}  // namespace

void Recorder::LoadAttribute(FrameNote& note, PyObject* owner, Shadow shadow, PyObject* name) {
  guards_.ReadsName(name);
  Force(owner, shadow);
  if (PyDict_CheckExact(owner)) ViewDict(owner, name);
  RefuseOddNames(Py_TYPE(owner));
  if (IsTensor(owner)) return TensorAttribute(note, owner, name);
  if (ArrayAttribute(*this, note, owner, name)) return;
  if (Shadow* written = WrittenShadow(owner, name)) {
    note.expect.kind = Expect::Kind::kShadow;
    note.expect.shadow = *written;
    return;
  }
  if (PyModule_CheckExact(owner)) {
    Touch(owner);
    RefuseMutatedDict(PyModule_GetDict(owner));
    if (Shadow* written = WrittenShadow(PyModule_GetDict(owner), name)) {  // by `global`
      note.expect.kind = Expect::Kind::kShadow;
      note.expect.shadow = *written;
      return;
    }
    PyObject* value = ItemQuietly(PyModule_GetDict(owner), name);
    if (value == nullptr) {
      if (_PyType_Lookup(&PyModule_Type, name) != nullptr && SourceOf(owner).valid()) {
        return GenericLoad(note, owner, name);
      }
      throw Break{Reason::unknown_attribute, std::string(PyModule_GetName(owner)) + "." + Text(name)};
    }
    SourceId source = SourceOf(owner);
    if (!source.valid()) source = guards_.Pinned(owner, PyModule_GetName(owner));
    if (_PyType_Lookup(&PyModule_Type, name) == nullptr) note.expect.answer = value;
    note.expect.kind = Expect::Kind::kSource;
    note.expect.source = guards_.Child(source, Accessor::kAttr, 0, name, value);
    note.expect.pinned = true;
    return;
  }
  if (PySlice_Check(owner)) ForceItems(owner);
  if (PyType_Check(owner)) return ClassAttribute(note, reinterpret_cast<PyTypeObject*>(owner), name);
  InstanceAttribute(note, owner, name);
}

// import a.b of a module that is imported already: an entry of sys.modules. Anything else runs the import system.
void Recorder::Import(FrameState& f, FrameNote& note, const Event& e) {
  const char* text = Text(e.name);
  // Another __import__ is the program's own.
  static PyObject* const import_name = InternedName("__import__");
  PyObject* builtins = f.function->func_builtins;
  PyObject* importer = ItemQuietly(builtins, import_name);
  if (importer != Objects().import) throw Break{Reason::import_statement, text};
  FromSource(guards_.Child(guards_.Pinned(builtins, "B"), Accessor::kGlobal, 0, import_name, importer), importer, true);
  Touch(importer);
  long level = PyLong_AsLong(e.in[0]);
  std::string full = text;
  if (level > 0) {
    static PyObject* const package_name = InternedName("__package__");
    Shadow shadow;
    PyObject* package = ReadGlobal(f, note, package_name, &shadow);
    if (package == nullptr || !PyUnicode_Check(package)) throw Break{Reason::import_statement, text};
    Force(package, shadow);
    std::string base_name = Text(package);
    for (long i = 1; i < level; ++i) base_name = base_name.substr(0, base_name.rfind('.'));
    full = full.empty() ? base_name : base_name + "." + full;
  }
  bool wants_leaf = e.in[1] != Py_None && PyObject_IsTrue(e.in[1]) == 1;
  std::string result = wants_leaf || level > 0 ? full : full.substr(0, full.find('.'));
  SourceId modules = guards_.Pinned(PyImport_GetModuleDict(), "sys.modules");
  for (const std::string& name : {full, result}) {
    Ref<> key = Must(PyUnicode_InternFromString(name.c_str()));
    PyObject* module = ItemQuietly(PyImport_GetModuleDict(), key.get());
    if (module == nullptr || !PyModule_Check(module)) throw Break{Reason::import_statement, full};
    SourceId id = guards_.Child(modules, Accessor::kKey, 0, key.get(), module);
    FromSource(id, module, true);
    Touch(module);
    note.expect.source = id;
    if (!wants_leaf) continue;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(e.in[1]); ++i) {
      // A name that the module does not have may be a submodule that is yet to be imported.
      PyObject* member = PyTuple_GET_ITEM(e.in[1], i);
      if (ItemQuietly(PyModule_GetDict(module), member) == nullptr) {
        throw Break{Reason::import_statement, full + "." + Text(member)};
      }
    }
  }
  note.expect.kind = Expect::Kind::kSource;
  note.expect.pinned = true;
  note.opaque_operation = true;
}

// Whether it is a descriptor, and of which kind, is its class's to say, and that can change.
void Recorder::FixDescriptorKind(PyObject* in_class) {
  if ((Py_TYPE(in_class)->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0) return;
  RefuseOddNames(Py_TYPE(in_class));
  guards_.Class(Py_TYPE(in_class), Here());
  RefuseForeignOperator(in_class);
}

// The first read of the annotations of a class that has none stores an empty dict in it.
static bool MakesAnnotations(PyTypeObject* type, PyObject* name) {
  const bool is_read = std::strcmp(Text(name), "__annotations__") == 0 && (type->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0;
  return is_read && PyDict_GetItemWithError(type->tp_dict, name) == nullptr;
}

void Recorder::ClassAttribute(FrameNote& note, PyTypeObject* type, PyObject* name) {
  PyTypeObject* meta = Py_TYPE(type);
  RefuseOddNames(type);
  if (meta->tp_getattro != PyType_Type.tp_getattro) {
    // A metaclass with a __getattr__ (enumerations): type's look-up comes first, and what it finds is the answer.
    if (Override(meta, Slots().get, reinterpret_cast<void*>(PyType_Type.tp_getattro)) != nullptr)
      throw Break{Reason::unknown_attribute, Qualified(type, name)};
  }
  guards_.Class(type, Here());
  Touch(reinterpret_cast<PyObject*>(type));
  if (ReadClassDict(*this, note, type, name)) return;
  ReadIfClassName(*this, type, name);
  if (meta->tp_flags & Py_TPFLAGS_HEAPTYPE) guards_.Class(meta, Here());  // the look-up asks it as well
  if (PyObject* of_meta = _PyType_Lookup(meta, name)) FixDescriptorKind(of_meta);
  if (MakesAnnotations(type, name)) throw Break{Reason::done_once, Qualified(type, name)};
  PyObject* value = _PyType_Lookup(type, name);
  if (value != nullptr && Py_TYPE(value)->tp_descr_get == nullptr) AdoptOfClass(value, type, name);
  // A descriptor of Python code runs as a frame; its result is not a constant.
  bool runs_code =
      value != nullptr && (Py_TYPE(value)->tp_flags & Py_TPFLAGS_HEAPTYPE) && Py_TYPE(value)->tp_descr_get != nullptr;
  if (runs_code) AdoptOfClass(value, type, name);
  note.expect.kind = runs_code ? Expect::Kind::kAny : Expect::Kind::kPinned;
}

// The value that a class holds under a name. The guard on the class determines the object; reads of the object are
// guarded. Its own class decides whether it is a descriptor, and that can change. (A descriptor of Python code runs as
// a frame.)
void Recorder::AdoptOfClass(PyObject* object, PyTypeObject* type, PyObject* name) {
  AdoptPinned(object, Find(object) == nullptr ? Qualified(type, name) : std::string());  // of most it is not asked for
  Touch(object);
}

bool Recorder::HasGenericGet(PyTypeObject* type) {
  return Override(type, Slots().get, reinterpret_cast<void*>(PyObject_GenericGetAttr)) == nullptr;
}

void Recorder::InstanceAttribute(FrameNote& note, PyObject* owner, PyObject* name) {
  PyTypeObject* type = Py_TYPE(owner);
  note.expect.kind = Expect::Kind::kAny;
  Touch(owner);
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
      Touch(self.get());
      auto* const start = reinterpret_cast<PyTypeObject*>(self_class.get());
      guards_.Class(start, Here());
      PyObject* const found = FoundBySuper(owner, start, name);
      if (found == nullptr) return;
      FixDescriptorKind(found);
      if (!IsSeenThroughSuper(found)) throw Break{Reason::unknown_attribute, Qualified(start, name)};
      const bool is_plain = Py_TYPE(found)->tp_descr_get == nullptr;
      if (is_plain) AdoptOfClass(found, start, name);
      if (is_plain || Py_TYPE(found) == &PyStaticMethod_Type) note.expect.kind = Expect::Kind::kPinned;
      return;
    }
    if (PyMethod_Check(owner)) {
      PyObject* function = PyMethod_GET_FUNCTION(owner);
      if (PartOfMethod(note, owner, name)) return;
      if (!PyFunction_Check(function) || _PyType_Lookup(&PyMethod_Type, name) != nullptr) return;
      AdoptPinned(function);
      return GenericLoad(note, function, name);
    }
    // A subclass of types.ModuleType: object's look-up, then the class's __getattr__.
    static PyObject* module_get = Override(&PyModule_Type, Slots().get, nullptr);
    if (override_get == module_get) return GenericLoad(note, owner, name);
    throw Break{Reason::unknown_attribute, Qualified(type, name)};
  }
  GenericLoad(note, owner, name);
}

// The object that a method from outside binds, and for Python code the function that it runs.
bool Recorder::PartOfMethod(FrameNote& note, PyObject* method, PyObject* name) {
  const Known* known = Find(method);
  if (known == nullptr || known->state != Known::State::kSource) return false;
  const bool is_self = std::strcmp(Text(name), "__self__") == 0;
  PyObject* part = nullptr;
  if (PyMethod_Check(method) && (is_self || std::strcmp(Text(name), "__func__") == 0)) {
    part = is_self ? PyMethod_GET_SELF(method) : PyMethod_GET_FUNCTION(method);
  } else if (PyCFunction_Check(method) && is_self) {
    part = PyCFunction_GET_SELF(method);
  }
  if (part == nullptr) return false;
  note.expect.kind = Expect::Kind::kSource;
  note.expect.source = guards_.Child(known->source, is_self ? Accessor::kSelf : Accessor::kFunc, 0, nullptr, part);
  note.expect.pinned = known->pinned;
  return true;
}

// object.__getattribute__, and what follows when it finds nothing.
void Recorder::GenericLoad(FrameNote& note, PyObject* owner, PyObject* name) {
  guards_.ReadsName(name);
  PyTypeObject* type = Py_TYPE(owner);
  note.expect.kind = Expect::Kind::kAny;
  if (Shadow* written = WrittenShadow(owner, name)) {
    note.expect.kind = Expect::Kind::kShadow;
    note.expect.shadow = *written;
    return;
  }
  Touch(owner);
  Known* known = Find(owner);
  PyObject* descriptor = _PyType_Lookup(type, name);
  bool data = descriptor != nullptr && Py_TYPE(descriptor)->tp_descr_set != nullptr;
  if (descriptor != nullptr) FixDescriptorKind(descriptor);
  bool is_source = known != nullptr && known->state == Known::State::kSource;
  if (known == nullptr && !IsScalar(owner) && (type->tp_flags & Py_TPFLAGS_HEAPTYPE) && !PyFunction_Check(owner)) {
    // An object that a class or a constant holds.
    AdoptPinned(owner, type->tp_name);
    Touch(owner);
    known = Find(owner);
    is_source = known != nullptr && known->state == Known::State::kSource;
  }
  if (data) {
    if (Py_TYPE(descriptor) == Objects().tuple_getter) return NamedTupleField(note, owner, descriptor);
    if (PyFunction_Check(owner) && FunctionAttribute(note, owner, name)) return;
    if (Py_TYPE(descriptor) == &PyProperty_Type) {
      Ref<> getter = Ref<>::Steal(PyObject_GetAttrString(descriptor, "fget"));
      if (getter && PyFunction_Check(getter.get())) {
        pending_ = {getter.get(), {owner}, {Shadow()}, {}};  // the property keeps the function alive
        has_pending_ = true;
        return;
      }
      throw Break{Reason::unknown_attribute, Qualified(type, name)};
    }
    if (Py_TYPE(descriptor) == &PyMemberDescr_Type) {
      if (IsSecondName(descriptor, name)) throw Break{Reason::unknown_attribute, Qualified(type, name)};
      if (!is_source || (IsPlainType(type) && !IsException(type))) {
        if (is_source) FixContent(owner);
        if (PyTuple_Check(owner)) ForceDeep(owner, Shadow(), true);
        if (!is_source && known != nullptr && type == Objects().partial) AdoptPart(*this, owner, name);
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
      note.expect.kind = Expect::Kind::kSource;
      note.expect.source = guards_.Child(known->source, Accessor::kAttr, 0, name, value.get());
      note.expect.pinned = known->pinned;
      return;
    }
    if (Py_TYPE(descriptor) == &PyGetSetDescr_Type) {
      if (OneOf(Text(name), {"__class__", "__doc__"})) return;
      if (std::strcmp(Text(name), "__dict__") == 0) {
        PyObject* dict = InstanceDict(owner);
        if (dict == nullptr) throw Break{Reason::unknown_attribute, Qualified(type, name)};
        RefuseSharedDict(owner, dict);
        if (!is_source) return HandOutDict(owner, dict);
        // A value that the trace has written is not in it at a replay before the end.
        if (known->written)
          throw Break{Reason::unknown_operation, Qualified(type, name) + " of an object that was written to"};
        note.expect.kind = Expect::Kind::kSource;
        note.expect.source = guards_.Child(known->source, Accessor::kDict, 0, nullptr, dict);
        note.expect.pinned = known->pinned;
        return;
      }
      if (PartOfMethod(note, owner, name)) return;
      if (!is_source && IsDeque(owner)) return;  // maxlen
      const bool is_changeable = is_source && IsException(type);
      if (IsPlainType(type) && is_source) FixContent(owner);
      if ((IsPlainType(type) && !is_changeable) || PyFunction_Check(owner)) return;
      throw Break{Reason::unknown_attribute, Qualified(type, name)};
    }
    if (Py_TYPE(descriptor)->tp_flags & Py_TPFLAGS_HEAPTYPE) return AdoptOfClass(descriptor, type, name);
    throw Break{Reason::unknown_attribute, Qualified(type, name)};
  }
  PyObject* dict = InstanceDict(owner);
  if (dict != nullptr) {
    RefuseMutatedDict(dict);
    RefuseSharedDict(owner, dict);
    PyObject* value = ItemQuietly(dict, name);
    if (value != nullptr) {
      note.expect.answer = value;
      if (!is_source) return;
      note.expect.kind = Expect::Kind::kSource;
      note.expect.source = guards_.Child(known->source, Accessor::kAttr, 0, name, value);
      note.expect.pinned = known->pinned;
      return;
    }
  }
  static PyObject* const getattr_name = InternedName("__getattr__");
  PyObject* const fallback = descriptor == nullptr ? _PyType_Lookup(type, getattr_name) : nullptr;
  if (is_source && fallback != nullptr && fallback == Objects().module_getattr) {
    ModuleAttribute(note, owner, name);
    return;
  }
  // A function or exception gets its dict with its first attribute.
  if (is_source && _PyObject_GetDictPtr(owner) != nullptr) guards_.NoInstanceAttr(known->source, name, Here());
  if (descriptor != nullptr) {
    PyTypeObject* kind = Py_TYPE(descriptor);
    if (kind->tp_descr_get == nullptr) return AdoptOfClass(descriptor, type, name);
    if (kind == &PyStaticMethod_Type) {  // the class says which object it holds
      note.expect.kind = Expect::Kind::kPinned;
      return;
    }
    if (PyFunction_Check(descriptor) || kind == &PyClassMethod_Type || kind == &PyMethodDescr_Type ||
        kind == &PyWrapperDescr_Type || kind == &PyClassMethodDescr_Type || PyCFunction_Check(descriptor) ||
        kind == &PyInstanceMethod_Type) {
      return;
    }
    if (kind->tp_flags & Py_TPFLAGS_HEAPTYPE) return AdoptOfClass(descriptor, type, name);
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
void Recorder::ModuleAttribute(FrameNote& note, PyObject* owner, PyObject* name) {
  constexpr int kHomes = 3;  // as in Step::home
  Known* known = Find(owner);
  PyObject* own = InstanceDict(owner);
  note.opaque_operation = true;  // the accessor repeats the look-up; __getattr__'s frame adds nothing
  bool is_changed = false;       // a dict that is asked earlier
  const auto source_of = [&](int home, PyObject* dict) {
    return guards_.Child(known->source, Accessor::kAttr, 0, ModuleDictName(home), dict);
  };
  for (int home = 0; home < kHomes; ++home) {
    PyObject* dict = own ? ItemQuietly(own, ModuleDictName(home)) : nullptr;
    if (dict == nullptr || !PyDict_CheckExact(dict)) {
      throw Break{Reason::unknown_attribute, Qualified(Py_TYPE(owner), name)};
    }
    PyObject* value = ItemQuietly(dict, name);
    if (Shadow* written = WrittenShadow(dict, name)) {
      guards_.NoInstanceAttr(known->source, name, Here());
      note.expect.kind = Expect::Kind::kShadow;
      note.expect.shadow = *written;
      note.expect.answer = value;
      return;
    }
    if (has_mutated_dicts_ && IsMutatedDict(dict)) {
      // Everything is known about an item that the trace has put there.
      FromSource(source_of(home, dict), dict, known->pinned);
      is_changed = true;
      if (value == nullptr) continue;
      guards_.NoInstanceAttr(known->source, name, Here());
      note.expect.answer = value;
      return;
    }
    if (value == nullptr) continue;
    note.expect.answer = value;
    note.expect.kind = Expect::Kind::kSource;
    if (is_changed) guards_.NoInstanceAttr(known->source, name, Here());
    note.expect.source = is_changed ? guards_.Child(source_of(home, dict), Accessor::kKey, 0, name, value)
                                    : guards_.Child(known->source, Accessor::kModuleAttr, home, name, value);
    note.expect.pinned = known->pinned;
    return;
  }
  guards_.NoInstanceAttr(known->source, name, Here());
  for (int home = 0; home < kHomes; ++home) {
    PyObject* dict = ItemQuietly(own, ModuleDictName(home));
    if (!is_changed || !IsMutatedDict(dict)) guards_.Absent(source_of(home, dict), name, Here());
  }
}

// Where autograd's kernel does not run, aten::data first makes a copy of a conjugate. The getter makes none.
static bool OpCopiesData(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet unresolved(
      {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});
  return tensor.key_set().has_any(unresolved) && (tensor.is_inference() || c10::InferenceMode::is_enabled());
}

void Recorder::TensorAttribute(FrameNote& note, PyObject* owner, PyObject* name) {
  if (!IsExactTensor(owner)) throw Break{Reason::tensor_subclass, Py_TYPE(owner)->tp_name};
  const at::Tensor& tensor = TensorOf(owner);
  AtenRecorder::KnownTensor* known = aten_.Find(tensor);
  if (known == nullptr) throw Break{Reason::tensor_from_nowhere, Text(name)};
  const char* text = Text(name);
  note.expect.kind = Expect::Kind::kAny;
  if (std::strcmp(text, "shape") == 0) {
    if (!known->is_as_at_entry() && !sizes_open()) return ReadTensor(owner, true, false);
    ReadRank(owner);  // how many there are
    note.expect.kind = Expect::Kind::kItems;
    for (int64_t i = 0; i < tensor.dim(); ++i) note.expect.items.push_back(SizeOf(owner, i));
    return;
  }
  if (OneOf(text, {"dtype",     "device",  "layout",    "requires_grad", "is_cuda",      "is_cpu",    "is_xpu",
                   "is_mps",    "is_meta", "is_sparse", "is_sparse_csr", "is_quantized", "is_nested", "is_mkldnn",
                   "is_vulkan", "is_mtia", "is_maia",   "is_ipu",        "is_xla",       "itemsize"})) {
    // Every input's guard holds these facts. That of a result may depend on which operand has no dimensions.
    if (repeated_calls_ && std::strcmp(text, "requires_grad") == 0) repeated_calls_->NoteRequiresGrad();
    return ReadRank(owner);
  }
  if (OneOf(text, {"ndim"})) return ReadRank(owner);
  // For a tensor that requires no grad these follow; otherwise they depend on earlier ops.
  if (OneOf(text, {"is_leaf", "grad_fn"}) && !tensor.requires_grad()) {
    if (repeated_calls_) repeated_calls_->NoteRequiresGrad();
    return ReadRank(owner);
  }
  // Both follow from the ops that made the tensor in the trace. A leaf has no grad_fn.
  const bool follows = std::strcmp(text, "is_leaf") == 0 || (std::strcmp(text, "grad_fn") == 0 && tensor.is_leaf());
  if (follows && known->value.valid() && !known->source.valid()) return ReadRank(owner);
  // Whether it is a leaf is a guard, as long as the trace has not written to it.
  const bool is_as_it_came =
      known->source.valid() && (!known->value.valid() || !aten_.graph().value(known->value).def.valid());
  const auto is_guarded_leaf = [&] {
    if (!is_as_it_came) return false;
    if (repeated_calls_) repeated_calls_->Spoil();
    guards_.Leaf(known->source, Here());
    return true;
  };
  if (std::strcmp(text, "is_leaf") == 0 && is_guarded_leaf()) return;
  if (std::strcmp(text, "grad_fn") == 0 && ComparesIdentityNext(*frames_.back()) &&
      (!known->source.valid() || is_guarded_leaf())) {
    note.expect.kind = Expect::Kind::kNothing;
    return;
  }
  // For sparse data it counts the stored elements.
  if (OneOf(text, {"nbytes"}) && tensor.layout() == c10::kStrided) return ReadTensor(owner, true, false);
  if (OneOf(text, {"T", "mT", "H", "mH", "real", "imag"})) {
    note.expect.kind = Expect::Kind::kTorch;
    return;
  }
  // Reading it of a tensor that is not a leaf warns.
  const bool stays_leaf = !tensor.requires_grad() || PyObject_TypeCheck(owner, Objects().parameter);
  if (std::strcmp(text, "grad") == 0 && tensor.is_leaf() &&
      (stays_leaf || !known->source.valid() || is_guarded_leaf())) {
    const at::Tensor& grad = tensor.unsafeGetTensorImpl()->grad();
    if (!known->source.valid()) {
      if (grad.defined()) throw Break{Reason::tensor_attribute, text};
      return;  // None, because a tensor of the trace gets one by backward only
    }
    const Ref<> value = grad.defined() ? Must(WrapTensor(grad)) : Ref<>::New(Py_None);
    note.expect.kind = Expect::Kind::kSource;
    note.expect.source = guards_.Child(known->source, Accessor::kGrad, 0, nullptr, value.get());
    if (repeated_calls_) repeated_calls_->Spoil();
    return;
  }
  if (std::strcmp(text, "data") == 0) {
    // The getter dispatches nothing; there is an op that does the same.
    const std::optional<ValueId> value = aten_.ValueOf(tensor);
    if (!value) throw Break{Reason::tensor_from_nowhere, text};
    if (OpCopiesData(tensor)) throw Break{Reason::tensor_attribute, text};
    note.expect.kind = Expect::Kind::kData;
    note.expect.shadow = {Shadow::Kind::kValue, value->raw()};
    if (repeated_calls_) repeated_calls_->Spoil();  // ops of another layer do not show it
    return;
  }
  PyObject* dict = InstanceDict(owner);
  PyObject* descriptor = _PyType_Lookup(Py_TYPE(owner), name);
  if (PyObject* value = dict ? ItemQuietly(dict, name) : nullptr; value != nullptr) {
    // On a tensor that the trace has made, the trace has put it there.
    if (!known->source.valid() && IsScalar(value)) return;
    // On one that existed before, the trace has put nothing there (StoreTensorAttribute).
    if (known->source.valid() && descriptor == nullptr && PyUnicode_CheckExact(name)) {
      RefuseMutatedDict(dict);
      RefuseSharedDict(owner, dict);
      if (repeated_calls_) repeated_calls_->Spoil();
      note.expect.kind = Expect::Kind::kSource;
      note.expect.source = guards_.Child(known->source, Accessor::kAttr, 0, name, value);
      return;
    }
    throw Break{Reason::tensor_attribute, text};
  }
  if (descriptor == nullptr) {
    // hasattr(x, "…"): neither the class nor the tensor has it.
    guards_.Class(Py_TYPE(owner), Here());
    if (known->source.valid()) guards_.NoInstanceAttr(known->source, name, Here());
    return;
  }
  PyTypeObject* kind = Py_TYPE(descriptor);
  if (PyFunction_Check(descriptor) || kind == &PyMethodDescr_Type || kind == &PyWrapperDescr_Type ||
      kind == &PyClassMethod_Type || kind == &PyStaticMethod_Type || PyCFunction_Check(descriptor) ||
      std::strcmp(text, "__class__") == 0) {
    return;
  }
  throw Break{Reason::tensor_attribute, text};
}

static void RecordRequiresGrad(AtenRecorder& aten, const at::Tensor& tensor) {
  static const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::requires_grad_", "");
  torch::jit::Stack stack{tensor, true};
  // Without the keys that only hand the op on.
  aten.Record(op, tensor.key_set() & c10::autograd_dispatch_keyset, &stack);
}

// Compilers (AOTAutograd) decide by the inputs alone what requires grad.
bool Recorder::MakesLeaves() const { return !store_.backend().assumptions().static_sizes; }

// nn.Parameter(data): the binding detaches the data, which is an op, and sets a flag. The object cannot be made again: it
// must not leave the segment.
Shadow Recorder::ParameterResult(PyObject* parameter) {
  if (aten_.pending) return Shadow();
  const at::Tensor& tensor = TensorOf(parameter);
  const AtenRecorder::KnownTensor* const known = aten_.Find(tensor);
  if (known == nullptr || !known->value.valid()) throw Break{Reason::tensor_from_nowhere, "nn.Parameter"};
  if (tensor.requires_grad()) RecordRequiresGrad(aten_, tensor);
  return Shadow();
}

// A plain attribute in the __dict__ of a tensor that the trace has made (a tag for others to read).
void Recorder::StoreTensorAttribute(PyObject* owner, PyObject* name, PyObject* value, Shadow shadow) {
  AtenRecorder::KnownTensor* known = IsExactTensor(owner) ? aten_.Find(TensorOf(owner)) : nullptr;
  bool own = known != nullptr && known->value.valid() && !known->source.valid();
  if (own && value == Py_True && std::strcmp(Text(name), "requires_grad") == 0 && TensorOf(owner).is_leaf() &&
      TensorOf(owner).is_floating_point()) {
    if (!MakesLeaves()) throw Break{Reason::tensor_attribute, "requires_grad=True"};
    // The binding sets a flag and dispatches nothing. The op for it does the same: it is run for the graph, and what
    // the program does then changes nothing more.
    Force(value, shadow);
    return RecordRequiresGrad(aten_, TensorOf(owner));
  }
  if (!own || !IsScalar(value) || _PyType_Lookup(Py_TYPE(owner), name) != nullptr) {
    throw Break{Reason::tensor_attribute, Text(name)};
  }
  Force(value, shadow);
  AddEffect(Effect::Kind::kSetAttr, owner, Text(name), {value}, {Shadow()});
}

void Recorder::StoreAttribute(FrameNote& note, PyObject* owner, PyObject* name, PyObject* value, Shadow shadow) {
  guards_.ReadsName(name);
  note.expect.kind = Expect::Kind::kNothing;
  PyTypeObject* type = Py_TYPE(owner);
  RefuseOddNames(type);
  if (IsTensor(owner)) return StoreTensorAttribute(owner, name, value, shadow);
  if (PyModule_Check(owner) || PyType_Check(owner)) throw Break{Reason::unknown_mutation, Qualified(type, name)};
  PyObject* override_set = Override(type, Slots().set, reinterpret_cast<void*>(PyObject_GenericSetAttr));
  if (override_set == nullptr) {
    GenericStore(owner, name, value, shadow);
    return;
  }
  Known* known = Find(owner);
  bool is_source = known != nullptr && known->state == Known::State::kSource;
  if (override_set == Objects().module_setattr && is_source) {
    Touch(owner);
    PyObject* own = InstanceDict(owner);
    const auto dict_of = [&](const char* which) {
      return own ? ItemQuietly(own, Must(PyUnicode_InternFromString(which)).get()) : nullptr;
    };
    const auto holds = [&](PyObject* dict) { return dict != nullptr && ItemQuietly(dict, name) != nullptr; };
    if (PyObject_TypeCheck(value, Objects().module) || PyObject_TypeCheck(value, Objects().parameter) ||
        holds(dict_of("_parameters")) || holds(dict_of("_modules"))) {
      throw Break{Reason::unknown_mutation, "a parameter or submodule is assigned: " + Qualified(type, name)};
    }
    // That it is neither is its type's to say.
    FixType(shadow);
    const SourceId assigned = SourceOf(value);
    if (IsTensor(value)) {
      // For nn.Buffer, and for a parameter of another class: an object that has one is registered.
      static PyObject* const kMarks[] = {InternedName("_is_buffer"), InternedName("_is_param")};
      PyObject* own_of_tensor = InstanceDict(value);
      // One in the place of a buffer, which says of itself what is known of the buffer, is stored as any tensor is.
      static PyObject* const kept_name = InternedName("persistent");
      static PyObject* const others_name = InternedName("_non_persistent_buffers_set");
      PyObject* const is_kept = own_of_tensor != nullptr ? ItemQuietly(own_of_tensor, kept_name) : nullptr;
      PyObject* const others = own != nullptr ? ItemQuietly(own, others_name) : nullptr;
      const bool is_told = assigned.valid() && is_kept != nullptr && PyBool_Check(is_kept) && others != nullptr &&
                           PySet_CheckExact(others) && holds(dict_of("_buffers"));
      for (PyObject* mark : kMarks) {
        if (is_told && mark == kMarks[0] && ItemQuietly(own_of_tensor, mark) == Py_True) {
          guards_.Value(guards_.Child(assigned, Accessor::kAttr, 0, mark, Py_True), Here());
          guards_.Value(guards_.Child(assigned, Accessor::kAttr, 0, kept_name, is_kept), Here());
          const SourceId set = guards_.Child(known->source, Accessor::kAttr, 0, others_name, others);
          FromSource(set, others, known->pinned);
          Contains(note, others, name);
          known = Find(owner);
          if (PySet_Contains(others, name) == (is_kept == Py_False)) continue;
          PyErr_Clear();
        }
        if (own_of_tensor != nullptr && ItemQuietly(own_of_tensor, mark) != nullptr) {
          throw Break{Reason::unknown_mutation, "a buffer or parameter is assigned: " + Qualified(type, name)};
        }
        if (assigned.valid()) guards_.NoInstanceAttr(assigned, mark, Here());
      }
    } else if (assigned.valid()) {
      guards_.Type(assigned, Here());
    }
    note.opaque_operation = true;
    for (const char* which : {"_parameters", "_modules", "_buffers"}) {
      PyObject* dict = dict_of(which);
      Ref<> dict_name = Must(PyUnicode_InternFromString(which));
      if (dict == nullptr) throw Break{Reason::unknown_mutation, Qualified(type, name)};
      RefuseMutatedDict(dict);
      SourceId source = guards_.Child(known->source, Accessor::kAttr, 0, dict_name.get(), dict);
      if (holds(dict)) {
        // A buffer gets a new tensor.
        if (!IsTensor(value) && value != Py_None) throw Break{Reason::unknown_mutation, Qualified(type, name)};
        ReadBufferRegistration(note, owner, name);
        FromSource(source, dict, known->pinned);
        guards_.Present(source, name, Here());
        AddEffect(Effect::Kind::kSetItem, dict, "", {name, value}, {Shadow(), shadow});
        SetWritten(dict, name, shadow);
        if (Find(owner)->written) Find(owner)->written->erase(name);
        return;
      }
      guards_.Absent(source, name, Here());
    }
    if (!GenericStore(owner, name, value, shadow)) throw Break{Reason::unknown_mutation, Qualified(type, name)};
    return;
  }
  Force(value, shadow);
  if (!PyFunction_Check(override_set)) throw Break{Reason::unknown_mutation, Qualified(type, name)};
  Touch(owner);
}

// For an object that the trace has made: the value stored there counts from now on.
void Recorder::HandOutDict(PyObject* owner, PyObject* dict) {
  ForceWritten(owner);
  if (Known* known = Find(owner)) known->dict_is_out = true;
  if (Find(dict) != nullptr) return;
  Unsettle();  // its owner may be settled
  AdoptMade(dict);
  Find(dict)->state = Known::State::kOpaque;  // the object's own: no other dict can stand for it
}

void Recorder::ForceWritten(PyObject* owner) {
  Known* known = Find(owner);
  PyObject* const dict = InstanceDict(owner);
  if (known == nullptr || known->written == nullptr || dict == nullptr) return;
  for (const auto& [name, shadow] : *known->written) Force(nullptr, shadow);
  known->written.reset();
}

// Reads of the dict itself would not see what is written to its object.
void Recorder::RefuseKnownDict(PyObject* owner, PyObject* name) {
  PyObject* const dict = InstanceDict(owner);
  if (dict != nullptr && SourceOf(dict).valid()) throw Break{Reason::unknown_mutation, Qualified(Py_TYPE(owner), name)};
}

void Recorder::NoteWriter(PyObject* owner) {
  PyObject* const dict = InstanceDict(owner);
  if (dict == nullptr) return;
  RefuseSharedDict(owner, dict);
  dict_writers_.try_emplace(dict, owner);
}

void Recorder::ThrowIfShared(PyObject* owner, PyObject* dict) const {
  const auto writer = dict_writers_.find(dict);
  if (writer == dict_writers_.end() || writer->second == owner) return;
  throw Break{Reason::unknown_operation,
              std::string("a dict of attributes that two objects share: ") + Py_TYPE(owner)->tp_name};
}

// nn.Module.register_buffer, which is called for a buffer that gets a new tensor: the class may have its own, and so may
// the hooks of all modules have their say.
void Recorder::ReadBufferRegistration(FrameNote& note, PyObject* owner, PyObject* name) {
  static PyObject* const method = InternedName("register_buffer");
  static PyObject* const plain = _PyType_Lookup(Objects().module, method);
  static PyObject* const hooks_name = InternedName("_global_buffer_registration_hooks");
  const SourceId module = SourceOf(owner);
  PyObject* hooks = ItemQuietly(Objects().module_globals, hooks_name);
  const bool is_usual = _PyType_Lookup(Py_TYPE(owner), method) == plain &&
                        ItemQuietly(InstanceDict(owner), method) == nullptr && IsEmptyDict(hooks);
  // A name with a dot, or none, is an error.
  if (!is_usual || std::strchr(Text(name), '.') != nullptr || *Text(name) == '\0') {
    throw Break{Reason::unknown_mutation, "a buffer is registered in another way: " + Qualified(Py_TYPE(owner), name)};
  }
  guards_.NoInstanceAttr(module, method, Here());
  const SourceId globals = guards_.Pinned(Objects().module_globals, "torch.nn.modules.module");
  const SourceId source = guards_.Child(globals, Accessor::kGlobal, 0, hooks_name, hooks);
  TruthOf(note, hooks, FromSource(source, hooks, true));
}

bool Recorder::GenericStore(PyObject* owner, PyObject* name, PyObject* value, Shadow shadow) {
  PyTypeObject* type = Py_TYPE(owner);
  PyObject* descriptor = _PyType_Lookup(type, name);
  if (descriptor != nullptr) FixDescriptorKind(descriptor);
  if (PyFunction_Check(owner) && StoreFunctionAttribute(owner, name, value, shadow)) return true;
  if (descriptor != nullptr && Py_TYPE(descriptor)->tp_descr_set != nullptr &&
      Py_TYPE(descriptor) != &PyMemberDescr_Type) {
    // A property or Python descriptor runs its setter as a frame; anything in C is unknown.
    Force(value, shadow);
    Touch(owner);
    // The data that `forward` gives the context of its run; the node gives them again.
    const Known* context = PyObject_TypeCheck(owner, Objects().function_base) ? Find(owner) : nullptr;
    if (context != nullptr && context->state == Known::State::kOpaque && Py_TYPE(descriptor) == &PyGetSetDescr_Type) {
      return true;
    }
    if (CallsC(descriptor, "fset")) throw Break{Reason::unknown_mutation, Qualified(type, name)};
    if (Py_TYPE(descriptor) == &PyProperty_Type) return false;
    if (Py_TYPE(descriptor)->tp_flags & Py_TPFLAGS_HEAPTYPE) {
      AdoptOfClass(descriptor, type, name);
      return false;
    }
    throw Break{Reason::unknown_mutation, Qualified(type, name)};
  }
  if (descriptor != nullptr && IsSecondName(descriptor, name)) {
    throw Break{Reason::unknown_mutation, Qualified(type, name)};
  }
  Known* known = Find(owner);
  if (known == nullptr) throw Break{Reason::unknown_mutation, Qualified(type, name)};
  if (known->state == Known::State::kSource && Py_TYPE(value) == Objects().inference_mode) {
    throw Break{Reason::unknown_mutation, Qualified(type, name)};  // it cannot be made again
  }
  if (known->state != Known::State::kSource) {
    // Its dict may be changed by itself: what is stored is found there.
    if (known->dict_is_out)
      Force(value, shadow);
    else
      SetWritten(owner, name, shadow);
    MarkMutated(owner);
    return true;
  }
  Touch(owner);
  RefuseKnownDict(owner, name);
  NoteWriter(owner);
  if (!known->mutated) mutated_sources_.push_back(owner);
  MarkMutated(owner);
  AddEffect(Effect::Kind::kSetAttr, owner, Text(name), {value}, {shadow});
  SetWritten(owner, name, shadow);
  return true;
}

void Recorder::DeleteAttribute(FrameNote& note, PyObject* owner, PyObject* name) {
  RefuseOddNames(Py_TYPE(owner));
  guards_.ReadsName(name);
  if (Override(Py_TYPE(owner), Slots().del, reinterpret_cast<void*>(PyObject_GenericSetAttr)) != nullptr) {
    throw Break{Reason::unknown_mutation, Qualified(Py_TYPE(owner), name)};
  }
  GenericDelete(note, owner, name);
}

void Recorder::GenericDelete(FrameNote& note, PyObject* owner, PyObject* name) {
  note.expect.kind = Expect::Kind::kNothing;
  Known* known = Find(owner);
  if (IsTensor(owner) || known == nullptr || PyType_Check(owner) || PyModule_Check(owner)) {
    throw Break{Reason::unknown_mutation, Qualified(Py_TYPE(owner), name)};
  }
  if (PyObject* const descriptor = _PyType_Lookup(Py_TYPE(owner), name)) {
    FixDescriptorKind(descriptor);
    const bool is_data = Py_TYPE(descriptor)->tp_descr_set != nullptr;
    if (CallsC(descriptor, "fdel") || IsSecondName(descriptor, name) ||
        (is_data && known->state == Known::State::kSource)) {
      throw Break{Reason::unknown_mutation, Qualified(Py_TYPE(owner), name)};
    }
  }
  if (known->state != Known::State::kSource) {
    if (known->written) known->written->erase(name);
    return MarkMutated(owner);
  }
  // Fixes that it is there: a missing one raises.
  if (WrittenShadow(owner, name) == nullptr) {
    PyObject* dict = InstanceDict(owner);
    if (dict == nullptr || ItemQuietly(dict, name) == nullptr) {
      throw Break{Reason::unknown_mutation, Qualified(Py_TYPE(owner), name)};
    }
    Touch(owner);
    guards_.Present(known->source, name, Here());
  }
  RefuseKnownDict(owner, name);
  NoteWriter(owner);
  if (!known->mutated) mutated_sources_.push_back(owner);
  MarkMutated(owner);
  AddEffect(Effect::Kind::kDelAttr, owner, Text(name), {}, {});
  SetWritten(owner, name, Shadow());
}

}  // namespace frametap
