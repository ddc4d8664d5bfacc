// nn.Module.__call__ in two steps instead of a hundred instructions. Where a module has no hooks, its two functions look
// for some and pass their arguments on, and in a model of small layers most of a recording was spent in them. A frame of
// either is taken from its first instruction to the call with which it passes on. The reads of the instructions
// between are recorded in their order and at their places, and the frame is as they would have left it. So guards are those
// of the interpretation, except that one (guards/kinds/no_hooks.h) says of the instance what eleven would.
// Anything unusual (a hook, an attribute of the instance's own, a class with its own __getattribute__) is left to them:
// a guard that was made until then is one that they make as well. So it is where this is switched off: the guard of the
// instance is made, and the instructions run.
// The functions are known by their identity and by a digest of their code (module_call_code.h), compared when the extension
// is loaded. If it differs, nothing is crossed, and `explain` says so.
#pragma once

#include <Python.h>

#include <array>
#include <optional>

#include "frame_eval/record/trace.h"

namespace frametap {

bool LoadModuleCalls();                 // once, after LoadKnownObjects; false with a Python exception set
bool IsModuleCall(PyCodeObject* code);  // one of its functions, and it may be crossed
// The `forward` of quantized models, which run by themselves: no recording goes into it, and none begins inside. Null until
// the package has set it; never freed.
PyCodeObject*& OwnExecutable();
// The four dicts of hooks (borrowed), all empty, of a module whose call comes down to the `forward` of its class.
// Other modules' hooks or the class's own call functions may change that. Returns none for any other object.
std::optional<std::array<PyObject*, 4>> NoHooksOf(PyObject* object);
// Whether torch's code is the code that is crossed. If it is not, it is interpreted like any other.
bool KnowsModuleCalls();
// Off: it is interpreted like any code. Gives whether it was crossed before.
bool CrossModuleCalls(bool on);

// module_calls.cc: takes a frame of nn.Module.__call__ from its first instruction to the call with which it passes
// its arguments on. Returns false if it must be interpreted, and is unchanged.
bool CrossModuleCall(Trace& trace, FrameState& f, FrameNote& note);
// … which begins with instructions that make cells: at once. Returns false if there are none to be made here.
bool MakeCells(Trace& trace, FrameState& f);
bool PassOn(Trace& trace, const Event& e);  // module_calls.cc; false: a call like any other

}  // namespace frametap
