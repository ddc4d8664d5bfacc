// The one door to private members of torch's dispatcher (2.13): the kernels of an op, which have no accessor.
// Not here: torch's Python tensors (tensor_door.h).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

#include "absl/functional/function_ref.h"

namespace frametap {

// Calls `seen` for each kernel that a call of the op may lead to: with the object that holds it, or with its function.
void ForEachKernel(
    const c10::OperatorHandle& op,
    absl::FunctionRef<void(const c10::intrusive_ptr<c10::OperatorKernel>& functor, const void* unboxed)> seen);

// Returns a sentence if kernels cannot be read in this build of torch, and an empty string otherwise.
std::string DispatcherProblem();

}  // namespace frametap
