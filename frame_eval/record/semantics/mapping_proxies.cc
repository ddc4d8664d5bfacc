#include "frame_eval/record/semantics/mapping_proxies.h"

#include "frame_eval/record/objects/knowledge.h"
#include "guards/objects/held_object.h"
#include "guards/throw_if_null.h"

namespace frametap {

PyObject* DictBelow(Trace& trace, PyObject* object) {
  if (!IsMappingProxy(object)) return nullptr;
  PyObject* const dict = HeldObject(object);
  bool is_plain = PyDict_CheckExact(dict) || PyODict_CheckExact(dict);
  Py_ssize_t at = 0;
  PyObject *key, *value;
  while (is_plain && PyDict_Next(dict, &at, &key, &value)) is_plain = IsScalar(key);
  if (!is_plain) throw Break{Reason::unknown_operation, "a mappingproxy of no plain dict"};
  if (trace.objects.Find(object) == nullptr) AdoptPinned(trace, object, "mappingproxy");
  const ObjectRecord* const known = trace.objects.Find(object);
  if (known->state == ObjectRecord::State::kSource) {
    GuardTypeOrIdentity(trace, object);
    FromSource(trace, trace.guards.Child(known->source, Accessor::kOver, 0, nullptr, dict), dict, known->pinned);
  } else if (trace.objects.Find(dict) == nullptr) {
    // C code has made both, and nothing else has the dict: the parameters of a signature.
    if (Py_REFCNT(dict) == 1) {
      TrackCreated(trace, dict);
      return dict;
    }
    throw Break{Reason::object_from_nowhere, Py_TYPE(object)->tp_name};
  }
  return dict;
}

bool ReadClassDict(Trace& trace, FrameNote& note, PyTypeObject* type, PyObject* name) {
  static PyObject* const dict_name = InternedName("__dict__");
  if (name != dict_name || _PyType_Lookup(Py_TYPE(type), name) != _PyType_Lookup(&PyType_Type, name)) return false;
  PyObject* const owner = reinterpret_cast<PyObject*>(type);
  GuardTypeOrIdentity(trace, owner);
  const SourceId source = trace.guards.Child(SourceOrPin(trace, owner), Accessor::kDict, 0, nullptr, type->tp_dict);
  FromSource(trace, source, type->tp_dict, true);
  note.op.expect.kind = ResultSpec::Kind::kAny;
  return true;
}

}  // namespace frametap
