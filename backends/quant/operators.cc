#include "backends/quant/operators.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "backends/quant/decomposed_operators.h"
#include "backends/quant/dynamic_linear.h"
#include "backends/quant/kernel_tensor.h"
#include "backends/quant/planes.h"
#include "backends/quant/pointwise.h"
#include "backends/quant/quantize_images.h"
#include "backends/quant/recurrence.h"
#include "backends/quant/wide_loop.h"

namespace frametap::quant {
namespace {

constexpr int64_t kGrain = 16384;

FRAMETAP_WIDE_LOOP
void QuantizeLoop(const float* __restrict from, uint8_t* __restrict to, int64_t n, float inverse, float lo, float hi,
                  int32_t zero_point) {
  for (int64_t i = 0; i < n; ++i) to[i] = ToByte(from[i], inverse, lo, hi, zero_point);
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

FRAMETAP_WIDE_LOOP
void MaxLoop(const uint8_t* __restrict from, uint8_t* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = from[i] > to[i] ? from[i] : to[i];
}

FRAMETAP_WIDE_LOOP
void SumLoop(const uint8_t* __restrict from, int32_t* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += from[i];
}

FRAMETAP_WIDE_LOOP
void MeanLoop(const int32_t* __restrict sum, uint8_t* __restrict to, int64_t n, int32_t taps_times_zero, float inverse,
              int32_t zero_point) {
  for (int64_t i = 0; i < n; ++i) {
    float v = static_cast<float>(sum[i] - taps_times_zero) * inverse;
    v = (v + kRounder) - kRounder;
    int32_t q = static_cast<int32_t>(v) + zero_point;
    q = q > 0 ? q : 0;
    to[i] = static_cast<uint8_t>(q < 255 ? q : 255);
  }
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
  TORCH_CHECK(x.scalar_type() == at::kFloat, "quantize_per_tensor: expected a float32 tensor, got ", x.scalar_type());
  TORCH_CHECK(dtype == at::kByte && qmin >= 0 && qmax <= 255 && qmin < qmax,
              "quantize_per_tensor: only uint8 with limits in 0..255");
  const ByteRange range{1.0f / static_cast<float>(scale), static_cast<float>(qmin - zero_point),
                        static_cast<float>(qmax - zero_point), static_cast<int32_t>(zero_point)};
  at::Tensor to = EmptyBytes(x.sizes(), format);
  if (!x.is_contiguous(format) && format == at::MemoryFormat::ChannelsLast && HasDenseRows(x)) {
    QuantizeImages(x, range, to);
    return to;
  }
  const at::Tensor from = x.contiguous(format);
  const float* f = from.const_data_ptr<float>();
  uint8_t* t = to.mutable_data_ptr<uint8_t>();
  at::parallel_for(0, from.numel(), kGrain, [&](int64_t begin, int64_t end) {
    QuantizeLoop(f + begin, t + begin, end - begin, range.inverse, range.lo, range.hi, range.zero_point);
  });
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

// One spatial axis of a pooling window.
struct Window {
  int64_t size, kernel, stride, padding, dilation, outputs;
};

int64_t At(at::IntArrayRef list, size_t i) { return list.size() == 1 ? list[0] : list[i]; }

Window MakeWindow(int64_t size, at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef padding,
                  at::IntArrayRef dilation, bool ceil_mode, size_t axis) {
  Window w;
  w.size = size;
  w.kernel = At(kernel, axis);
  w.stride = stride.empty() ? w.kernel : At(stride, axis);
  w.padding = At(padding, axis);
  w.dilation = At(dilation, axis);
  TORCH_CHECK(w.kernel > 0 && w.stride > 0 && w.dilation > 0 && w.padding >= 0 && 2 * w.padding <= w.kernel,
              "pooling window out of range");
  const int64_t span = size + 2 * w.padding - w.dilation * (w.kernel - 1) - 1;
  TORCH_CHECK(span >= 0, "pooling window is larger than its input");
  w.outputs = (span + (ceil_mode ? w.stride - 1 : 0)) / w.stride + 1;
  if (ceil_mode && (w.outputs - 1) * w.stride >= size + w.padding) --w.outputs;  // a window must begin inside
  return w;
}

// Calls `pixel(image, oy, ox)` for each output position, rows in parallel; images are channels_last.
template <class F>
void ForEachPixel(int64_t images, int64_t height, int64_t width, int64_t work, F&& pixel) {
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, work * width));
  at::parallel_for(0, images * height, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t ox = 0; ox < width; ++ox) pixel(row / height, row % height, ox);
    }
  });
}

// Pools take [N, C, H, W] or [C, H, W].
at::Tensor AsImages(const at::Tensor& q, const char* op) {
  CheckBytes(q, op);
  TORCH_CHECK(q.dim() == 3 || q.dim() == 4, op, ": expected 3 or 4 dimensions, got ", q.dim());
  return (q.dim() == 3 ? q.unsqueeze(0) : q).contiguous(at::MemoryFormat::ChannelsLast);
}

