#include "backends/onednn/layer_kernel.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <c10/util/MaybeOwned.h>

#include <algorithm>

#include "backends/onednn/kept_memory.h"
#include "backends/onednn/primitive.h"
#include "backends/onednn/scratchpad.h"
#include "backends/onednn/tiles.h"
#include "backends/onednn/wide_linear.h"

namespace frametap::onednn {
namespace {

Memory Vector(int64_t count, dnnl_data_type_t type, void* data) {
  const dnnl_dims_t dims{count};
  dnnl_memory_desc_t desc = nullptr;
  Check(Api().memory_desc_create_with_tag(&desc, 1, dims, type, dnnl_a), "describe memory");
  const MemoryDesc owned(desc);
  return MakeMemory(desc, data);
}

Layer Ready(Layer layer) {
  TORCH_CHECK((layer.weight.scalar_type() == at::kChar || layer.is_float()) && layer.weight.dim() >= 2 &&
                  layer.weight.dim() <= 5,
              "kernel: expected int8 or float32 weights of two to five dimensions, got ", layer.weight.scalar_type(),
              " of ", layer.weight.sizes());
  TORCH_CHECK(layer.weight.numel() > 0, "kernel: the weights are empty: ", layer.weight.sizes());
  TORCH_CHECK(layer.is_float() || (layer.scales.scalar_type() == at::kFloat && layer.scales.numel() == layer.outputs()),
              "kernel: expected one float32 scale for each of ", layer.outputs(), " outputs");
  TORCH_CHECK(
      !layer.bias.defined() || (layer.bias.scalar_type() == at::kFloat && layer.bias.numel() == layer.outputs()),
      "kernel: expected one float32 bias for each of ", layer.outputs(), " outputs");
  TORCH_CHECK(layer.groups > 0 && layer.outputs() % layer.groups == 0 && layer.inputs() % layer.groups == 0,
              "kernel: ", layer.inputs(), " inputs and ", layer.outputs(), " outputs in ", layer.groups, " groups");
  for (size_t i = 0; i < layer.padding.size(); ++i) {
    // oneDNN 3.2 takes more, and gives wrong results for three axes.
    TORCH_CHECK(layer.output_padding[i] <= layer.padding[i], "kernel: an output padding of ", layer.output_padding[i],
                " with a padding of ", layer.padding[i]);
  }
  TORCH_CHECK((!layer.reads_bfloat16 || layer.multiplies_bfloat16) &&
                  (!layer.gives_bfloat16 || layer.reads_bfloat16 || !layer.is_float()),
              "kernel: tensors of bfloat16 need products of it");
  TORCH_CHECK(!layer.gives_bfloat16 || !layer.out, "kernel: a result cannot be both of bytes and of bfloat16");
  TORCH_CHECK(!layer.accumulator || layer.out, "kernel: a sum with bytes is stored in bytes");
  if (!layer.is_float()) {
    TORCH_CHECK(!layer.multiplies_bfloat16, "kernel: only layers on floats multiply bfloat16");
    TORCH_CHECK(!layer.has_addend || (!layer.out && !layer.is_convolution()),
                "kernel: on bytes, only a linear layer with a result of floats takes an addend");
    layer = Folded(std::move(layer));
    layer.scales = layer.scales.contiguous();
  }
  layer.weight = layer.weight.contiguous();
  if (layer.bias.defined()) layer.bias = layer.bias.contiguous();
  return layer;
}

}  // namespace

// Arguments that all runs share.
struct LayerKernel::Operands {
  explicit Operands(const Layer& layer)
      : numbers{layer.x.scale, layer.out ? layer.out->scale : 1},
        zeros{layer.x.zero_point, layer.out ? layer.out->zero_point : 0} {
    const auto add = [&](int argument, Memory memory) {
      arguments.push_back({argument, memory.get()});
      owned.push_back(std::move(memory));
    };
    if (const MemoryDesc bias = BiasOf(layer)) add(DNNL_ARG_BIAS, MakeMemory(bias.get(), layer.bias.data_ptr()));
    if (layer.is_float()) return;
    if (layer.x.scale != 1) add(DNNL_ARG_ATTR_SCALES | DNNL_ARG_SRC, Vector(1, dnnl_f32, &numbers[0]));
    add(DNNL_ARG_ATTR_SCALES | DNNL_ARG_WEIGHTS, Vector(layer.outputs(), dnnl_f32, layer.scales.data_ptr()));
    if (layer.x.zero_point != 0) add(DNNL_ARG_ATTR_ZERO_POINTS | DNNL_ARG_SRC, Vector(1, dnnl_s32, &zeros[0]));
    if (layer.out && layer.out->scale != 1) {
      add(DNNL_ARG_ATTR_SCALES | DNNL_ARG_DST, Vector(1, dnnl_f32, &numbers[1]));
    }
    if (layer.out && layer.out->zero_point != 0) {
      add(DNNL_ARG_ATTR_ZERO_POINTS | DNNL_ARG_DST, Vector(1, dnnl_s32, &zeros[1]));
    }
  }

