// Callers: frames that run their callee with no state of their own in between. Making the call again leads to the
// callee's beginning and to nothing else.
//   J1  That is a call by bytecode of a Python function, also through a bound method or an instance whose class has a
//       `__call__` in Python (every nn.Module). Binding the arguments runs no code of the program.
//   J2  And a loop of bytecode that takes an item from a generator whose frame is no more than its locals and its stack.
// Not here: what is put into the frames that such calls make (session.h).
#pragma once

#include <Python.h>

#include "frame_eval/interpreter/tracer.h"

namespace frametap {

// The function whose frame comes if the call that `f` stands at is made; borrowed, null if there is none.
PyFunctionObject* CalledFunction(const FrameState& f);

// `callee` is the frame of the call at which `caller` stands, or of the generator from which it takes an item.
bool IsDirectCall(const FrameState& caller, const FrameState& callee);

}  // namespace frametap
