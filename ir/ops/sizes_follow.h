// The effect of an op on sizes: whether the sizes of its results follow from its arguments' sizes, ranks, strides,
// dtypes and numbers. Also whether it leaves the metadata of the arguments that it writes to as it is.
//   M1  A doubt errs towards "they follow from elements" and "it may change them". An unknown op (a custom op, a new
//       one of torch) is asked for its sizes at each run.
//   M2  Sizes follow if torch's tag says that the op is pointwise. They also follow if the op has a kernel for tensors
//       without elements (Meta), a size rule, or a schema without tensors. Rows say so of the others (ops.def).
// Not here: whether ranks follow from sizes (op_facts.h), and how large a result is (size_rules.h).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "ir/ops/op_rows.h"

namespace frametap {

// `row` is the row of the op. This is for ops on dense tensors. Numbers such as the count of stored elements of sparse and nested ones are never sizes
// that follow.
bool SizesFollowFromSizes(const c10::OperatorHandle& op, const OpRow& row);

// Whether sizes, strides and memory of every argument that the op writes to are afterwards what they were.
bool KeepsMetadata(const c10::OperatorHandle& op, const OpRow& row);

}  // namespace frametap
