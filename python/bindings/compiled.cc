#include "python/bindings/bindings.h"

namespace frametap {

void BindCompiled(pybind11::module_& m) {}

}  // namespace frametap