at::Tensor MaxPoolBytes(const at::Tensor& q, at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef padding,
                        at::IntArrayRef dilation, bool ceil_mode) {
  const at::Tensor x = AsImages(q, "qmax_pool2d");
  const int64_t c = x.size(1);
  const Window wy = MakeWindow(x.size(2), kernel, stride, padding, dilation, ceil_mode, 0);
  const Window wx = MakeWindow(x.size(3), kernel, stride, padding, dilation, ceil_mode, 1);
  at::Tensor y = EmptyBytes({x.size(0), c, wy.outputs, wx.outputs}, at::MemoryFormat::ChannelsLast);
  const uint8_t* from = x.const_data_ptr<uint8_t>();
  uint8_t* to = y.mutable_data_ptr<uint8_t>();
  ForEachPixel(x.size(0), wy.outputs, wx.outputs, c * wy.kernel * wx.kernel, [&](int64_t n, int64_t oy, int64_t ox) {
    uint8_t* out = to + ((n * wy.outputs + oy) * wx.outputs + ox) * c;
    std::fill(out, out + c, uint8_t{0});
    for (int64_t ky = 0; ky < wy.kernel; ++ky) {
      const int64_t iy = oy * wy.stride - wy.padding + ky * wy.dilation;
      if (iy < 0 || iy >= wy.size) continue;
      for (int64_t kx = 0; kx < wx.kernel; ++kx) {
        const int64_t ix = ox * wx.stride - wx.padding + kx * wx.dilation;
        if (ix >= 0 && ix < wx.size) MaxLoop(from + ((n * wy.size + iy) * wx.size + ix) * c, out, c);
      }
    }
  });
  return q.dim() == 3 ? y.squeeze(0) : y;
}

at::Tensor AvgPoolBytes(const at::Tensor& q, int64_t zero_point, at::IntArrayRef kernel, at::IntArrayRef stride,
                        at::IntArrayRef padding, bool ceil_mode, bool count_include_pad,
                        std::optional<int64_t> divisor_override) {
  const at::Tensor x = AsImages(q, "qavg_pool2d");
  const int64_t c = x.size(1);
  const int64_t one[] = {1};
  const Window wy = MakeWindow(x.size(2), kernel, stride, padding, one, ceil_mode, 0);
  const Window wx = MakeWindow(x.size(3), kernel, stride, padding, one, ceil_mode, 1);
  at::Tensor y = EmptyBytes({x.size(0), c, wy.outputs, wx.outputs}, at::MemoryFormat::ChannelsLast);
  const uint8_t* from = x.const_data_ptr<uint8_t>();
  uint8_t* to = y.mutable_data_ptr<uint8_t>();
  ForEachPixel(x.size(0), wy.outputs, wx.outputs, c * wy.kernel * wx.kernel, [&](int64_t n, int64_t oy, int64_t ox) {
    const int64_t y0 = oy * wy.stride - wy.padding;
    const int64_t x0 = ox * wx.stride - wx.padding;
    const int64_t padded =
        (std::min(y0 + wy.kernel, wy.size + wy.padding) - y0) * (std::min(x0 + wx.kernel, wx.size + wx.padding) - x0);
    const int64_t ya = std::max<int64_t>(y0, 0), yb = std::min(y0 + wy.kernel, wy.size);
    const int64_t xa = std::max<int64_t>(x0, 0), xb = std::min(x0 + wx.kernel, wx.size);
    const int64_t taps = std::max<int64_t>(yb - ya, 0) * std::max<int64_t>(xb - xa, 0);
    const int64_t divisor = divisor_override ? *divisor_override : count_include_pad ? padded : taps;
    thread_local std::vector<int32_t> sum;
    sum.assign(c, 0);
    for (int64_t iy = ya; iy < yb; ++iy) {
      for (int64_t ix = xa; ix < xb; ++ix) SumLoop(from + ((n * wy.size + iy) * wx.size + ix) * c, sum.data(), c);
    }
    MeanLoop(sum.data(), to + ((n * wy.outputs + oy) * wx.outputs + ox) * c, c, static_cast<int32_t>(taps * zero_point),
             1.0f / static_cast<float>(divisor), static_cast<int32_t>(zero_point));
  });
  return q.dim() == 3 ? y.squeeze(0) : y;
}

at::Tensor AdaptiveAvgPoolBytes(const at::Tensor& q, int64_t zero_point, at::IntArrayRef output_size) {
  const at::Tensor x = AsImages(q, "qadaptive_avg_pool2d");
  const int64_t c = x.size(1), h = x.size(2), w = x.size(3);
  const int64_t oh = At(output_size, 0), ow = At(output_size, 1);
  at::Tensor y = EmptyBytes({x.size(0), c, oh, ow}, at::MemoryFormat::ChannelsLast);
  const uint8_t* from = x.const_data_ptr<uint8_t>();
  uint8_t* to = y.mutable_data_ptr<uint8_t>();
  ForEachPixel(x.size(0), oh, ow, c, [&](int64_t n, int64_t oy, int64_t ox) {
    const int64_t ya = oy * h / oh, yb = ((oy + 1) * h + oh - 1) / oh;
    const int64_t xa = ox * w / ow, xb = ((ox + 1) * w + ow - 1) / ow;
    const int64_t taps = (yb - ya) * (xb - xa);
    thread_local std::vector<int32_t> sum;
    sum.assign(c, 0);
    for (int64_t iy = ya; iy < yb; ++iy) {
      for (int64_t ix = xa; ix < xb; ++ix) SumLoop(from + ((n * h + iy) * w + ix) * c, sum.data(), c);
    }
    MeanLoop(sum.data(), to + ((n * oh + oy) * ow + ox) * c, c, static_cast<int32_t>(taps * zero_point),
             1.0f / static_cast<float>(taps), static_cast<int32_t>(zero_point));
  });
  return q.dim() == 3 ? y.squeeze(0) : y;
}

