// An op whose kernel is Python code (torch.library.custom_op, Library.impl) is one node of the graph, and that node calls
// the op again. The kernel is the program's own code.
//   P1  The recording goes through the program's frames below the op: kernels and `setup_context`. So all that they read is
//       guarded, and whatever ends a recording ends it before the op. Then their ops are dropped for the op's node.
//   P2  Frames of torch between the dispatcher and the kernel are known by the globals of their modules, and run in plain
//       Python. They read registrations, which are compared before each run (registrations.h), and state that the
//       node keeps.
//   P3  A run may start over, so the program must not observe that a kernel ran twice. A kernel that changes a Python object,
//       takes from an iterator or decides on elements ends the graph before the op.
//   P4  In a run, changes of Python objects come after all ops. So an op ends the graph if the trace has changed objects
//       before it, which its kernel may read.
//   P5  A kernel ends the graph if it writes to a tensor that the schema does not name as written, or returns an argument.
//       A kernel that uses a tensor of the trace ends it as well, unless the tensor was passed.
//   P6  Numbers that are passed are fixed. Sizes of results are expressed by the dropped ops, or asked of the result.
//   P7  A number that is passed as a tensor ends the graph before the op. Its kernel takes the number only below a call of Python
//       (`torch.ops.prims`), and a run has none.
// Not here: kernels of torch's own ops that are exchanged for Python code, which end the graph, and compiling backends,
// under which every such op does.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "frame_eval/cpython/eval_function.h"
#include "frame_eval/interpreter/shadow.h"
#include "frame_eval/record/trace.h"
#include "ir/graph/graph.h"

namespace frametap {

using TracedSizes = absl::flat_hash_map<std::pair<uint32_t, int64_t>, Shadow>;  // of a value, along a dimension

// P6. Returns whether sizes and strides of the node's results follow from sizes and strides of its arguments. (The op's
// facts do not say so.)
bool SizesFollow(const Node& node, const TracedSizes& sizes);

// P2. Returns whether it is a frame of torch's dispatcher, or of the code that torch.library puts around a kernel.
bool RunsForDispatcher(const FrameFacts& frame);

bool MayFollowKernel(const Trace& trace);  // a frame has come below an op
void EnterKernel(Trace& trace, FrameState& f, FrameNote& caller);
void KernelResult(Trace& trace, FrameNote& note);

}  // namespace frametap