  std::array<float, 2> numbers;
  std::array<int32_t, 2> zeros;
  std::vector<dnnl_exec_arg_t> arguments;
  std::vector<Memory> owned;
};

// The state of one run alone (K3).
struct LayerKernel::Binding {
  Memory x, addend, result, scratchpad;  // `addend`: null if the layer takes none
  std::vector<dnnl_exec_arg_t> arguments;
};

struct LayerKernel::Sized {
  Extent extent;
  int threads = 0;
  PrimitiveDesc desc;
  Primitive primitive;
  std::shared_ptr<dnnl_memory> weights;
  size_t scratchpad_bytes = 0;
  std::vector<std::unique_ptr<Binding>> idle;  // under mutex_
};

LayerKernel::LayerKernel(Layer layer)
    : layer_(Ready(std::move(layer))),
      operands_(std::make_unique<Operands>(layer_)),
      pixels_(PaysByPixel(layer_) ? std::make_unique<LayerKernel>(LayerOfPixels(layer_)) : nullptr) {}

LayerKernel::~LayerKernel() = default;

KernelCounts LayerKernel::counts() const {
  if (pixels_) return pixels_->counts();
  const std::lock_guard<std::mutex> lock(mutex_);
  return {static_cast<int64_t>(sized_.size()), made_, dropped_};
}

Extent LayerKernel::ExtentOf(at::IntArrayRef sizes) const {
  if (!layer_.is_convolution()) {
    TORCH_CHECK(!sizes.empty() && sizes.back() == layer_.inputs(), "linear: expected ", layer_.inputs(),
                " features in the last dimension, got sizes ", sizes);
    return {{c10::multiply_integers(sizes.begin(), sizes.end() - 1), layer_.inputs()}};
  }
  const size_t rank = 2 + layer_.axes();
  const bool is_one = sizes.size() + 1 == rank;
  TORCH_CHECK((is_one || sizes.size() == rank) && sizes[is_one ? 0 : 1] == layer_.inputs(),
              "convolution: expected images of ", layer_.inputs(), " channels, got sizes ", sizes);
  Extent extent{{1}};
  std::copy(sizes.begin(), sizes.end(), extent.sizes.begin() + (is_one ? 1 : 0));
  return extent;
}

namespace {

// Rows, or pixels of all images.
int64_t PixelsOf(const Extent& extent) {
  int64_t pixels = extent.sizes[0];
  for (size_t axis = 2; axis < extent.sizes.size() && extent.sizes[axis] > 0; ++axis) pixels *= extent.sizes[axis];
  return pixels;
}

}  // namespace

// K6
const WideLinear* LayerKernel::WideFor(const Extent& extent) {
  if (!WideLinear::Takes(layer_, PixelsOf(extent))) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!wide_) wide_ = std::make_unique<const WideLinear>(layer_);
  return wide_.get();
}

