#include "frame_eval/record/semantics/attribute_stores.h"

#include <c10/core/InferenceMode.h>
#include <structmember.h>

#include <cstring>

#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/objects/garbage.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/semantics/attribute_lookup.h"
#include "frame_eval/record/semantics/attributes.h"
#include "frame_eval/record/semantics/containers.h"
#include "frame_eval/record/semantics/descriptors.h"
#include "frame_eval/record/semantics/function_attributes.h"
#include "frame_eval/record/semantics/tensor_attributes.h"
#include "frame_eval/record/trace/array_nodes.h"
#include "guards/cpython/deque_view.h"
#include "guards/kinds/no_hooks.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"

namespace frametap {

static void ReadBufferRegistration(Trace& trace, FrameNote& note, PyObject* owner, PyObject* name);

static PyObject* DictOfModule(PyObject* owner, const char* which) {
  PyObject* const own = InstanceDict(owner);
  return own != nullptr ? ItemQuietly(own, Must(PyUnicode_InternFromString(which)).get()) : nullptr;
}

static bool Holds(PyObject* dict, PyObject* name) { return dict != nullptr && ItemQuietly(dict, name) != nullptr; }

// Returns whether the store is of a parameter or submodule, or in the place of one.
static bool StoresPart(PyObject* owner, PyObject* name, PyObject* value) {
  return PyObject_TypeCheck(value, Objects().module) || PyObject_TypeCheck(value, Objects().parameter) ||
         Holds(DictOfModule(owner, "_parameters"), name) || Holds(DictOfModule(owner, "_modules"), name);
}

// Stores an attribute of a module that existed before, as nn.Module.__setattr__ does.
static void StoreInModule(Trace& trace, FrameNote& note, PyObject* owner, PyObject* name, PyObject* value,
                          Shadow shadow) {
  PyTypeObject* const type = Py_TYPE(owner);
  ObjectRecord* known = trace.objects.Find(owner);
  GuardTypeOrIdentity(trace, owner);
  PyObject* own = InstanceDict(owner);
  if (StoresPart(owner, name, value)) {
    throw Break{Reason::unknown_mutation, "a parameter or submodule is assigned: " + Qualified(type, name)};
  }
  // That it is neither is its type's to say.
  FixType(trace, shadow);
  const SourceId assigned = SourceOf(trace, value);
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
                         PySet_CheckExact(others) && Holds(DictOfModule(owner, "_buffers"), name);
    for (PyObject* mark : kMarks) {
      if (is_told && mark == kMarks[0] && ItemQuietly(own_of_tensor, mark) == Py_True) {
        trace.guards.Value(trace.guards.Child(assigned, Accessor::kAttr, 0, mark, Py_True), trace.frames.Here());
        trace.guards.Value(trace.guards.Child(assigned, Accessor::kAttr, 0, kept_name, is_kept), trace.frames.Here());
        const SourceId set = trace.guards.Child(known->source, Accessor::kAttr, 0, others_name, others);
        FromSource(trace, set, others, known->pinned);
        Contains(trace, note, others, name);
        known = trace.objects.Find(owner);
        if (Must(PySet_Contains(others, name)) == (is_kept == Py_False)) continue;
      }
      if (own_of_tensor != nullptr && ItemQuietly(own_of_tensor, mark) != nullptr) {
        throw Break{Reason::unknown_mutation, "a buffer or parameter is assigned: " + Qualified(type, name)};
      }
      if (assigned.valid()) trace.guards.NoInstanceAttr(assigned, mark, trace.frames.Here());
    }
  } else if (assigned.valid()) {
    trace.guards.Type(assigned, trace.frames.Here());
  }
  note.op.opaque_operation = true;
  for (const char* which : {"_parameters", "_modules", "_buffers"}) {
    PyObject* dict = DictOfModule(owner, which);
    Ref<> dict_name = Must(PyUnicode_InternFromString(which));
    if (dict == nullptr) throw Break{Reason::unknown_mutation, Qualified(type, name)};
    RefuseMutatedDict(trace, dict);
    SourceId source = trace.guards.Child(known->source, Accessor::kAttr, 0, dict_name.get(), dict);
    if (Holds(dict, name)) {
      // A buffer gets a new tensor.
      if (!IsTensor(value) && value != Py_None) throw Break{Reason::unknown_mutation, Qualified(type, name)};
      ReadBufferRegistration(trace, note, owner, name);
      FromSource(trace, source, dict, known->pinned);
      trace.guards.Present(source, name, trace.frames.Here());
      AddEffect(trace, Effect::Kind::kSetItem, dict, "", {name, value}, {Shadow(), shadow});
      SetWritten(trace, dict, name, shadow);
      if (trace.objects.Find(owner)->written) trace.objects.Find(owner)->written->erase(name);
      return;
    }
    trace.guards.Absent(source, name, trace.frames.Here());
  }
  if (!GenericStore(trace, owner, name, value, shadow)) throw Break{Reason::unknown_mutation, Qualified(type, name)};
}

