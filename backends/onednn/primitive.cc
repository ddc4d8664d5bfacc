#include "backends/onednn/primitive.h"

#include <cstring>

namespace frametap::onednn {
namespace {

MemoryDesc Desc(int rank, const dnnl_dims_t dims, dnnl_data_type_t type, dnnl_format_tag_t layout) {
  dnnl_memory_desc_t made = nullptr;
  Check(Api().memory_desc_create_with_tag(&made, rank, dims, type, layout), "describe memory");
  return MemoryDesc(made);
}

dnnl_data_type_t TypeOf(at::ScalarType type) {
  switch (type) {
    case at::kByte:
      return dnnl_u8;
    case at::kChar:
      return dnnl_s8;
    case at::kBFloat16:
      return dnnl_bf16;
    default:
      return dnnl_f32;
  }
}

// Weights as the primitives count their dimensions: (groups,) outputs, inputs, window. `is_plain`: as they lie in
// `layer.weight`; else oneDNN chooses.
MemoryDesc Weights(const Layer& layer, bool is_plain) {
  const at::IntArrayRef sizes = layer.weight.sizes();
  const dnnl_data_type_t type = !is_plain && layer.reads_bfloat16 ? dnnl_bf16 : TypeOf(layer.weight.scalar_type());
  if (!layer.is_convolution()) {
    const dnnl_dims_t dims{sizes[1], sizes[0]};
    return Desc(2, dims, type, is_plain ? dnnl_ba : dnnl_format_tag_any);
  }
  dnnl_dims_t dims{}, strides{};
  int rank = 0;
  const auto add = [&](int64_t size, int64_t stride) {
    dims[rank] = size;
    strides[rank++] = stride;
  };
  // Not the tensor's strides, which are arbitrary where a size is 1.
  int64_t second = 1;
  for (const int64_t size : sizes.slice(2)) second *= size;
  const int64_t first = sizes[1] * second;
  const int64_t outputs = layer.outputs() / layer.groups, inputs = layer.inputs() / layer.groups;
  if (layer.groups > 1) add(layer.groups, sizes[0] / layer.groups * first);
  add(outputs, layer.is_transposed ? second : first);
  add(inputs, layer.is_transposed ? first : second);
  int64_t step = second;
  for (const int64_t size : sizes.slice(2)) add(size, step /= size);
  if (!is_plain) return Desc(rank, dims, type, dnnl_format_tag_any);
  dnnl_memory_desc_t made = nullptr;
  Check(Api().memory_desc_create_with_strides(&made, rank, dims, type, strides), "describe memory");
  return MemoryDesc(made);
}

dnnl_alg_kind_t KindOf(Curve curve) {
  switch (curve) {
    case Curve::kRelu:
      return dnnl_eltwise_relu;
    case Curve::kClamp:
      return dnnl_eltwise_clip;
    case Curve::kHardswish:
      return dnnl_eltwise_hardswish;
    case Curve::kSwish:
      return dnnl_eltwise_swish;
    case Curve::kGelu:
      return dnnl_eltwise_gelu_erf;
    case Curve::kGeluTanh:
      return dnnl_eltwise_gelu_tanh;
    case Curve::kSigmoid:
      return dnnl_eltwise_logistic;
    case Curve::kHardsigmoid:
      return dnnl_eltwise_hardsigmoid;
    case Curve::kTanh:
      return dnnl_eltwise_tanh;
    case Curve::kLeakyRelu:
      return dnnl_eltwise_relu;
    case Curve::kNone:
      break;
  }
  return dnnl_alg_kind_undef;
}

// The two numbers that oneDNN takes for a curve.
std::array<float, 2> NumbersOf(const Layer& layer) {
  switch (layer.curve) {
    case Curve::kClamp:
      return {layer.low, layer.high};
    case Curve::kHardswish:
    case Curve::kHardsigmoid:
      return {1.0f / 6.0f, 0.5f};
    case Curve::kSwish:
      return {1, 0};
    case Curve::kLeakyRelu:
      return {layer.low, 0};
    default:
      return {0, 0};
  }
}

PostOps After(const Layer& layer, const_dnnl_memory_desc_t result) {
  dnnl_post_ops_t made = nullptr;
  Check(Api().post_ops_create(&made), "make post ops");
  PostOps ops(made);
  if (layer.accumulator) {
    Check(
        Api().post_ops_append_sum(made, layer.accumulator->scale, layer.accumulator->zero_point, dnnl_data_type_undef),
        "append a sum");
  }
  if (layer.has_addend) Check(Api().post_ops_append_binary(made, dnnl_binary_add, result), "append an addend");
  if (layer.curve != Curve::kNone) {
    const auto [alpha, beta] = NumbersOf(layer);
    Check(Api().post_ops_append_eltwise(made, KindOf(layer.curve), alpha, beta), "append a curve");
  }
  return ops;
}

Attributes AttributesOf(const Layer& layer, const_dnnl_memory_desc_t result) {
  dnnl_primitive_attr_t made = nullptr;
  Check(Api().primitive_attr_create(&made), "make attributes");
  Attributes attributes(made);
  Check(Api().primitive_attr_set_scratchpad_mode(made, dnnl_scratchpad_mode_user), "set the scratchpad");
  const PostOps ops = After(layer, result);
  Check(Api().primitive_attr_set_post_ops(made, ops.get()), "set post ops");
  if (layer.is_float()) {
    const dnnl_fpmath_mode_t mode = layer.multiplies_bfloat16 ? dnnl_fpmath_mode_bf16 : dnnl_fpmath_mode_strict;
    Check(Api().primitive_attr_set_fpmath_mode(made, mode), "set the type of products");
    return attributes;
  }
  const int each_output = !layer.is_convolution() ? 1 << 1 : layer.groups == 1 ? 1 : 3;
  if (layer.x.scale != 1) Check(Api().primitive_attr_set_scales_mask(made, DNNL_ARG_SRC, 0), "set a scale");
  Check(Api().primitive_attr_set_scales_mask(made, DNNL_ARG_WEIGHTS, each_output), "set a scale");
  if (layer.x.zero_point != 0) {
    Check(Api().primitive_attr_set_zero_points_mask(made, DNNL_ARG_SRC, 0), "set a zero point");
  }
  if (layer.out) {
    if (layer.out->scale != 1) Check(Api().primitive_attr_set_scales_mask(made, DNNL_ARG_DST, 0), "set a scale");
    if (layer.out->zero_point != 0) {
      Check(Api().primitive_attr_set_zero_points_mask(made, DNNL_ARG_DST, 0), "set a zero point");
    }
  }
  return attributes;
}

MemoryDesc Activation(const Layer& layer, const Extent& extent, dnnl_data_type_t type) {
  dnnl_dims_t dims{};
  const int rank = static_cast<int>(layer.weight.dim());
  for (int i = 0; i < rank; ++i) dims[i] = extent.sizes[static_cast<size_t>(i)];
  constexpr std::array<dnnl_format_tag_t, 4> kLayouts{dnnl_ab, dnnl_nwc, dnnl_nhwc, dnnl_ndhwc};
  return Desc(rank, dims, type, kLayouts[static_cast<size_t>(rank - 2)]);
}

// oneDNN 3.2's AMX kernels of transposed convolutions crash for some sizes when they are made. The next kernel in its
// list is for VNNI.
void PassBrokenKernelsBy(dnnl_primitive_desc_t desc) {
  for (;;) {
    const char* kernel = nullptr;
    Check(Api().primitive_desc_query(desc, dnnl_query_impl_info_str, 0, static_cast<void*>(&kernel)), "name a kernel");
    if (std::strstr(kernel, "amx") == nullptr) return;
    Check(Api().primitive_desc_next_impl(desc), "make a transposed convolution");
  }
}

}  // namespace

MemoryDesc PlainWeights(const Layer& layer) { return Weights(layer, true); }

MemoryDesc BiasOf(const Layer& layer) {
  if (!layer.bias.defined()) return nullptr;
  const dnnl_dims_t row{1, layer.outputs()};
  const dnnl_dims_t vector{layer.outputs()};
  return layer.is_convolution() ? Desc(1, vector, dnnl_f32, dnnl_a) : Desc(2, row, dnnl_f32, dnnl_ab);
}

PrimitiveDesc Describe(const Layer& layer, const Extent& x) {
  const MemoryDesc from = Activation(layer, x, TypeOf(layer.input_type()));
  const MemoryDesc to = Activation(layer, ResultOf(layer, x), TypeOf(layer.result_type()));
  const Attributes attributes = AttributesOf(layer, to.get());
  const MemoryDesc weights = Weights(layer, false);
  const MemoryDesc bias = BiasOf(layer);
  dnnl_primitive_desc_t made = nullptr;
  if (!layer.is_convolution()) {
    Check(Api().matmul_primitive_desc_create(&made, Cpu(), from.get(), weights.get(), bias.get(), to.get(),
                                             attributes.get()),
          "make a linear layer");
    return PrimitiveDesc(made);
  }
  dnnl_dims_t stride{}, gaps{}, padding{}, end{};
  const Extent result = ResultOf(layer, x);
  for (size_t i = 0; i < layer.axes(); ++i) {
    stride[i] = layer.stride[i];
    gaps[i] = layer.dilation[i] - 1;
    padding[i] = layer.padding[i];
    // oneDNN takes only as much padding at the end as some window reads.
    const int64_t read = (result.sizes[2 + i] - 1) * layer.stride[i] + layer.window(i);
    end[i] =
        layer.is_transposed ? layer.padding[i] - layer.output_padding[i] : read - x.sizes[2 + i] - layer.padding[i];
  }
  if (layer.is_transposed) {
    Check(Api().deconvolution_forward_primitive_desc_create(
              &made, Cpu(), dnnl_forward_inference, dnnl_deconvolution_direct, from.get(), weights.get(), bias.get(),
              to.get(), stride, gaps, padding, end, attributes.get()),
          "make a transposed convolution");
    PrimitiveDesc desc(made);
    PassBrokenKernelsBy(desc.get());
    return desc;
  }
  Check(Api().convolution_forward_primitive_desc_create(&made, Cpu(), dnnl_forward_inference, dnnl_convolution_direct,
                                                        from.get(), weights.get(), bias.get(), to.get(), stride, gaps,
                                                        padding, end, attributes.get()),
        "make a convolution");
  return PrimitiveDesc(made);
}

}  // namespace frametap::onednn
