#include "backends/quant/operators.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>
#include <string>

#include "backends/quant/attention_ops.h"
#include "backends/quant/concatenate.h"
#include "backends/quant/decomposed_operators.h"
#include "backends/quant/dynamic_linear.h"
#include "backends/quant/finite_checks.h"
#include "backends/quant/kernel_tensor.h"
#include "backends/quant/layer_norm.h"
#include "backends/quant/layouts.h"
#include "backends/quant/op_table.h"
#include "backends/quant/pixels.h"
#include "backends/quant/planes.h"
#include "backends/quant/pointwise.h"
#include "backends/quant/pools.h"
#include "backends/quant/quantize_images.h"
#include "backends/quant/recurrence.h"
#include "backends/quant/resample.h"
#include "backends/quant/wide_loop.h"

namespace frametap::quant {
namespace {

FRAMETAP_WIDE_LOOP
void QuantizeLoop(const float* __restrict from, uint8_t* __restrict to, int64_t n, float inverse, float lo, float hi,
                  int32_t zero_point) {
  for (int64_t i = 0; i < n; ++i) to[i] = ToByte(from[i], inverse, lo, hi, zero_point);
}

FRAMETAP_WIDE_LOOP
void QuantizeHalvesLoop(const c10::BFloat16* __restrict from, uint8_t* __restrict to, int64_t n, float inverse,
                        float lo, float hi, int32_t zero_point) {
  for (int64_t i = 0; i < n; ++i) to[i] = ToByte(ToFloat(from[i]), inverse, lo, hi, zero_point);
}

FRAMETAP_WIDE_LOOP
void DequantizeLoop(const uint8_t* __restrict from, float* __restrict to, int64_t n, float scale, int32_t zero_point) {
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(static_cast<int32_t>(from[i]) - zero_point) * scale;
}

FRAMETAP_WIDE_LOOP
void DequantizeSignedLoop(const int8_t* __restrict from, float* __restrict to, int64_t n, float scale,
                          int32_t zero_point) {
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(static_cast<int32_t>(from[i]) - zero_point) * scale;
}

void CheckBytes(const at::Tensor& q, const char* op) {
  TORCH_CHECK(q.scalar_type() == at::kByte && q.device().is_cpu(), op, ": expected a uint8 tensor on the CPU, got ",
              q.scalar_type(), " on ", q.device());
}

at::Tensor EmptyBytes(at::IntArrayRef sizes, at::MemoryFormat format) {
  return at::detail::empty_cpu(sizes, at::kByte, false, format);
}

at::Tensor Quantize(const at::Tensor& x, double scale, int64_t zero_point, int64_t qmin, int64_t qmax,
                    c10::ScalarType dtype, at::MemoryFormat format) {
  const bool is_half = x.scalar_type() == at::kBFloat16;
  TORCH_CHECK(is_half || x.scalar_type() == at::kFloat,
              "quantize_per_tensor: expected a tensor of float32 or bfloat16, got ", x.scalar_type());
  TORCH_CHECK(dtype == at::kByte && qmin >= 0 && qmax <= 255 && qmin < qmax,
              "quantize_per_tensor: only uint8 with limits in 0..255");
  const ByteRange range = RangeOf(scale, zero_point, qmin, qmax);
  at::Tensor to = EmptyBytes(x.sizes(), format);
  if (!is_half && !x.is_contiguous(format) && format == at::MemoryFormat::ChannelsLast && HasDenseRows(x)) {
    QuantizeImages(x, range, to);
    return to;
  }
  const at::Tensor from = x.contiguous(format);
  const auto run = [&](const auto* f, auto loop) {
    uint8_t* t = to.mutable_data_ptr<uint8_t>();
    at::parallel_for(0, from.numel(), kGrain, [&](int64_t begin, int64_t end) {
      loop(f + begin, t + begin, end - begin, range.inverse, range.lo, range.hi, range.zero_point);
    });
  };
  if (is_half) {
    run(from.const_data_ptr<c10::BFloat16>(), QuantizeHalvesLoop);
  } else {
    run(from.const_data_ptr<float>(), QuantizeLoop);
  }
  return to;
}

at::Tensor QuantizePerTensor(const at::Tensor& x, double scale, int64_t zero_point, int64_t qmin, int64_t qmax,
                             c10::ScalarType dtype) {
  return Quantize(x, scale, zero_point, qmin, qmax, dtype, at::MemoryFormat::Contiguous);
}

at::Tensor QuantizePerTensorChannelsLast(const at::Tensor& x, double scale, int64_t zero_point, int64_t qmin,
                                         int64_t qmax, c10::ScalarType dtype) {
  const auto images = [&](const at::Tensor& from) {
    return Quantize(from, scale, zero_point, qmin, qmax, dtype, at::MemoryFormat::ChannelsLast);
  };
  // Images of one or three axes have the same layout as images of two.
  if (x.dim() == 3) return images(x.unsqueeze(2)).squeeze(2);
  if (x.dim() == 5) {
    const bool is_last = x.is_contiguous(at::MemoryFormat::ChannelsLast3d);
    return images((is_last ? x : x.contiguous()).flatten(2, 3)).unflatten(2, {x.size(2), x.size(3)});
  }
  return x.dim() == 4 ? images(x) : Quantize(x, scale, zero_point, qmin, qmax, dtype, at::MemoryFormat::Contiguous);
}

at::Tensor DequantizePerTensor(const at::Tensor& q, double scale, int64_t zero_point) {
  CheckBytes(q, "dequantize_per_tensor");
  const at::Tensor from = q.contiguous();
  at::Tensor to = at::detail::empty_cpu(from.sizes(), at::kFloat);
  const uint8_t* f = from.const_data_ptr<uint8_t>();
  float* t = to.mutable_data_ptr<float>();
  at::parallel_for(0, from.numel(), kGrain, [&](int64_t begin, int64_t end) {
    DequantizeLoop(f + begin, t + begin, end - begin, static_cast<float>(scale), static_cast<int32_t>(zero_point));
  });
  return to;
}

at::Tensor DequantizePerChannel(const at::Tensor& q, const at::Tensor& scales, const at::Tensor& zero_points,
                                int64_t axis) {
  TORCH_CHECK(q.scalar_type() == at::kChar, "dequantize_per_channel: expected an int8 tensor, got ", q.scalar_type());
  TORCH_CHECK(axis >= 0 && axis < q.dim() && scales.numel() == q.size(axis) && zero_points.numel() == q.size(axis),
              "dequantize_per_channel: expected one scale and one zero point for each entry along axis ", axis);
  if (axis != 0) {
    return DequantizePerChannel(q.transpose(0, axis), scales, zero_points, 0).transpose(0, axis).contiguous();
  }
  const at::Tensor from = q.contiguous();
  const at::Tensor s = scales.contiguous();
  const at::Tensor z = zero_points.contiguous();
  at::Tensor to = at::empty(from.sizes(), at::TensorOptions().dtype(at::kFloat));
  const int64_t channels = from.size(0);
  const int64_t each = channels == 0 ? 0 : from.numel() / channels;
  for (int64_t c = 0; c < channels; ++c) {
    DequantizeSignedLoop(from.const_data_ptr<int8_t>() + c * each, to.mutable_data_ptr<float>() + c * each, each,
                         s.const_data_ptr<float>()[c], static_cast<int32_t>(z.const_data_ptr<int64_t>()[c]));
  }
  return to;
}

at::Tensor ChunkPiece(const at::Tensor& self, int64_t chunks, int64_t dim, int64_t index) {
  return self.chunk(chunks, dim).at(static_cast<size_t>(index));
}

at::Tensor RoundRows(const at::Tensor& x, int64_t bits) {
  TORCH_CHECK(x.scalar_type() == at::kFloat && x.device().is_cpu() && x.dim() > 0,
              "round_rows: expected rows of floats on the CPU, got ", x.scalar_type(), " of sizes ", x.sizes());
  TORCH_CHECK(bits == 7 || bits == 8 || bits == 14 || bits == 16, "round_rows: expected 7, 8, 14 or 16 bits, got ",
              bits);
  return RoundedRows(x, static_cast<int>(bits));
}

at::Tensor State(const at::Tensor& self) { return self.alias(); }

// Meta kernels: sizes and dtypes only.
at::Tensor QuantizeMeta(const at::Tensor& x, double, int64_t, int64_t, int64_t, c10::ScalarType dtype) {
  return at::empty(x.sizes(), x.options().dtype(dtype));
}
at::Tensor DequantizeMeta(const at::Tensor& q, double, int64_t) {
  return at::empty(q.sizes(), q.options().dtype(at::kFloat));
}
at::Tensor RoundRowsMeta(const at::Tensor& x, int64_t) { return at::empty(x.sizes(), x.options()); }
at::Tensor DequantizeChannelMeta(const at::Tensor& q, const at::Tensor&, const at::Tensor&, int64_t) {
  return at::empty(q.sizes(), q.options().dtype(at::kFloat));
}

}  // namespace

void RegisterOperators() {
  static const bool registered = [] {
    // Kept for ever: the dispatcher may be asked during the end of the process.
    auto* defs = new torch::Library(torch::Library::FRAGMENT, "frametap", std::nullopt, __FILE__, __LINE__);
    const char* q = "(Tensor x, float scale, int zero_point, int qmin, int qmax, ScalarType dtype) -> Tensor";
    defs->def((std::string("quantize_per_tensor") + q).c_str());
    defs->def((std::string("quantize_per_tensor_channels_last") + q).c_str());
    defs->def("dequantize_per_tensor(Tensor q, float scale, int zero_point) -> Tensor");
    defs->def("round_rows(Tensor x, int bits) -> Tensor");
    defs->def("dequantize_per_channel(Tensor q, Tensor scales, Tensor zero_points, int axis) -> Tensor");
    defs->def(
        "qadd(Tensor a, float a_scale, int a_zero_point, Tensor b, float b_scale, int b_zero_point, float scale, "
        "int zero_point, int qmin, int qmax, bool relu) -> Tensor");
    defs->def(
        "qmul(Tensor a, int a_zero_point, Tensor b, int b_zero_point, float product_scale, float scale, "
        "int zero_point, int qmin, int qmax) -> Tensor");
    defs->def("laid_out(Tensor(a) images, Tensor[] like) -> Tensor(a)");
    defs->def("state(Tensor(a) self) -> Tensor(a)", TORCH_FN(State));
    defs->def("planes(Tensor(a) images) -> Tensor(a)");
    defs->def("pixels(Tensor(a) images, ScalarType dtype) -> Tensor(a)");
    defs->def("qcurve(Tensor q, Tensor table) -> Tensor");
    defs->def("chunk_piece(Tensor(a) self, int chunks, int dim, int index) -> Tensor(a)", TORCH_FN(ChunkPiece));
    defs->def(
        "max_pool2d(Tensor self, int[] kernel_size, int[] stride, int[] padding, int[] dilation, bool ceil_mode) "
        "-> Tensor");
    const std::string average =
        "(Tensor q, float q_scale, int q_zero_point, float scale, int zero_point, int qmin, int qmax, ";
    defs->def(("qavg_pool2d" + average +
               "int[] kernel_size, int[] stride, int[] padding, bool ceil_mode, bool count_include_pad, "
               "int? divisor_override) -> Tensor")
                  .c_str());
    defs->def(("qadaptive_avg_pool2d" + average + "int[] output_size) -> Tensor").c_str());
    defs->def(
        "upsample_bilinear2d(Tensor input, int[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor");
    defs->def("adaptive_avg_pool2d(Tensor self, int[] output_size) -> Tensor");
    defs->def("cat(Tensor[] tensors, int dim) -> Tensor");
    auto* cpu = new torch::Library(torch::Library::IMPL, "frametap", c10::DispatchKey::CPU, __FILE__, __LINE__);
    cpu->impl("quantize_per_tensor", TORCH_FN(QuantizePerTensor));
    cpu->impl("quantize_per_tensor_channels_last", TORCH_FN(QuantizePerTensorChannelsLast));
    cpu->impl("dequantize_per_tensor", TORCH_FN(DequantizePerTensor));
    cpu->impl("dequantize_per_channel", TORCH_FN(DequantizePerChannel));
    cpu->impl("round_rows", TORCH_FN(RoundRows));
    cpu->impl("qadd", TORCH_FN(AddBytes));
    cpu->impl("qmul", TORCH_FN(MulBytes));
    cpu->impl("planes", TORCH_FN(Planes));
    cpu->impl("pixels", TORCH_FN(Pixels));
    cpu->impl("laid_out", TORCH_FN(LayOut));
    cpu->impl("qcurve", TORCH_FN(LookUpBytes));
    cpu->impl("max_pool2d", TORCH_FN(MaxPool));
    cpu->impl("qavg_pool2d", TORCH_FN(AvgPoolBytes));
    cpu->impl("qadaptive_avg_pool2d", TORCH_FN(AdaptiveAvgPoolBytes));
    cpu->impl("adaptive_avg_pool2d", TORCH_FN(AdaptiveAvgPool));
    cpu->impl("cat", TORCH_FN(Concatenate));
    cpu->impl("upsample_bilinear2d", TORCH_FN(UpsampleBilinear));
    auto* meta = new torch::Library(torch::Library::IMPL, "frametap", c10::DispatchKey::Meta, __FILE__, __LINE__);
    meta->impl("quantize_per_tensor", TORCH_FN(QuantizeMeta));
    meta->impl("quantize_per_tensor_channels_last", TORCH_FN(QuantizeMeta));
    meta->impl("dequantize_per_tensor", TORCH_FN(DequantizeMeta));
    meta->impl("round_rows", TORCH_FN(RoundRowsMeta));
    meta->impl("dequantize_per_channel", TORCH_FN(DequantizeChannelMeta));
    RegisterAttention();
    RegisterKernelOperators();
    RegisterRecurrentOperators();
    RegisterLayerNorm();
    RegisterDecomposedOperators();
    RegisterFiniteChecks();
    // They run without gradients only (quantize/Q5), and have none. torch's own kernel for ops that have none takes
    // longer than many of them.
    auto* autograd =
        new torch::Library(torch::Library::IMPL, "frametap", c10::DispatchKey::AutogradCPU, __FILE__, __LINE__);
    for (const char* name : {"adaptive_avg_pool2d",
                             "attention_chain",
                             "bfloat16_attention",
                             "bfloat16_attention_chain",
                             "cat",
                             "dequantize_per_channel",
                             "dequantize_per_tensor",
                             "note_if_not_finite",
                             "pixels",
                             "planes",
                             "qadaptive_avg_pool2d",
                             "qadd",
                             "qavg_pool2d",
                             "qconv",
                             "round_rows",
                             "scaled_dot_product_attention",
                             "qcurve",
                             "qconv_add",
                             "qlinear",
                             "max_pool2d",
                             "qmul",
                             "upsample_bilinear2d",
                             "quantize_per_tensor",
                             "quantize_per_tensor_channels_last",
                             "laid_out",
                             "layer_norm",
                             "layer_norm_to_bfloat16",
                             "layer_norm_to_bytes",
                             "layer_norm_with_bfloat16",
                             "layer_norm_with_bytes",
                             "lstm",
                             "lstm_cell",
                             "rnn",
                             "rnn_cell"}) {
      autograd->impl(name, torch::CppFunction::makeFallthrough());
    }
    return true;
  }();
  (void)registered;
}

c10::OperatorHandle FindOperator(const char* name, const char* overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

std::optional<c10::OperatorHandle> QuickerOperator(const Node& node) {
  if (Is(node, "aten::adaptive_avg_pool2d")) return FindOperator("frametap::adaptive_avg_pool2d");
  if (Is(node, "aten::cat")) return FindOperator("frametap::cat");
  if (Is(node, "aten::layer_norm")) return FindOperator("frametap::layer_norm");
  if (Is(node, "aten::max_pool2d")) return FindOperator("frametap::max_pool2d");
  if (Is(node, "aten::upsample_bilinear2d", "vec")) return FindOperator("frametap::upsample_bilinear2d");
  return std::nullopt;
}

}  // namespace frametap::quant
