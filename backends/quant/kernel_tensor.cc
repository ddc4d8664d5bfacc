#include "backends/quant/kernel_tensor.h"

#include <ATen/OpaqueTensorImpl.h>
#include <torch/library.h>

#include <memory>
#include <typeinfo>

#include "absl/container/flat_hash_set.h"

namespace frametap::quant {
namespace {

using onednn::Int8Kernel;
using KernelTensorImpl = at::OpaqueTensorImpl<std::shared_ptr<Int8Kernel>>;

Int8Kernel& KernelOrThrow(const at::Tensor& tensor) {
  Int8Kernel* const kernel = KernelIn(tensor);
  TORCH_CHECK(kernel != nullptr, "expected an int8 kernel, which only lowering makes, not a tensor of sizes ",
              tensor.sizes());
  return *kernel;
}

at::Tensor Run(const at::Tensor& x, const at::Tensor& kernel) { return KernelOrThrow(kernel).Run(x); }

at::Tensor RunInto(const at::Tensor& x, at::Tensor accumulator, const at::Tensor& kernel) {
  return KernelOrThrow(kernel).RunInto(x, accumulator);
}

}  // namespace

at::Tensor MakeKernelTensor(onednn::Layer layer) {
  auto kernel = std::make_shared<Int8Kernel>(std::move(layer));
  const at::Tensor& weight = kernel->layer().weight;
  return at::detail::make_tensor<KernelTensorImpl>(c10::DispatchKeySet(c10::DispatchKey::CPU), weight.dtype(),
                                                   weight.device(), kernel, weight.sizes());
}

Int8Kernel* KernelIn(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  auto& impl = *tensor.unsafeGetTensorImpl();
  if (typeid(impl) != typeid(KernelTensorImpl)) return nullptr;
  return static_cast<KernelTensorImpl&>(impl).opaque_handle().get();
}

KernelTotals CountKernels(const std::vector<const Graph*>& graphs) {
  KernelTotals totals;
  absl::flat_hash_set<const Int8Kernel*> seen;
  for (const Graph* graph : graphs) {
    for (const auto& [id, tensor] : graph->constants) {
      const Int8Kernel* const kernel = KernelIn(tensor);
      if (kernel == nullptr || !seen.insert(kernel).second) continue;
      const onednn::KernelCounts counts = kernel->counts();
      ++totals.kernels;
      totals.counts.sizes += counts.sizes;
      totals.counts.made += counts.made;
      totals.counts.dropped += counts.dropped;
    }
  }
  return totals;
}

void RegisterKernelOperators() {
  auto* defs = new torch::Library(torch::Library::FRAGMENT, "frametap", std::nullopt, __FILE__, __LINE__);
  defs->def("qlinear(Tensor x, Tensor kernel) -> Tensor");
  defs->def("qconv2d(Tensor x, Tensor kernel) -> Tensor");
  defs->def("qconv2d_add(Tensor x, Tensor(a!) accumulator, Tensor kernel) -> Tensor(a!)");
  auto* cpu = new torch::Library(torch::Library::IMPL, "frametap", c10::DispatchKey::CPU, __FILE__, __LINE__);
  cpu->impl("qlinear", TORCH_FN(Run));
  cpu->impl("qconv2d", TORCH_FN(Run));
  cpu->impl("qconv2d_add", TORCH_FN(RunInto));
}

}  // namespace frametap::quant
