#include "frame_eval/record/semantics/mapping_proxies.h"

#include "guards/must.h"
#include "guards/objects/held_object.h"

namespace frametap {

PyObject* DictBelow(Recorder& r, PyObject* object) {
  if (!IsMappingProxy(object)) return nullptr;
  PyObject* const dict = HeldObject(object);
  bool is_plain = PyDict_CheckExact(dict) || PyODict_CheckExact(dict);
  Py_ssize_t at = 0;
  PyObject *key, *value;
  while (is_plain && PyDict_Next(dict, &at, &key, &value)) is_plain = Recorder::IsScalar(key);
  if (!is_plain) throw Break{Reason::unknown_operation, "a mappingproxy of no plain dict"};
  if (r.Find(object) == nullptr) r.AdoptPinned(object, "mappingproxy");
  const Known* const known = r.Find(object);
  if (known->state == Known::State::kSource) {
    r.Touch(object);
    r.FromSource(r.guards().Child(known->source, Accessor::kOver, 0, nullptr, dict), dict, known->pinned);
  } else if (r.Find(dict) == nullptr) {
    // C code has made both, and nothing else has the dict: the parameters of a signature.
    if (Py_REFCNT(dict) == 1) {
      r.AdoptMade(dict);
      return dict;
    }
    throw Break{Reason::object_from_nowhere, Py_TYPE(object)->tp_name};
  }
  return dict;
}

bool ReadClassDict(Recorder& r, FrameNote& note, PyTypeObject* type, PyObject* name) {
  static PyObject* const dict_name = InternedName("__dict__");
  if (name != dict_name || _PyType_Lookup(Py_TYPE(type), name) != _PyType_Lookup(&PyType_Type, name)) return false;
  PyObject* const owner = reinterpret_cast<PyObject*>(type);
  r.Touch(owner);
  const SourceId source = r.guards().Child(r.SourceOrPin(owner), Accessor::kDict, 0, nullptr, type->tp_dict);
  r.FromSource(source, type->tp_dict, true);
  note.expect.kind = Expect::Kind::kAny;
  return true;
}

}  // namespace frametap
