// Boxing: how an argument of a node becomes what the op's boxed kernel takes. Both executors box with these rules.
//   N1  A number for a Tensor parameter becomes a wrapped number, as the bindings of `torch` make it. This is a tensor
//       of no dimension that does not take part in type promotion as a tensor would.
//   N2  A number of a narrower kind becomes the parameter's kind: bool to int, int to float.
//   N3  None for a Tensor parameter is the undefined tensor.
//   N4  A constant of the graph stands for a tensor that the program makes each time: each run has its own copy.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include "ir/graph/graph.h"

namespace frametap {

enum class Boxing : uint8_t { kAsIs, kTensor, kOptionalTensor, kFloat, kInt };

Boxing BoxingFor(const c10::Type& type);  // of a parameter or a list's element; optionals included
c10::IValue Box(c10::IValue value, Boxing boxing);
at::Tensor WrappedFloat(float number);  // N1, of dtype float32

// The type of a list parameter's elements; null if the parameter is not a list.
c10::TypePtr ElementType(const c10::Type& type);

at::Tensor FreshCopy(const at::Tensor& constant);  // N4, under the thread's state

}  // namespace frametap