// K2
std::shared_ptr<dnnl_memory> LayerKernel::Packed(const dnnl_memory_desc* wanted) {
  const auto is_so = [&](dnnl_memory_t memory) {
    const_dnnl_memory_desc_t desc = nullptr;
    return Api().memory_get_memory_desc(memory, &desc) == dnnl_success && Api().memory_desc_equal(desc, wanted) != 0;
  };
  std::erase_if(packed_, [](const auto& kept) { return kept.expired(); });
  for (const auto& kept : packed_) {
    if (std::shared_ptr<dnnl_memory> memory = kept.lock(); memory && is_so(memory.get())) return memory;
  }
  const MemoryDesc plain = PlainWeights(layer_);
  Memory from = MakeMemory(plain.get(), layer_.weight.data_ptr());
  std::shared_ptr<void> bytes;
  if (!is_so(from.get())) {
    bytes = KeptMemory(Api().memory_desc_get_size(wanted));
    Memory to = MakeMemory(wanted, bytes.get());
    dnnl_primitive_desc_t desc = nullptr;
    Check(Api().reorder_primitive_desc_create(&desc, plain.get(), Cpu(), wanted, Cpu(), nullptr), "pack weights");
    const PrimitiveDesc owned(desc);
    dnnl_primitive_t reorder = nullptr;
    Check(Api().primitive_create(&reorder, desc), "pack weights");
    const Primitive pack(reorder);
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_FROM, from.get()}, {DNNL_ARG_TO, to.get()}};
    Check(Api().primitive_execute(reorder, StreamOfThread(), 2, arguments), "pack weights");
    from = std::move(to);
  }
  std::shared_ptr<dnnl_memory> packed(from.release(), [bytes](dnnl_memory* memory) {
    Memory::deleter_type()(memory);  // `bytes` live as long
  });
  packed_.push_back(packed);
  return packed;
}

std::shared_ptr<LayerKernel::Sized> LayerKernel::Make(const Extent& extent, int threads) {
  auto sized = std::make_shared<Sized>();
  sized->extent = extent;
  sized->threads = threads;
  sized->desc = Describe(layer_, extent);
  dnnl_primitive_t made = nullptr;
  Check(Api().primitive_create(&made, sized->desc.get()), "make a kernel");
  sized->primitive.reset(made);
  sized->weights = Packed(Api().primitive_desc_query_md(sized->desc.get(), dnnl_query_weights_md, 0));
  sized->scratchpad_bytes =
      Api().memory_desc_get_size(Api().primitive_desc_query_md(sized->desc.get(), dnnl_query_scratchpad_md, 0));
  ++made_;
  return sized;
}

// K1
std::shared_ptr<LayerKernel::Sized> LayerKernel::Find(const Extent& extent, int threads) {
  const auto found = std::find_if(sized_.begin(), sized_.end(), [&](const std::shared_ptr<Sized>& s) {
    return s->extent == extent && s->threads == threads;
  });
  if (found != sized_.end()) {
    std::rotate(sized_.begin(), found, found + 1);
    return sized_.front();
  }
  std::shared_ptr<Sized> made = Make(extent, threads);
  if (sized_.size() == kMaxSizes) {
    sized_.pop_back();
    ++dropped_;
  }
  sized_.insert(sized_.begin(), made);
  return made;
}

std::unique_ptr<LayerKernel::Binding> LayerKernel::Bind(const Sized& sized) const {
  const auto unbound = [&](dnnl_query_t what) {
    return MakeMemory(Api().primitive_desc_query_md(sized.desc.get(), what, 0), DNNL_MEMORY_NONE);
  };
  auto binding = std::make_unique<Binding>();
  binding->x = unbound(dnnl_query_src_md);
  binding->result = unbound(dnnl_query_dst_md);
  binding->scratchpad = unbound(dnnl_query_scratchpad_md);
  binding->arguments = operands_->arguments;
  if (layer_.has_addend) {
    binding->addend = unbound(dnnl_query_dst_md);
    binding->arguments.push_back({DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, binding->addend.get()});
  }
  binding->arguments.push_back({DNNL_ARG_SRC, binding->x.get()});
  binding->arguments.push_back({DNNL_ARG_WEIGHTS, sized.weights.get()});
  binding->arguments.push_back({DNNL_ARG_DST, binding->result.get()});
  if (sized.scratchpad_bytes > 0) binding->arguments.push_back({DNNL_ARG_SCRATCHPAD, binding->scratchpad.get()});
  return binding;
}

namespace {

// The results of so many bytes stay in the cache until they are placed.
constexpr int64_t kMostBytesOfPixels = int64_t{1} << 20;

// The images of K5, cut along their first axis. The results of a slab lie beside each other.
struct Slabs {
  int64_t count, pixels;  // `pixels`: of a slab
  int64_t at_once;
};

Slabs SlabsOf(const Layer& layer, const LayerKernel& pixels, const Extent& x) {
  Slabs slabs{x.sizes[0] * x.sizes[2], 1, 1};
  for (size_t i = 1; i < layer.axes(); ++i) slabs.pixels *= x.sizes[2 + i];
  const auto bytes = static_cast<int64_t>(c10::elementSize(layer.result_type()));
  slabs.at_once =
      std::clamp<int64_t>(kMostBytesOfPixels / (slabs.pixels * pixels.layer().outputs() * bytes), 1, slabs.count);
  return slabs;
}

}  // namespace

