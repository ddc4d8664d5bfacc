// In-place forms: an elementwise op on floats whose result may lie where its first operand was, once nobody needs that
// any more. Saves the allocation, and of large tensors the page faults of fresh memory.
//   I1  The in-place form writes the bits that the op would have given, into a tensor that nobody can tell from the one
//       that the op would have made: dtype, sizes, strides, offset, size of the storage, version.
//   I2  It holds below autograd only (below_autograd.h): there, nothing is told of writes.
//   I3  Both kernels are torch's own; ask again when others may have been registered (A3 of below_autograd.h).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <string>
#include <vector>

namespace frametap {

std::optional<c10::OperatorHandle> InPlaceForm(const c10::OperatorHandle& op);

// Whether the op with these arguments may be given to its in-place form: the first is a float tensor that only this
// stack holds, and the second, if it is a tensor, has its dtype and is broadcast to it.
bool MayOverwrite(const std::vector<c10::IValue>& stack);

std::vector<std::string> OpsWithInPlaceForm();  // "aten::add.Tensor"

}  // namespace frametap
