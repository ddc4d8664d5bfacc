// Calls of functions under functools.lru_cache: their cache is read, and a result comes out of it.
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"

namespace frametap {

// Records a call of a function under functools.lru_cache. One with numbers that are not fixed is to be predicted, if it can be
// (predicted_calls.h).
void InvokeCached(Trace& trace, Call& call);
// Records it as a look-up with known arguments, whose result is the very object. A new entry is a break.
void InvokeCachedByIdentity(Trace& trace, Call& call);
// Guards which object it is, if it existed before.
void FixByIdentity(Trace& trace, PyObject* object);

}  // namespace frametap
