#include "python/bindings/errors.h"

#include <exception>
#include <string>

#include "backends/callable/values.h"
#include "guards/objects/torch_tensor.h"
#include "python/bindings/bindings.h"

namespace frametap {

namespace py = pybind11;

void Throw(const absl::Status& status, const char* exception) {
  py::object type = Imported("frametap._errors").attr(exception);
  PyErr_SetString(type.ptr(), std::string(status.message()).c_str());
  throw py::error_already_set();
}

void BindErrors(py::module_&) {
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    if (!pointer) return;
    try {
      std::rethrow_exception(pointer);
    } catch (const py::error_already_set&) {
      throw;
    } catch (const py::builtin_exception&) {
      throw;
    } catch (...) {
      SetPythonErrorFromException();
    }
  });
}

}  // namespace frametap