bool StoreByModule(Trace& trace, Call& call) {
  if (call.args.size() != 3 || !call.names.empty() || !PyUnicode_CheckExact(call.args[1])) return false;
  PyObject *const owner = call.args[0], *const value = call.args[2];
  if (!PyObject_TypeCheck(owner, Objects().module) || !SourceOf(trace, owner).valid()) return false;
  const Ref<> name = Interned(call.args[1]);
  const bool is_ready = DictOfModule(owner, "_parameters") != nullptr && DictOfModule(owner, "_modules") != nullptr;
  if (!is_ready || StoresPart(owner, name.get(), value)) return false;
  GuardTypeOrIdentity(trace, call.callable);
  Specialize(trace, call.args[1], call.shadows[1]);
  trace.guards.ReadsName(name.get());
  RefuseOddNames(Py_TYPE(owner));
  call.note.op.expect.kind = ResultSpec::Kind::kNothing;
  call.note.op.opaque_operation = true;
  StoreInModule(trace, call.note, owner, name.get(), value, call.shadows[2]);
  return true;
}

void StoreAttribute(Trace& trace, FrameNote& note, PyObject* owner, PyObject* name, PyObject* value, Shadow shadow) {
  trace.guards.ReadsName(name);
  note.op.expect.kind = ResultSpec::Kind::kNothing;
  PyTypeObject* type = Py_TYPE(owner);
  RefuseOddNames(type);
  if (IsTensor(owner)) return StoreTensorAttribute(trace, note, owner, name, value, shadow);
  if (PyType_Check(owner)) {
    auto* const written = reinterpret_cast<PyTypeObject*>(owner);
    if (PyObject* const old = _PyType_Lookup(written, name)) LeaveIntOfClassOpen(trace, written, name, old);
  }
  if (PyModule_Check(owner) || PyType_Check(owner)) throw Break{Reason::unknown_mutation, Qualified(type, name)};
  PyObject* override_set = Override(type, Slots().set, reinterpret_cast<void*>(PyObject_GenericSetAttr));
  if (override_set == nullptr) {
    GenericStore(trace, owner, name, value, shadow);
    return;
  }
  ObjectRecord* known = trace.objects.Find(owner);
  bool is_source = known != nullptr && known->state == ObjectRecord::State::kSource;
  if (override_set == Objects().module_setattr && is_source)
    return StoreInModule(trace, note, owner, name, value, shadow);
  if (!PyFunction_Check(override_set)) throw Break{Reason::unknown_mutation, Qualified(type, name)};
  GuardTypeOrIdentity(trace, owner);
  trace.frames.pending = {override_set, {owner, name, value}, {Shadow(), Shadow(), shadow}, {}};  // the class keeps it
  trace.frames.has_pending = true;
}

// For an object that the trace has made: the value stored there counts from now on.
void HandOutDict(Trace& trace, PyObject* owner, PyObject* dict) {
  SpecializeWritten(trace, owner);
  if (ObjectRecord* known = trace.objects.Find(owner)) known->dict_is_out = true;
  if (trace.objects.Find(dict) != nullptr) return;
  Unsettle(trace);  // its owner may be settled
  TrackCreated(trace, dict);
  trace.objects.Find(dict)->state = ObjectRecord::State::kOpaque;  // the object's own: no other dict can stand for it
}

