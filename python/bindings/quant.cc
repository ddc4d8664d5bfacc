#include "python/bindings/bindings.h"

namespace frametap {

void BindQuant(pybind11::module_& m) {}

}  // namespace frametap
