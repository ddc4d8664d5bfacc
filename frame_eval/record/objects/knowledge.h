// How the records of objects come about: the path by which a replay finds an object, reads of it, and changes by the trace.
// Not here: the records themselves (object_record.h), which object it is (identity.h), values that are fixed (force.h).
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"

namespace frametap {

bool IsScalarType(PyTypeObject* type);
// Returns whether the object is known by its value: None, a number, a string and the like.
inline bool IsScalar(PyObject* object) {
  // The flags decide most objects: classes made by Python, and the containers.
  constexpr unsigned long kOthers = Py_TPFLAGS_HEAPTYPE | Py_TPFLAGS_TUPLE_SUBCLASS | Py_TPFLAGS_LIST_SUBCLASS |
                                    Py_TPFLAGS_DICT_SUBCLASS | Py_TPFLAGS_TYPE_SUBCLASS;
  return (Py_TYPE(object)->tp_flags & kOthers) == 0 && IsScalarType(Py_TYPE(object));
}
// Adds the record of an object that the trace has made.
ObjectRecord& AddFresh(Trace& trace, PyObject* object, ObjectRecord::State state = ObjectRecord::State::kFresh);
// Records that an object is what a source leads to. Returns its shadow, if it is a scalar.
Shadow FromSource(Trace& trace, SourceId id, PyObject* object, bool pinned);
// Records the result of an operation that nothing more is known of (ResultSpec::kAny).
Shadow AdoptResult(Trace& trace, PyObject* object);
// Records an object that C code has just made, with its parts. `all`: also where others hold it.
Shadow TrackCreated(Trace& trace, PyObject* object, bool all = false);
// Records the object that a bound method passes on as its first argument.
Shadow MeetSelf(Trace& trace, PyObject* method, PyObject* self);
// Returns whether the trace has changed the dict.
bool IsMutatedDict(Trace& trace, PyObject* dict);
[[noreturn]] void ThrowMutatedDict();
void ThrowIfShared(const Trace& trace, PyObject* owner, PyObject* dict);
// Ends the recording if the trace has changed a dict of names: a path by a name would find what it held at the entry.
inline void RefuseMutatedDict(Trace& trace, PyObject* dict) {
  if (trace.objects.has_mutated_dicts && IsMutatedDict(trace, dict)) [[unlikely]]
    ThrowMutatedDict();
}
// Ends the recording if an object's own dict was written to by another object, which holds the record.
inline void RefuseSharedDict(const Trace& trace, PyObject* owner, PyObject* dict) {
  if (!trace.objects.dict_writers.empty()) [[unlikely]]
    ThrowIfShared(trace, owner, dict);
}
// Records a tuple that is a constant of the code.
void MeetConstant(Trace& trace, PyObject* tuple);
bool IsConstantTuple(const Trace& trace, PyObject* object);
// Records an object by its identity, as guards pin it. `text` names it; "": the name of the callable.
void AdoptPinned(Trace& trace, PyObject* object, const std::string& text = "");
// Guards the type or the identity of an object that is known by a source.
void GuardTypeOrIdentity(Trace& trace, PyObject* object);
// Guards length or keys of a container, and makes its elements known.
void AdoptElements(Trace& trace, PyObject* container);
// Prepares a container for its first change by the trace: what is in it must be known by then.
void BeginMutation(Trace& trace, PyObject* container);
// Notes that the trace changes the object.
void MarkMutated(Trace& trace, PyObject* object);
// Notes that C code may take from an iterator.
void MarkAdvanced(Trace& trace, PyObject* object);
// Returns the shadow of an element of a tuple or list.
Shadow ElementShadow(Trace& trace, PyObject* container, Py_ssize_t index);
// Returns the source of a known object or tensor, or an invalid one.
SourceId SourceOf(Trace& trace, PyObject* object);
// Guards what Python relies on: sizes or strides of a tensor, its number of dimensions, or those of every tensor in an object.
void ReadTensor(Trace& trace, PyObject* tensor, bool sizes, bool strides);
void ReadRank(Trace& trace, PyObject* tensor);
void ReadAllTensors(Trace& trace, PyObject* object, bool strides);
// Records a change that the program can observe, and what follows from it for the records.
void AddEffect(Trace& trace, Effect::Kind kind, PyObject* target, const std::string& name,
               std::vector<PyObject*> values, std::vector<Shadow> shadows);
// Records an effect of an operation that changes nothing that the trace or the undo log knows.
void PushEffect(Trace& trace, Effect::Kind kind, PyObject* target, const std::string& name,
                const std::vector<PyObject*>& values, std::vector<Shadow> shadows);
// Returns the shadow of the value that the trace has stored under the name, or null.
Shadow* WrittenShadow(Trace& trace, PyObject* owner, PyObject* name);
void SetWritten(Trace& trace, PyObject* owner, PyObject* name, Shadow shadow);
// Returns the source of an object; pins one that has none.
SourceId SourceOrPin(Trace& trace, PyObject* object);
// Guards that it is this very object.
void Fix(Trace& trace, ObjectRecord& known);
// Does so if the object existed before and is of C code, so that no source leads to what is in it.
void FixContent(Trace& trace, PyObject* object);
// Drops the record of an object that is about to end.
void Forget(Trace& trace, PyObject* object);

}  // namespace frametap
