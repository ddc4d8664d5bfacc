// The content of the tables of C callables, for tests that compare them with the real ones.
#include <pybind11/stl.h>

#include <optional>

#include "frame_eval/record/callables/table.h"
#include "python/bindings/bindings.h"

namespace frametap {

void BindCallables(pybind11::module_& m) {
  m.def(
      "conduct",
      [](pybind11::handle callable) -> std::optional<std::string> {
        const CallableRow* row = FindCallable(callable.ptr());
        return row != nullptr ? std::optional<std::string>(ConductName(row->conduct)) : std::nullopt;
      },
      "Describes a C callable in one word, or returns None if it is unknown.");
}

}  // namespace frametap