void SpecializeWritten(Trace& trace, PyObject* owner) {
  ObjectRecord* known = trace.objects.Find(owner);
  PyObject* const dict = InstanceDict(owner);
  if (known == nullptr || known->written == nullptr || dict == nullptr) return;
  for (const auto& [name, shadow] : *known->written) Specialize(trace, nullptr, shadow);
  known->written.reset();
}

// Records that an attribute of an object that existed before gets a value, or is deleted if `value` is null.
static void AddStore(Trace& trace, ObjectRecord* known, PyObject* owner, PyObject* name, PyObject* value,
                     Shadow shadow) {
  if (PyObject* const dict = InstanceDict(owner)) {
    // Reads of the dict itself would not see what is written to its object.
    if (SourceOf(trace, dict).valid()) throw Break{Reason::unknown_mutation, Qualified(Py_TYPE(owner), name)};
    RefuseSharedDict(trace, owner, dict);
    trace.objects.dict_writers.try_emplace(dict, owner);
  }
  if (!known->mutated) trace.objects.mutated_sources.push_back(owner);
  MarkMutated(trace, owner);
  if (value != nullptr) {
    AddEffect(trace, Effect::Kind::kSetAttr, owner, Text(name), {value}, {shadow});
  } else {
    AddEffect(trace, Effect::Kind::kDelAttr, owner, Text(name), {}, {});
  }
  SetWritten(trace, owner, name, shadow);
}

void ThrowIfShared(const Trace& trace, PyObject* owner, PyObject* dict) {
  const auto writer = trace.objects.dict_writers.find(dict);
  if (writer == trace.objects.dict_writers.end() || writer->second == owner) return;
  throw Break{Reason::unknown_operation,
              std::string("a dict of attributes that two objects share: ") + Py_TYPE(owner)->tp_name};
}

// nn.Module.register_buffer, which is called for a buffer that gets a new tensor: the class may have its own, and so may
// the hooks of all modules have their say.
static void ReadBufferRegistration(Trace& trace, FrameNote& note, PyObject* owner, PyObject* name) {
  static PyObject* const method = InternedName("register_buffer");
  static PyObject* const plain = _PyType_Lookup(Objects().module, method);
  static PyObject* const hooks_name = InternedName("_global_buffer_registration_hooks");
  const SourceId module = SourceOf(trace, owner);
  PyObject* hooks = ItemQuietly(Objects().module_globals, hooks_name);
  const bool is_usual = _PyType_Lookup(Py_TYPE(owner), method) == plain &&
                        ItemQuietly(InstanceDict(owner), method) == nullptr && IsEmptyDict(hooks);
  // A name with a dot, or none, is an error.
  if (!is_usual || std::strchr(Text(name), '.') != nullptr || *Text(name) == '\0') {
    throw Break{Reason::unknown_mutation, "a buffer is registered in another way: " + Qualified(Py_TYPE(owner), name)};
  }
  trace.guards.NoInstanceAttr(module, method, trace.frames.Here());
  const SourceId globals = trace.guards.Pinned(Objects().module_globals, "torch.nn.modules.module");
  const SourceId source = trace.guards.Child(globals, Accessor::kGlobal, 0, hooks_name, hooks);
  TruthOf(trace, note, hooks, FromSource(trace, source, hooks, true));
}

