// Calls of functions under functools.lru_cache: their cache is read, and a result comes out of it.
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"

namespace frametap {

void InvokeCached(Trace& trace, Call& call);

}  // namespace frametap