// A run of K5.
void LayerKernel::ExecutePixels(const Extent& extent, const void* x, void* result) {
  const Slabs slabs = SlabsOf(layer_, *pixels_, extent);
  const int64_t row_of_result =
      pixels_->layer().outputs() * static_cast<int64_t>(c10::elementSize(layer_.result_type()));
  const int64_t row = layer_.inputs() * static_cast<int64_t>(c10::elementSize(layer_.input_type()));
  void* const rows = Scratchpad<Layer>::OfThread(static_cast<size_t>(slabs.at_once * slabs.pixels * row_of_result));
  Extent images = extent;
  images.sizes[2] = 1;
  for (int64_t i = 0; i < slabs.count; i += slabs.at_once) {
    images.sizes[0] = std::min(slabs.at_once, slabs.count - i);
    const int64_t first = i * slabs.pixels;
    pixels_->Execute({{images.sizes[0] * slabs.pixels, layer_.inputs()}}, static_cast<const char*>(x) + first * row,
                     nullptr, rows);
    PlaceTiles(layer_, images, rows, static_cast<char*>(result) + first * row_of_result);
  }
}

void LayerKernel::Execute(const Extent& extent, const void* x, const void* addend, void* result) {
  if (pixels_) return ExecutePixels(extent, x, result);
  if (const WideLinear* wide = WideFor(extent)) {
    return wide->Run(layer_, static_cast<const float*>(x), PixelsOf(extent), static_cast<const float*>(addend),
                     static_cast<float*>(result));
  }
  const int threads = at::get_num_threads();
  std::shared_ptr<Sized> sized;
  std::unique_ptr<Binding> binding;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    sized = Find(extent, threads);
    if (!sized->idle.empty()) {
      binding = std::move(sized->idle.back());
      sized->idle.pop_back();
    }
  }
  if (!binding) binding = Bind(*sized);
  Check(Api().memory_set_data_handle(binding->x.get(), const_cast<void*>(x)), "take its input");
  Check(Api().memory_set_data_handle(binding->result.get(), result), "take its result");
  if (binding->addend) {
    Check(Api().memory_set_data_handle(binding->addend.get(), const_cast<void*>(addend)), "take its addend");
  }
  if (sized->scratchpad_bytes > 0) {
    void* const scratchpad = Scratchpad<LayerKernel>::OfThread(sized->scratchpad_bytes);
    Check(Api().memory_set_data_handle(binding->scratchpad.get(), scratchpad), "take its scratchpad");
  }
  Check(Api().primitive_execute(sized->primitive.get(), StreamOfThread(), static_cast<int>(binding->arguments.size()),
                                binding->arguments.data()),
        "run a kernel");
  const std::lock_guard<std::mutex> lock(mutex_);
  sized->idle.push_back(std::move(binding));
}

void LayerKernel::Prepare(at::IntArrayRef sizes) {
  const Extent extent = ExtentOf(sizes);
  if (c10::multiply_integers(sizes) == 0) return;
  if (pixels_) {
    const Slabs slabs = SlabsOf(layer_, *pixels_, extent);
    return pixels_->Prepare({slabs.at_once * slabs.pixels, layer_.inputs()});
  }
  if (WideFor(extent) != nullptr) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  Find(extent, at::get_num_threads());
}

