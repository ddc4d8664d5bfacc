// Array: how an array of NumPy is laid out. Its elements and its base are not compared.
#pragma once

#include <memory>

#include "guards/kinds/guard.h"

namespace frametap {

std::unique_ptr<Guard> MakeArrayGuard(PyObject* array);  // requires IsArray

}  // namespace frametap
