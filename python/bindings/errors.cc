#include "python/bindings/bindings.h"

namespace frametap {

void BindErrors(pybind11::module_& m) {}

}  // namespace frametap
