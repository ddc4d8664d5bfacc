#include "frame_eval/record/objects/class_names.h"

#include <cstddef>

#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/trace.h"

namespace frametap {

namespace {

struct Field {
  const char* name;
  size_t offset;
};
constexpr Field kFields[] = {{"__name__", offsetof(PyHeapTypeObject, ht_name)},
                             {"__qualname__", offsetof(PyHeapTypeObject, ht_qualname)}};

}  // namespace

void ReadClassName(Trace& trace, PyTypeObject* type) {
  if ((type->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0 || (type->tp_flags & Py_TPFLAGS_IMMUTABLETYPE) != 0) return;
  PyObject* const object = reinterpret_cast<PyObject*>(type);
  const SourceId source = SourceOrPin(trace, object);
  ObjectRecord* const known = trace.objects.Find(object);
  if (known != nullptr && known->state == ObjectRecord::State::kSource) Fix(trace, *known);
  trace.guards.Class(type, trace.frames.Here());  // `__module__` is in its dict
  for (const Field& field : kFields)
    trace.guards.Field(source, static_cast<Py_ssize_t>(field.offset), trace.frames.Here());
}

void ReadIfClassName(Trace& trace, PyTypeObject* type, PyObject* name) {
  for (const Field& field : kFields) {
    if (PyUnicode_CompareWithASCIIString(name, field.name) == 0) return ReadClassName(trace, type);
  }
}

}  // namespace frametap
