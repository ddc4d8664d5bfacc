// MemoryOverlap: whether tensors may share elements, by the addresses between their first and last ones.
//   V1  A doubt errs towards true: tensors whose elements alternate in memory count as sharing them.
//   V2  Tensors without elements, or without memory of their own (sparse ones, meta), share nothing.
#pragma once

#include <ATen/core/Tensor.h>

namespace frametap {

// Returns whether any two of the tensors may share elements. Undefined ones are left out.
bool MayOverlap(c10::ArrayRef<at::Tensor> tensors);

}  // namespace frametap
