#include "ir/ops/plain_function.h"

#include "ir/ops/below_autograd.h"
#include "ir/ops/op_rows.h"

namespace frametap {

bool IsPlainFunction(const c10::OperatorHandle& op) {
  return OpRowOf(op).Has(ops::kPlain) && !HasAliases(op.schema()) && HasTorchsKernelOnCpu(op);
}

std::vector<std::string> PlainFunctions() { return OpsWith(ops::kPlain); }

}  // namespace frametap