namespace {

void CheckInput(at::ScalarType type, const at::Tensor& x, const char* what) {
  TORCH_CHECK(x.scalar_type() == type && x.device().is_cpu(), "kernel: expected ", what, " of ", type,
              " on the CPU, got ", x.scalar_type(), " on ", x.device());
}

// The images pixel by pixel. torch has a name for this layout with two and with three axes.
at::Tensor AsImages(const at::Tensor& x, size_t axes) {
  const at::Tensor images = x.dim() == static_cast<int64_t>(axes) + 1 ? x.unsqueeze(0) : x;
  if (axes == 1) return images.transpose(1, 2).contiguous().transpose(1, 2);
  return images.contiguous(axes == 2 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::ChannelsLast3d);
}

at::Tensor EmptyImages(const Extent& extent, size_t axes, at::ScalarType type) {
  const at::IntArrayRef sizes = at::IntArrayRef(extent.sizes).slice(0, 2 + axes);
  if (axes == 1) return at::Tensor(at::detail::empty_cpu({sizes[0], sizes[2], sizes[1]}, type)).transpose(1, 2);
  return at::detail::empty_cpu(sizes, type, false,
                               axes == 2 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::ChannelsLast3d);
}

void CheckAddend(const at::Tensor* addend, at::IntArrayRef result) {
  TORCH_CHECK(addend == nullptr || addend->sizes() == result, "kernel: the addend has sizes ", addend->sizes(),
              ", the result ", result);
}

const void* DataOf(const at::Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr() : nullptr; }

}  // namespace

at::Tensor LayerKernel::Run(const at::Tensor& x, const at::Tensor* addend) {
  TORCH_CHECK(!layer_.accumulator, "kernel: this one adds to an accumulator");
  TORCH_CHECK(layer_.has_addend == (addend != nullptr), "kernel: this one takes ", layer_.has_addend ? "an" : "no",
              " addend");
  const at::ScalarType type = layer_.result_type();
  CheckInput(layer_.input_type(), x, "an input");
  if (addend != nullptr) CheckInput(type, *addend, "an addend");
  const Extent extent = ExtentOf(x.sizes());
  if (!layer_.is_convolution()) {
    c10::DimVector sizes(x.sizes().begin(), x.sizes().end());
    sizes.back() = layer_.outputs();
    at::Tensor result = at::detail::empty_cpu(sizes, type);
    CheckAddend(addend, sizes);
    if (result.numel() == 0) return result;
    const c10::MaybeOwned<at::Tensor> rows = x.expect_contiguous();
    const at::Tensor added = addend != nullptr ? addend->contiguous() : at::Tensor();
    Execute(extent, rows->const_data_ptr(), DataOf(added), result.mutable_data_ptr());
    return result;
  }
  at::Tensor result = EmptyImages(ResultOf(layer_, extent), layer_.axes(), type);
  const bool is_one = x.dim() < layer_.weight.dim();
  CheckAddend(addend, result.sizes().slice(is_one ? 1 : 0));
  if (result.numel() != 0) {
    const at::Tensor images = AsImages(x, layer_.axes());
    const at::Tensor added = addend != nullptr ? AsImages(*addend, layer_.axes()) : at::Tensor();
    Execute(extent, images.const_data_ptr(), DataOf(added), result.mutable_data_ptr());
  }
  return is_one ? result.squeeze(0) : result;
}

void LayerKernel::RunRows(const void* x, int64_t rows, void* result) {
  TORCH_CHECK(!layer_.is_convolution() && !layer_.has_addend, "kernel: expected a linear layer without an addend");
  if (rows > 0) Execute({{rows, layer_.inputs()}}, x, nullptr, result);
}

at::Tensor LayerKernel::RunInto(const at::Tensor& x, const at::Tensor& accumulator) {
  TORCH_CHECK(layer_.accumulator && layer_.is_convolution(), "kernel: this one adds to no accumulator");
  CheckInput(layer_.input_type(), x, "an input");
  CheckInput(layer_.result_type(), accumulator, "an accumulator");
  const Extent extent = ExtentOf(x.sizes());
  const Extent result = ResultOf(layer_, extent);
  const bool is_one = x.dim() < layer_.weight.dim();
  const at::IntArrayRef sizes = at::IntArrayRef(result.sizes).slice(is_one ? 1 : 0, layer_.axes() + (is_one ? 1 : 2));
  TORCH_CHECK(accumulator.sizes() == sizes, "kernel: the accumulator has sizes ", accumulator.sizes(), ", the result ",
              sizes);
  const at::Tensor into = AsImages(accumulator, layer_.axes());
  if (into.numel() != 0) {
    const at::Tensor images = AsImages(x, layer_.axes());
    Execute(extent, images.const_data_ptr(), nullptr, into.mutable_data_ptr());
  }
  if (into.is_alias_of(accumulator)) return accumulator;
  return is_one ? into.squeeze(0) : into;
}

}  // namespace frametap::onednn
