#include "frame_eval/record/semantics/function_attributes.h"

#include <cstddef>
#include <cstring>

#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/objects/knowledge.h"
#include "guards/objects/torch_tensor.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

struct Field {
  const char* name;
  Py_ssize_t offset = 0;  // 0 if it is fixed with the function
};

constexpr Field kFields[] = {{"__code__"},
                             {"__defaults__"},
                             {"__kwdefaults__"},
                             {"__closure__"},
                             {"__name__", offsetof(PyFunctionObject, func_name)},
                             {"__qualname__", offsetof(PyFunctionObject, func_qualname)},
                             {"__doc__", offsetof(PyFunctionObject, func_doc)},
                             {"__module__", offsetof(PyFunctionObject, func_module)},
                             {"__annotations__", offsetof(PyFunctionObject, func_annotations)}};

// Guards a function from outside, and the field at the offset.
void FixField(Trace& trace, ObjectRecord& known, Py_ssize_t offset) {
  Fix(trace, known);
  if (offset != 0) trace.guards.Field(known.source, offset, trace.frames.Here());
}

bool Is(PyObject* name, const char* text) { return PyUnicode_CompareWithASCIIString(name, text) == 0; }

}  // namespace

// Reads a field. Returns false if the look-up continues as for other objects.
bool FunctionAttribute(Trace& trace, FrameNote& note, PyObject* function, PyObject* name) {
  auto* const fields = reinterpret_cast<PyFunctionObject*>(function);
  // The first read makes the dict, as this instruction will.
  const bool is_annotations = Is(name, "__annotations__");
  const bool makes_notes =
      is_annotations && (fields->func_annotations == nullptr || !PyDict_Check(fields->func_annotations));
  const bool makes_dict = fields->func_dict == nullptr && Is(name, "__dict__");
  if (makes_notes || makes_dict) Must(PyObject_GenericGetAttr(function, name));
  if (trace.objects.Find(function) == nullptr) AdoptPinned(trace, function);
  ObjectRecord* const known = trace.objects.Find(function);
  if (known->state != ObjectRecord::State::kSource) {
    if (is_annotations && trace.objects.Find(fields->func_annotations) == nullptr)
      TrackCreated(trace, fields->func_annotations);
    return false;
  }
  for (const Field& field : kFields) {
    if (!Is(name, field.name)) continue;
    FixField(trace, *known, field.offset);
    note.op.expect.kind = ResultSpec::Kind::kPinned;
    return true;
  }
  return false;
}

void FixPrintedName(Trace& trace, PyObject* function) {
  if (trace.objects.Find(function) == nullptr) AdoptPinned(trace, function);
  ObjectRecord* const known = trace.objects.Find(function);
  if (known->state == ObjectRecord::State::kSource) FixField(trace, *known, offsetof(PyFunctionObject, func_qualname));
}

// Stores a field. Returns false if the store continues as for other objects.
bool StoreFunctionAttribute(Trace& trace, PyObject* function, PyObject* name, PyObject* value, Shadow shadow) {
  ObjectRecord* const known = trace.objects.Find(function);
  if (known == nullptr || IsTensor(value)) return false;
  const bool is_name = Is(name, "__name__") || Is(name, "__qualname__");
  const bool is_known = is_name                       ? PyUnicode_CheckExact(value) != 0
                        : Is(name, "__annotations__") ? PyDict_CheckExact(value) != 0
                                                      : Is(name, "__doc__") || Is(name, "__module__");
  if (!is_known) return false;
  if (known->state != ObjectRecord::State::kSource) {
    Specialize(trace, value, shadow);
    MarkMutated(trace, function);
    return true;
  }
  if (!is_name) return false;
  GuardTypeOrIdentity(trace, function);
  if (!known->mutated) trace.objects.mutated_sources.push_back(function);
  MarkMutated(trace, function);
  AddEffect(trace, Effect::Kind::kSetAttr, function, PyUnicode_AsUTF8(name), {value}, {shadow});
  SetWritten(trace, function, name, shadow);
  return true;
}

}  // namespace frametap
