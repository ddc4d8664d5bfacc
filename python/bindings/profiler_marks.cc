// The object that torch.profiler.record_function keeps, known by its class in C++. (Asked for its class in Python, it makes
// objects, and pybind11 crashes if there is no memory for them.)
#include <torch/csrc/jit/api/object.h>
#include <torch/custom_class_detail.h>

#include "frame_eval/record/semantics/observers.h"
#include "python/bindings/bindings.h"

namespace frametap {
namespace {

bool IsRecordFunction(PyObject* object) {
  static PyObject* const scripted = pybind11::type::of<torch::jit::Object>().release().ptr();
  static const c10::ClassTypePtr wanted = torch::getCustomClass("__torch__.torch.classes.profiler._RecordFunction");
  if (reinterpret_cast<PyObject*>(Py_TYPE(object)) != scripted) [[likely]]
    return false;
  pybind11::detail::type_caster<torch::jit::Object> held;
  return held.load(object, false) && static_cast<torch::jit::Object&>(held).type() == wanted;
}

}  // namespace

void BindProfilerMarks(pybind11::module_&) { mark_test = IsRecordFunction; }

}  // namespace frametap
