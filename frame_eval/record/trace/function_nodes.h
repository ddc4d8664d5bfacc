// A call of torch.autograd.Function is one node of the graph, and that node makes the call again. `forward` is the
// program's own code, and its data for `backward` belong to one run.
//   F1  The recording goes through `forward` as through any callee, so all that it reads is guarded, and whatever ends a
//       recording ends it there. Then its ops are dropped for the node.
//   F2  The node stands for ops on its tensors alone: a `forward` that changes a Python object, writes to a tensor that it
//       was not given, uses one, changes the sizes of an argument, or gives sizes that follow from elements ends the graph
//       before the call. One that writes to its arguments, or gives their memory back, is a node that says so (kWritingOp).
//       A call after the trace has changed Python objects ends it, too (python_ops/O3).
//   F3  The segment owns what the node calls, and the class is held weakly: that it is alive is guarded.
// Not here: `backward`, which autograd calls as always.
#pragma once

#include <Python.h>

#include <optional>
#include <vector>

#include "frame_eval/record/trace.h"

namespace frametap {

inline constexpr const char* kFunctionOp = "frametap::apply";
inline constexpr const char* kWritingOp = "frametap::apply_";

void RegisterFunctionOp();  // both, once, at import

void CallFunction(Trace& trace, Call& call);
Shadow FunctionResult(Trace& trace, FrameNote& note, const Event& e, PyObject* result);
std::vector<std::optional<Shadow>> OuterSizes(Trace& trace, const at::Tensor& tensor, const AtenRecorder::Mark& since);
void NoteSizes(Trace& trace, ValueId value, const std::vector<std::optional<Shadow>>& sizes);

}  // namespace frametap
