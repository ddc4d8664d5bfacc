// The effect of an op on sizes: whether the sizes of its results follow from its arguments' sizes, ranks, strides,
// dtypes and numbers. Also whether it leaves the metadata of the arguments that it writes to as it is.
//   M1  A doubt errs towards "they follow from elements" and "it may change them". An unknown op (a custom op, a new
//       one of torch) is asked for its sizes at each run.
//   M2  Sizes follow if torch's tag says that the op is pointwise. They also follow if the op has a kernel for tensors
//       without elements (Meta), a size rule, or a schema without tensors. A list has the other ops, and tests run each of them.
// Not here: the ops that are known to make sizes of elements (op_facts.cc), and how large a result is (size_rules.h).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace frametap {

// For ops on dense tensors. Numbers such as the count of stored elements of sparse and nested ones are never sizes
// that follow.
bool SizesFollowFromSizes(const c10::OperatorHandle& op);

// Whether sizes, strides and memory of every argument that the op writes to are afterwards what they were.
bool KeepsMetadata(const c10::OperatorHandle& op);

}  // namespace frametap