at::Tensor ChunkPiece(const at::Tensor& self, int64_t chunks, int64_t dim, int64_t index) {
  return self.chunk(chunks, dim).at(static_cast<size_t>(index));
}

at::Tensor RoundRows(const at::Tensor& x, int64_t bits) {
  TORCH_CHECK(x.scalar_type() == at::kFloat && x.device().is_cpu() && x.dim() > 0,
              "round_rows: expected rows of floats on the CPU, got ", x.scalar_type(), " of sizes ", x.sizes());
  TORCH_CHECK(bits == 7 || bits == 8, "round_rows: expected 7 or 8 bits, got ", bits);
  return RoundedRows(x, static_cast<int>(bits));
}

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
    defs->def("planes(Tensor(a) images) -> Tensor(a)");
    defs->def("qcurve(Tensor q, Tensor table) -> Tensor");
    defs->def("chunk_piece(Tensor(a) self, int chunks, int dim, int index) -> Tensor(a)", TORCH_FN(ChunkPiece));
    defs->def(
        "qmax_pool2d(Tensor q, int[] kernel_size, int[] stride, int[] padding, int[] dilation, bool ceil_mode) "
        "-> Tensor");
    defs->def(
        "qavg_pool2d(Tensor q, int zero_point, int[] kernel_size, int[] stride, int[] padding, bool ceil_mode, "
        "bool count_include_pad, int? divisor_override) -> Tensor");
    defs->def("qadaptive_avg_pool2d(Tensor q, int zero_point, int[] output_size) -> Tensor");
    auto* cpu = new torch::Library(torch::Library::IMPL, "frametap", c10::DispatchKey::CPU, __FILE__, __LINE__);
    cpu->impl("quantize_per_tensor", TORCH_FN(QuantizePerTensor));
    cpu->impl("quantize_per_tensor_channels_last", TORCH_FN(QuantizePerTensorChannelsLast));
    cpu->impl("dequantize_per_tensor", TORCH_FN(DequantizePerTensor));
    cpu->impl("dequantize_per_channel", TORCH_FN(DequantizePerChannel));
    cpu->impl("round_rows", TORCH_FN(RoundRows));
    cpu->impl("qadd", TORCH_FN(AddBytes));
    cpu->impl("qmul", TORCH_FN(MulBytes));
    cpu->impl("planes", TORCH_FN(Planes));
    cpu->impl("qcurve", TORCH_FN(LookUpBytes));
    cpu->impl("qmax_pool2d", TORCH_FN(MaxPoolBytes));
    cpu->impl("qavg_pool2d", TORCH_FN(AvgPoolBytes));
    cpu->impl("qadaptive_avg_pool2d", TORCH_FN(AdaptiveAvgPoolBytes));
    auto* meta = new torch::Library(torch::Library::IMPL, "frametap", c10::DispatchKey::Meta, __FILE__, __LINE__);
    meta->impl("quantize_per_tensor", TORCH_FN(QuantizeMeta));
    meta->impl("quantize_per_tensor_channels_last", TORCH_FN(QuantizeMeta));
    meta->impl("dequantize_per_tensor", TORCH_FN(DequantizeMeta));
    meta->impl("round_rows", TORCH_FN(RoundRowsMeta));
    meta->impl("dequantize_per_channel", TORCH_FN(DequantizeChannelMeta));
    RegisterKernelOperators();
    RegisterRecurrentOperators();
    RegisterDecomposedOperators();
    // They run without gradients only (quantize/Q5), and have none. torch's own kernel for ops that have none takes
    // longer than many of them.
    auto* autograd =
        new torch::Library(torch::Library::IMPL, "frametap", c10::DispatchKey::AutogradCPU, __FILE__, __LINE__);
    for (const char* name :
         {"dequantize_per_channel", "dequantize_per_tensor", "planes", "qadaptive_avg_pool2d", "qadd", "qavg_pool2d",
          "qconv", "round_rows", "qcurve", "qconv_add", "qlinear", "qmax_pool2d", "qmul", "quantize_per_tensor",
          "quantize_per_tensor_channels_last", "lstm", "lstm_cell", "rnn", "rnn_cell"}) {
      autograd->impl(name, torch::CppFunction::makeFallthrough());
    }
    return true;
  }();
  (void)registered;
}

c10::OperatorHandle FindOperator(const char* name, const char* overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

}  // namespace frametap::quant
