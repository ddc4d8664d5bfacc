// Below autograd: where no gradient is wanted, autograd's kernel of an op only passes the call on, and so do the
// kernels of the ops within. A run may then leave autograd out.
//   A1  An op is the same below autograd if the dispatcher's table says so. Autograd's kernel must be one of those that
//       torch generates, which look for gradients and pass the call on. There must be none for ADInplaceOrView, which notes
//       writes to arguments and views of them, and the schema must not have either. Which kernel is torch's is asked of the
//       address of its code. Other ops that are the same (a composite one) are named in below_autograd.cc.
//   A2  That holds while grad mode, inference mode and autocast are off (MayLeaveOutAutograd), no level of forward-mode
//       AD is open, and ops are not observed. Every tensor must be a plain one: strided, on the CPU, not of inference
//       mode, with no other dispatch key (a subclass, a wrapper of functorch, a conjugate).
//   A3  Kernels may be registered at any time. KernelsNoted() shows that some may have been: judge again.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>

#include "ir/graph/graph.h"

namespace frametap {

enum class BelowAutograd : uint8_t { kDiffers, kSame, kSameForMatrices };  // the last: for arguments of two dimensions

struct OpVerdict {
  BelowAutograd below = BelowAutograd::kDiffers;  // A1
  // The op converts a number that is its second operand to the dtype of the first one, so it may get the converted one.
  // Torch's own kernels of + - * / do so.
  bool converts_number = false;
  bool works_in_place = false;  // InPlaceForm has one (in_place.h)
  bool plain_function = false;  // plain_function.h

  friend bool operator==(const OpVerdict&, const OpVerdict&) = default;
};

OpVerdict Judge(const c10::OperatorHandle& op);
bool HasTorchsKernelOnCpu(const c10::OperatorHandle& op);
bool HasAliases(const c10::FunctionSchema& schema);  // A1: it has writes to arguments or views of them

// A2
inline bool MayLeaveOutAutograd(const EagerState& state) {
  return !state.grad_mode && !state.inference_mode && !state.autocast_cpu;
}
bool NobodyLooksOn();  // at ops of this thread
inline bool IsPlain(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet plain(
      {c10::DispatchKey::CPU, c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutogradCPU});
  // A tensor of inference mode lacks this key. Outside of that mode, kernels count versions of its results.
  constexpr c10::DispatchKeySet normal(c10::DispatchKey::ADInplaceOrView);
  return (tensor.key_set().raw_repr() & ~plain.raw_repr()) == normal.raw_repr();
}

// A3. `stamp` is another number once kernels were registered or taken away.
void NoteKernels(uint64_t stamp);
uint64_t KernelsNoted();

}  // namespace frametap
