// In-place forms: an elementwise op on floats whose result may lie in place of its first operand, once that is dead.
// Saves the allocation, and for large tensors the page faults of fresh memory.
//   I1  The in-place form writes the same bits as the op, into a tensor that cannot be distinguished from the op's own
//       result. Its dtype, sizes, strides, offset, size of the storage and version are equal. Such an op is one pass over
//       the elements by TensorIterator, whose result of floats has their dtype.
//   I2  It holds below autograd only (below_autograd.h): writes are not recorded there.
//   I3  Both kernels are torch's own; ask again when others may have been registered (below_autograd/A3).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <string>
#include <vector>

namespace frametap {

std::optional<c10::OperatorHandle> InPlaceForm(const c10::OperatorHandle& op);

// Whether the op with these arguments may be given to its in-place form. The first is a float tensor that only this
// stack holds. The second, if it is a tensor, has its dtype and is broadcast to it.
bool MayOverwrite(const std::vector<c10::IValue>& stack);

std::vector<std::string> OpsWithInPlaceForm();  // "aten::add.Tensor"

}  // namespace frametap
