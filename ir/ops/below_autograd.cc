#include "ir/ops/below_autograd.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/forward_grad.h>

#include <algorithm>
#include <atomic>

#include "ir/ops/dispatcher_door.h"
#include "ir/ops/in_place.h"
#include "ir/ops/op_rows.h"
#include "ir/ops/plain_function.h"

namespace frametap {
namespace {

using c10::DispatchKey;

// torch generates a kernel of autograd for an op that has one for all devices, and is not composed of other ops. A few are
// written by hand; all of these write to an argument, or return a view of one.
bool HasTorchsAutograd(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(DispatchKey::Autograd) &&
         !op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) &&
         RunsCodeOfTorch(op, DispatchKey::AutogradCPU) &&
         (!op.hasKernelForDispatchKey(DispatchKey::ADInplaceOrView) ||
          RunsCodeOfTorch(op, DispatchKey::ADInplaceOrView));
}

bool IsComposedByTorch(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(DispatchKey::AutogradCPU) && RunsCodeOfTorch(op, DispatchKey::AutogradCPU);
}

// linear of matrices is addmm or mm of a view that it makes and drops; of other ranks, it gives a view. This speaks of one op,
// because the answer takes its parts: each of them must be torch's own, and no other op of ATen is made of these.
bool IsTorchsLinear(const c10::OperatorHandle& op) {
  if (op.operator_name().name != "aten::linear") return false;
  const auto inner = [](const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); };
  return IsComposedByTorch(op) && HasTorchsAutograd(inner("aten::t")) && HasTorchsAutograd(inner("aten::addmm")) &&
         HasTorchsAutograd(inner("aten::mm")) && IsComposedByTorch(inner("aten::matmul"));
}

// ADInplaceOrView's kernels count writes, except writes of _foreach ops, which autograd counts.
BelowAutograd BelowAutogradOf(const c10::OperatorHandle& op) {
  if (HasAliases(op.schema())) return BelowAutograd::kDiffers;
  if (!op.hasKernelForDispatchKey(DispatchKey::ADInplaceOrView) && HasTorchsAutograd(op)) return BelowAutograd::kSame;
  return IsTorchsLinear(op) ? BelowAutograd::kSameForMatrices : BelowAutograd::kDiffers;
}

bool ConvertsNumber(const c10::OperatorHandle& op) {
  return OpRowOf(op).Has(ops::kConvertsNumber) && HasTorchsAutograd(op) && HasTorchsKernelOnCpu(op);
}

std::atomic<uint64_t> kernels_noted{0};

}  // namespace

bool HasAliases(const c10::FunctionSchema& schema) {
  const auto has_alias = [](const c10::Argument& argument) { return argument.alias_info() != nullptr; };
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), has_alias) ||
         std::any_of(schema.returns().begin(), schema.returns().end(), has_alias);
}

OpVerdict Judge(const c10::OperatorHandle& op) {
  if (!IsOfTorch(op)) return {};
  return {BelowAutogradOf(op), ConvertsNumber(op), InPlaceForm(op).has_value(), IsPlainFunction(op)};
}

bool HasTorchsKernelOnCpu(const c10::OperatorHandle& op) { return RunsCodeOfTorch(op, DispatchKey::CPU); }

bool NobodyLooksOn() { return !at::hasCallbacks() && torch::autograd::ForwardADLevel::try_get_by_idx(0) == nullptr; }

void NoteKernels(uint64_t stamp) { kernels_noted.store(stamp, std::memory_order_relaxed); }
uint64_t KernelsNoted() { return kernels_noted.load(std::memory_order_relaxed); }

}  // namespace frametap
