// Whether a loop takes the result of an instruction. No other code can reach such a result: it is on the value stack, or
// the first argument of a comprehension.
#pragma once

#include <Python.h>

namespace frametap {

// Returns whether a `for` loop or a comprehension begins with the result of the instruction at `offset`.
bool LoopTakesResult(PyCodeObject* code, int offset);

}  // namespace frametap
