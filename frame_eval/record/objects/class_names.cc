#include "frame_eval/record/objects/class_names.h"

#include <cstddef>

#include "frame_eval/record/recorder.h"

namespace frametap {

namespace {

struct Field {
  const char* name;
  size_t offset;
};
constexpr Field kFields[] = {{"__name__", offsetof(PyHeapTypeObject, ht_name)},
                             {"__qualname__", offsetof(PyHeapTypeObject, ht_qualname)}};

}  // namespace

void ReadClassName(Recorder& r, PyTypeObject* type) {
  if ((type->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0 || (type->tp_flags & Py_TPFLAGS_IMMUTABLETYPE) != 0) return;
  PyObject* const object = reinterpret_cast<PyObject*>(type);
  const SourceId source = r.SourceOrPin(object);
  Known* const known = r.Find(object);
  if (known != nullptr && known->state == Known::State::kSource) r.Fix(*known);
  r.guards().Class(type, r.Here());  // `__module__` is in its dict
  for (const Field& field : kFields) r.guards().Field(source, static_cast<Py_ssize_t>(field.offset), r.Here());
}

void ReadIfClassName(Recorder& r, PyTypeObject* type, PyObject* name) {
  for (const Field& field : kFields) {
    if (PyUnicode_CompareWithASCIIString(name, field.name) == 0) return ReadClassName(r, type);
  }
}

}  // namespace frametap
