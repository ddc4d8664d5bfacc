// Operands of ops on numbers. Python refuses some of them (1 / 0, math.log(-1), int(inf)), and graphs have no result for others.
//   O1  If the op has a result now, it is guarded that the operand stays one that the op takes. A number from elements of tensors
//       cannot be guarded: the op fails in a run, and plain Python runs the call.
//   O2  If it has none now, the operands are fixed. A handler of the program may wait for the exception.
#pragma once

#include <Python.h>

#include <initializer_list>
#include <utility>

#include "frame_eval/interpreter/shadow.h"
#include "frame_eval/record/trace.h"
#include "ir/graph/builtin_op.h"

namespace frametap {

// Returns whether an op may take the number, as its comparison with zero holds (O1).
bool TakesOperand(Trace& trace, PyObject* object, Shadow shadow, int py_compare_op);
// Returns whether the op has no result for these numbers (O2), or a fixed one has more bits than numbers of graphs. An object may be
// null, if it is not known yet.
bool HasNoResult(BuiltinOp op, std::initializer_list<std::pair<PyObject*, Shadow>> operands);

}  // namespace frametap
