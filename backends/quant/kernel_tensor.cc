#include "backends/quant/kernel_tensor.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/OpaqueTensorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "backends/quant/buffer.h"
#include "backends/quant/depthwise.h"
#include "backends/quant/params.h"
#include "backends/quant/small_linear.h"
#include "backends/quant/wide_loop.h"

namespace frametap::quant {
namespace {

using onednn::LayerKernel;

// A layer, and a second form of it for few rows or for images of bfloat16. Or the products of a dynamic layer, and the rest
// of it.
struct Kernel {
  explicit Kernel(onednn::Layer layer) : onednn(std::move(layer)) {
    if (SmallLinear::Takes(onednn.layer())) small.emplace(onednn.layer());
    if (Depthwise::Takes(onednn.layer())) depthwise.emplace(onednn.layer());
  }
  Kernel(const onednn::Layer& layer, const DynamicLinear::Inputs& inputs)
      : onednn(DynamicLinear::ProductsOf(layer)), dynamic(DynamicLinear(layer, inputs)) {}

  LayerKernel onednn;
  std::optional<SmallLinear> small;
  std::optional<Depthwise> depthwise;
  std::optional<DynamicLinear> dynamic;
};

using KernelTensorImpl = at::OpaqueTensorImpl<std::shared_ptr<Kernel>>;

Kernel* FindKernel(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  auto& impl = *tensor.unsafeGetTensorImpl();
  if (typeid(impl) != typeid(KernelTensorImpl)) return nullptr;
  return static_cast<KernelTensorImpl&>(impl).opaque_handle().get();
}

Kernel& KernelOrThrow(const at::Tensor& tensor) {
  Kernel* const kernel = FindKernel(tensor);
  TORCH_CHECK(kernel != nullptr, "expected a kernel, which only lowering makes, not a tensor of sizes ",
              tensor.sizes());
  return *kernel;
}

at::Tensor RunLinear(const at::Tensor& x, const at::Tensor& kernel) {
  Kernel& k = KernelOrThrow(kernel);
  const onednn::Layer& layer = k.onednn.layer();
  const bool is_small = k.small && x.dim() > 0 && x.size(-1) == layer.inputs() && x.scalar_type() == at::kByte &&
                        x.is_contiguous() && x.device().is_cpu() && k.small->TakesRows(x.numel() / layer.inputs());
  if (!is_small) return k.onednn.Run(x);
  c10::DimVector sizes(x.sizes().begin(), x.sizes().end());
  sizes.back() = layer.outputs();
  at::Tensor result = at::detail::empty_cpu(sizes, layer.out ? at::kByte : at::kFloat);
  k.small->Run(x.const_data_ptr<uint8_t>(), x.numel() / layer.inputs(), result.mutable_data_ptr());
  return result;
}

at::Tensor RunConvolution(const at::Tensor& x, const at::Tensor& kernel) { return KernelOrThrow(kernel).onednn.Run(x); }

at::Tensor RunInto(const at::Tensor& x, at::Tensor accumulator, const at::Tensor& kernel) {
  return KernelOrThrow(kernel).onednn.RunInto(x, accumulator);
}

at::Tensor RunPacked(const at::Tensor& x, const at::Tensor& kernel, const std::optional<at::Tensor>& addend) {
  Kernel& k = KernelOrThrow(kernel);
  if (k.depthwise && k.depthwise->TakesImages(x)) return k.depthwise->Run(x);
  return k.onednn.Run(x, addend ? &*addend : nullptr);
}

// An addend that had the sizes of the result may be broadcast in a later call, or the result may.
at::Tensor RunPackedLinear(const at::Tensor& x, const at::Tensor& kernel, const std::optional<at::Tensor>& addend) {
  const onednn::Layer& layer = KernelOrThrow(kernel).onednn.layer();
  if (!addend || x.dim() == 0 || addend->scalar_type() != layer.result_type()) return RunPacked(x, kernel, addend);
  c10::DimVector sizes(x.sizes().begin(), x.sizes().end());
  sizes.back() = layer.outputs();
  if (addend->sizes() == sizes) return RunPacked(x, kernel, addend);
  if (at::is_expandable_to(addend->sizes(), sizes)) return RunPacked(x, kernel, addend->expand(sizes));
  if (layer.curve != onednn::Curve::kNone) return RunPacked(x, kernel, addend);  // raises
  return RunPacked(x, kernel, at::zeros(sizes, addend->options())).add(*addend);
}

at::Tensor RunDynamic(const at::Tensor& x, const at::Tensor& kernel) {
  Kernel& k = KernelOrThrow(kernel);
  TORCH_CHECK(k.dynamic, "dynamic_linear: expected the kernel of a dynamic layer");
  return k.dynamic->Run(k.onednn, x);
}

// The numbers of a layer.
std::string TextOf(const onednn::Layer& layer) {
  const auto text = [](const onednn::Quantization& q) {
    return absl::StrCat(std::bit_cast<uint32_t>(q.scale), "+", q.zero_point);
  };
  return absl::StrCat("kernel ", text(layer.x), " ", layer.out ? text(*layer.out) : "-", " ",
                      layer.accumulator ? text(*layer.accumulator) : "-", " ", layer.has_addend, " ",
                      layer.multiplies_bfloat16, layer.reads_bfloat16, layer.gives_bfloat16, " ",
                      static_cast<int>(layer.curve), " ", std::bit_cast<uint32_t>(layer.low), " ",
                      std::bit_cast<uint32_t>(layer.high), " ", absl::StrJoin(layer.stride, ","), " ",
                      absl::StrJoin(layer.padding, ","), " ", absl::StrJoin(layer.output_padding, ","), " ",
                      absl::StrJoin(layer.dilation, ","), " ", layer.groups, layer.is_transposed ? " transposed" : "");
}

}  // namespace

static at::Tensor TensorOf(std::shared_ptr<Kernel> kernel) {
  const at::Tensor& weight = kernel->onednn.layer().weight;
  return at::detail::make_tensor<KernelTensorImpl>(c10::DispatchKeySet(c10::DispatchKey::CPU), weight.dtype(),
                                                   weight.device(), kernel, weight.sizes());
}

at::Tensor MakeKernelTensor(onednn::Layer layer) { return TensorOf(std::make_shared<Kernel>(std::move(layer))); }

static void PrepareFor(const at::Tensor& kernel, c10::IntArrayRef x) {
  if (std::all_of(x.begin(), x.end(), [](int64_t size) { return size > 0; })) KernelIn(kernel)->Prepare(x);
}

at::Tensor FrozenDynamicKernel(FrozenWeights* frozen, const onednn::Layer& layer, const DynamicLinear::Inputs& inputs,
                               c10::IntArrayRef x) {
  const FrozenWeights::Tensors from{layer.weight, layer.scales, layer.bias};
  const std::string what = absl::StrCat("dynamic ", inputs.bits, " ", static_cast<int>(inputs.share), " ",
                                        std::bit_cast<uint32_t>(inputs.least_scale));
  const auto made = FrozenWeights::Of(frozen, what, from, [&] {
    onednn::Layer bytes = layer;
    if (layer.is_float()) {
      const QuantizedWeight w = QuantizeWeight(layer.weight, 0);
      bytes.weight = w.bytes;
      bytes.scales = w.scales;
    }
    return FrozenWeights::Tensors{TensorOf(std::make_shared<Kernel>(bytes, inputs))};
  });
  at::DimVector sizes(x.begin(), x.end());
  const int64_t rows = x.empty() ? 0 : c10::multiply_integers(x.slice(0, x.size() - 1));
  if (!x.empty() && HasTwoBytes(inputs.bits, rows)) sizes = {2 * rows, x.back()};
  PrepareFor(made[0], sizes);
  return made[0];
}

at::Tensor FrozenKernel(FrozenWeights* frozen, const onednn::Layer& layer, c10::IntArrayRef x,
                        absl::FunctionRef<onednn::Layer()> make) {
  const auto made = FrozenWeights::Of(frozen, TextOf(layer), {layer.weight, layer.scales, layer.bias},
                                      [&] { return FrozenWeights::Tensors{MakeKernelTensor(make())}; });
  PrepareFor(made[0], x);
  return made[0];
}

FRAMETAP_WIDE_LOOP
static void ToHalves(const float* __restrict from, c10::BFloat16* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = ToBfloat16(from[i]);
}

void RunFloatRows(const at::Tensor& kernel, const float* x, int64_t rows, float* y) {
  Kernel& k = KernelOrThrow(kernel);
  if (k.dynamic) return k.dynamic->RunRows(k.onednn, x, rows, y);
  if (!k.onednn.layer().reads_bfloat16) return k.onednn.RunRows(x, rows, y);
  const int64_t n = rows * k.onednn.layer().inputs();
  const Buffer<c10::BFloat16, Kernel> halves(n);
  ToHalves(x, halves.data(), n);
  k.onednn.RunRows(halves.data(), rows, y);
}

LayerKernel* KernelIn(const at::Tensor& tensor) {
  Kernel* const kernel = FindKernel(tensor);
  return kernel == nullptr ? nullptr : &kernel->onednn;
}

KernelTotals CountKernels(const std::vector<const Graph*>& graphs) {
  KernelTotals totals;
  absl::flat_hash_set<const LayerKernel*> seen;
  for (const Graph* graph : graphs) {
    for (const auto& [id, tensor] : graph->constants) {
      const LayerKernel* const kernel = KernelIn(tensor);
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
  defs->def("qconv(Tensor x, Tensor kernel) -> Tensor");
  defs->def("qconv_add(Tensor x, Tensor(a!) accumulator, Tensor kernel) -> Tensor(a!)");
  defs->def("packed_linear(Tensor x, Tensor kernel, Tensor? addend=None) -> Tensor");
  defs->def("packed_conv(Tensor x, Tensor kernel, Tensor? addend=None) -> Tensor");
  defs->def("dynamic_linear(Tensor x, Tensor kernel) -> Tensor");
  auto* cpu = new torch::Library(torch::Library::IMPL, "frametap", c10::DispatchKey::CPU, __FILE__, __LINE__);
  cpu->impl("qlinear", TORCH_FN(RunLinear));
  cpu->impl("qconv", TORCH_FN(RunConvolution));
  cpu->impl("qconv_add", TORCH_FN(RunInto));
  cpu->impl("packed_linear", TORCH_FN(RunPackedLinear));
  cpu->impl("dynamic_linear", TORCH_FN(RunDynamic));
  cpu->impl("packed_conv", TORCH_FN(RunPacked));
}

}  // namespace frametap::quant
