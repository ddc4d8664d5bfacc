// Fields of functions: what they are called, their documentation, annotations and defaults (functools.wraps).
//   F1  The code of a function from outside belongs to its identity (kinds/identity.cc). Its other fields can be
//       assigned to, and are guarded by themselves.
//   F2  A function of the trace's own is described by its fields as they are (describe.cc), so what is stored there is
//       fixed.
#include <cstddef>
#include <cstring>

#include "frame_eval/record/recorder.h"
#include "guards/must.h"
#include "guards/objects/tensor_door.h"

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

bool Is(PyObject* name, const char* text) { return PyUnicode_CompareWithASCIIString(name, text) == 0; }

}  // namespace

// Reads a field. Returns false if the look-up continues as for other objects.
bool Recorder::FunctionAttribute(FrameNote& note, PyObject* function, PyObject* name) {
  auto* const fields = reinterpret_cast<PyFunctionObject*>(function);
  // The first read makes the dict, as this instruction will.
  const bool is_annotations = Is(name, "__annotations__");
  const bool makes_notes =
      is_annotations && (fields->func_annotations == nullptr || !PyDict_Check(fields->func_annotations));
  const bool makes_dict = fields->func_dict == nullptr && Is(name, "__dict__");
  if (makes_notes || makes_dict) Must(PyObject_GenericGetAttr(function, name));
  if (Find(function) == nullptr) AdoptPinned(function);
  Known* const known = Find(function);
  if (known->state != Known::State::kSource) {
    if (is_annotations && Find(fields->func_annotations) == nullptr) AdoptMade(fields->func_annotations);
    return false;
  }
  for (const Field& field : kFields) {
    if (!Is(name, field.name)) continue;
    Fix(*known);
    if (field.offset != 0) guards_.Field(known->source, field.offset, Here());
    note.expect.kind = Expect::Kind::kPinned;
    return true;
  }
  return false;
}

// Stores a field. Returns false if the store continues as for other objects.
bool Recorder::StoreFunctionAttribute(PyObject* function, PyObject* name, PyObject* value, Shadow shadow) {
  Known* const known = Find(function);
  if (known == nullptr || IsTensor(value)) return false;
  const bool is_name = Is(name, "__name__") || Is(name, "__qualname__");
  const bool is_known = is_name                       ? PyUnicode_CheckExact(value) != 0
                        : Is(name, "__annotations__") ? PyDict_CheckExact(value) != 0
                                                      : Is(name, "__doc__") || Is(name, "__module__");
  if (!is_known) return false;
  if (known->state != Known::State::kSource) {
    Force(value, shadow);
    MarkMutated(function);
    return true;
  }
  if (!is_name) return false;
  Touch(function);
  if (!known->mutated) mutated_sources_.push_back(function);
  MarkMutated(function);
  AddEffect(Effect::Kind::kSetAttr, function, PyUnicode_AsUTF8(name), {value}, {shadow});
  SetWritten(function, name, shadow);
  return true;
}

}  // namespace frametap
