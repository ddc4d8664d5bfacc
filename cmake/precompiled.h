// The most frequent includes of sources that use Python (CMakeLists.txt).
#pragma once

#include <Python.h>
// Python's header comes first.
#include "cmake/precompiled_plain.h"
