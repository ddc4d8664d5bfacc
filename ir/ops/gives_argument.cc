#include "ir/ops/gives_argument.h"

#include "ir/ops/op_rows.h"

namespace frametap {

GivesArgument GivesArgumentOf(const c10::OperatorHandle& op) {
  const OpRow row = OpRowOf(op);
  if (row.Has(ops::kGivesByType | ops::kGivesByDtype) && !row.in_place) return GivesArgument::kByType;
  // Kernels of their own give what their schema says.
  const bool is_kernel = IsOfTorch(op) && !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  return is_kernel || row.Has(ops::kGivesNew) ? GivesArgument::kNever : GivesArgument::kByContent;
}

}  // namespace frametap
