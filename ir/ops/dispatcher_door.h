// The one door to private members of torch's dispatcher (2.13): the kernels of an op, which have no accessor.
// Not here: torch's Python tensors (guards/objects/torch_tensor.h).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

#include "absl/functional/function_ref.h"

namespace frametap {

// Calls `seen` for each kernel that a call of the op may lead to: with the object that holds it, or with its function.
void ForEachKernel(
    const c10::OperatorHandle& op,
    absl::FunctionRef<void(const c10::intrusive_ptr<c10::OperatorKernel>& functor, const void* unboxed)> seen);

// Returns whether a call with this key runs a function of torch's own library. The kernels of other libraries and of Python do not.
// A library that is loaded with RTLD_GLOBAL after torch's and registers a function pointer at run time may look like one.
bool RunsCodeOfTorch(const c10::OperatorHandle& op, c10::DispatchKey key);

// Returns a sentence if kernels cannot be read in this build of torch, and an empty string otherwise.
std::string DispatcherProblem();

}  // namespace frametap
