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
      "What is known of a C callable, in a word; None if nothing is.");
}

}  // namespace frametap
