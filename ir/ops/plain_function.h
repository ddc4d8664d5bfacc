// Plain functions: ops that compute new tensors from the elements of their operands and do nothing else. Only the cost
// shows whether one has run once or twice on the same operands.
//   O1  The same operands give the same bits, sizes and strides; also where two operands are one tensor and were two
//       equal ones. There is no generator, no uninitialized memory, no warning that is given each time.
//   O2  Results lie in memory of their own, whatever else the schema leaves open. Operands are not written to, not kept
//       and not returned, and their identity is not read.
//   O3  The kernel is torch's own; ask again when others may have been registered (below_autograd/A3).
// The row of a doubtful op does not say it, and the op runs as often as the program calls it. Examples are var and std, which warn
// each time, and multi-head attention, which compares query and key. Another one is native_dropout. Like _unsafe_view and
// unsafe_split, it may return memory of its operand, and its schema does not show that.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

namespace frametap {

bool IsPlainFunction(const c10::OperatorHandle& op);

std::vector<std::string>
PlainFunctions();  // "aten::add", for all overloads that name no operand as written to or given back

}  // namespace frametap
