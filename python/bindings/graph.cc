#include "python/bindings/bindings.h"

namespace frametap {

void BindGraph(pybind11::module_& m) {}

}  // namespace frametap
