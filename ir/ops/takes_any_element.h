// Whether an op raises for some elements of its arguments and not for others (an index out of range, a matrix without an
// inverse).
//   T1  A doubt errs towards "it does". That an op takes any elements has been decided by its name, by torch's tag for
//       pointwise ops, or by a schema that declares a view.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace frametap {

bool TakesAnyElement(const c10::OperatorHandle& op);

}  // namespace frametap
