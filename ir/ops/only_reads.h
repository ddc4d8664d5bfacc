// OnlyReads: whether an op does nothing with an operand except read it while it runs.
//   K1  The op does not write to the operand, does not give it or a view of it as a result, and does not keep it.
//   K2  A doubt errs towards false: kernels outside aten are trusted only if their rows say so. Each is one of our
//       own byte kernels.
// Not here: which operands share memory with a result (gives_argument.h, ir/passes/writes.h).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstddef>
#include <string>
#include <vector>

namespace frametap {

bool OnlyReads(const c10::OperatorHandle& op, size_t parameter);

std::vector<std::string> OpsOutsideAtenThatOnlyRead();  // K2: "frametap::qlinear"

}  // namespace frametap
