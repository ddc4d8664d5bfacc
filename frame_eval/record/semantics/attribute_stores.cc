// Writes to attributes: the look-up order of CPython's generic setattr and of nn.Module, and whose dict it is.
#include <Python.h>
#include <c10/core/InferenceMode.h>
#include <structmember.h>
#include <cstring>

#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/objects/class_names.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/recorder.h"
#include "frame_eval/record/semantics/attribute_lookup.h"
#include "frame_eval/record/semantics/descriptors.h"
#include "frame_eval/record/semantics/mapping_proxies.h"
#include "frame_eval/record/trace/array_nodes.h"
#include "guards/cpython/deque_view.h"
#include "guards/kinds/accessor.h"
#include "guards/kinds/no_hooks.h"
#include "guards/must.h"
#include "guards/objects/known_objects.h"
#include "guards/objects/tensor_door.h"
#include "guards/objects/value.h"
#include "ir/ops/op_facts.h"

namespace frametap {

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
          if (Must(PySet_Contains(others, name)) == (is_kept == Py_False)) continue;
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
