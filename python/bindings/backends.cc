#include "python/bindings/bindings.h"

namespace frametap {

void BindBackends(pybind11::module_& m) {}

}  // namespace frametap