bool GenericStore(Trace& trace, PyObject* owner, PyObject* name, PyObject* value, Shadow shadow) {
  PyTypeObject* type = Py_TYPE(owner);
  PyObject* descriptor = _PyType_Lookup(type, name);
  if (descriptor != nullptr) {
    FixDescriptorKind(trace, descriptor);
    LeaveIntOfClassOpen(trace, type, name, descriptor);
  }
  if (PyFunction_Check(owner) && StoreFunctionAttribute(trace, owner, name, value, shadow)) return true;
  if (descriptor != nullptr && Py_TYPE(descriptor)->tp_descr_set != nullptr &&
      Py_TYPE(descriptor) != &PyMemberDescr_Type) {
    // A property or Python descriptor runs its setter as a frame; anything in C is unknown.
    Specialize(trace, value, shadow);
    GuardTypeOrIdentity(trace, owner);
    // The data that `forward` gives the context of its run; the node gives them again.
    const ObjectRecord* context =
        PyObject_TypeCheck(owner, Objects().function_base) ? trace.objects.Find(owner) : nullptr;
    if (context != nullptr && context->state == ObjectRecord::State::kOpaque &&
        Py_TYPE(descriptor) == &PyGetSetDescr_Type) {
      return true;
    }
    if (CallsC(descriptor, "fset")) throw Break{Reason::unknown_mutation, Qualified(type, name)};
    if (Py_TYPE(descriptor) == &PyProperty_Type) return false;
    if (Py_TYPE(descriptor)->tp_flags & Py_TPFLAGS_HEAPTYPE) {
      AdoptOfClass(trace, descriptor, type, name);
      return false;
    }
    throw Break{Reason::unknown_mutation, Qualified(type, name)};
  }
  if (descriptor != nullptr && IsSecondName(descriptor, name)) {
    throw Break{Reason::unknown_mutation, Qualified(type, name)};
  }
  ObjectRecord* known = trace.objects.Find(owner);
  if (known == nullptr) throw Break{Reason::unknown_mutation, Qualified(type, name)};
  if (known->state == ObjectRecord::State::kSource && Py_TYPE(value) == Objects().inference_mode) {
    throw Break{Reason::unknown_mutation, Qualified(type, name)};  // it cannot be made again
  }
  if (known->state != ObjectRecord::State::kSource) {
    // Its dict may be changed by itself: what is stored is found there.
    if (known->dict_is_out)
      Specialize(trace, value, shadow);
    else
      SetWritten(trace, owner, name, shadow);
    MarkMutated(trace, owner);
    return true;
  }
  GuardTypeOrIdentity(trace, owner);
  AddStore(trace, known, owner, name, value, shadow);
  return true;
}

void DeleteAttribute(Trace& trace, FrameNote& note, PyObject* owner, PyObject* name) {
  RefuseOddNames(Py_TYPE(owner));
  trace.guards.ReadsName(name);
  if (Override(Py_TYPE(owner), Slots().del, reinterpret_cast<void*>(PyObject_GenericSetAttr)) != nullptr) {
    throw Break{Reason::unknown_mutation, Qualified(Py_TYPE(owner), name)};
  }
  GenericDelete(trace, note, owner, name);
}

void GenericDelete(Trace& trace, FrameNote& note, PyObject* owner, PyObject* name) {
  note.op.expect.kind = ResultSpec::Kind::kNothing;
  ObjectRecord* known = trace.objects.Find(owner);
  if (IsTensor(owner) || known == nullptr || PyType_Check(owner) || PyModule_Check(owner)) {
    throw Break{Reason::unknown_mutation, Qualified(Py_TYPE(owner), name)};
  }
  if (PyObject* const descriptor = _PyType_Lookup(Py_TYPE(owner), name)) {
    FixDescriptorKind(trace, descriptor);
    const bool is_data = Py_TYPE(descriptor)->tp_descr_set != nullptr;
    if (CallsC(descriptor, "fdel") || IsSecondName(descriptor, name) ||
        (is_data && known->state == ObjectRecord::State::kSource)) {
      throw Break{Reason::unknown_mutation, Qualified(Py_TYPE(owner), name)};
    }
  }
  if (known->state != ObjectRecord::State::kSource) {
    if (known->written) known->written->erase(name);
    return MarkMutated(trace, owner);
  }
  // Fixes that it is there: a missing one raises.
  if (WrittenShadow(trace, owner, name) == nullptr) {
    PyObject* dict = InstanceDict(owner);
    if (dict == nullptr || ItemQuietly(dict, name) == nullptr) {
      throw Break{Reason::unknown_mutation, Qualified(Py_TYPE(owner), name)};
    }
    GuardTypeOrIdentity(trace, owner);
    trace.guards.Present(known->source, name, trace.frames.Here());
  }
  AddStore(trace, known, owner, name, nullptr, Shadow());
}

}  // namespace frametap
