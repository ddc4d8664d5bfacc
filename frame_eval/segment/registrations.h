// Registrations: the kernels that a call of an op leads to, as one number.
//   G1  The number is another one once a kernel of the op was registered, exchanged or taken away, on any dispatch key. So
//       it is for an op of torch.library.custom_op whose definition got another kernel, `setup_context` or `backward`.
//   G2  Kernels that were taken away are kept as long as the number is compared. So no other kernel lies at their address.
// Not here: whether torch's own kernels may be left out (ir/ops/below_autograd.h).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <Python.h>

#include <cstdint>
#include <vector>

namespace frametap {

// Under Python's lock; runs no Python code.
class Registration {
 public:
  explicit Registration(const c10::OperatorHandle& op);
  bool IsAsItWas() const;

 private:
  c10::OperatorName name_;
  std::vector<c10::intrusive_ptr<c10::OperatorKernel>> kernels_;  // G2
  uint64_t stamp_;
};

bool AreAsTheyWere(const std::vector<Registration>& registrations);

}  // namespace frametap
