// What sources that know Python include most of all (CMakeLists.txt).
#pragma once

#include <Python.h>
// Python's header comes first.
#include "cmake/precompiled_plain.h"
