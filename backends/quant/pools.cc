#include "backends/quant/pools.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "backends/quant/wide_loop.h"

namespace frametap::quant {
namespace {

constexpr int64_t kGrain = 16384;

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
              float lo, float hi, int32_t zero_point) {
  for (int64_t i = 0; i < n; ++i) {
    to[i] = ToByte(static_cast<float>(sum[i] - taps_times_zero), inverse, lo, hi, zero_point);
  }
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
  TORCH_CHECK(q.scalar_type() == at::kByte && q.device().is_cpu(), op, ": expected a uint8 tensor on the CPU, got ",
              q.scalar_type(), " on ", q.device());
  TORCH_CHECK(q.dim() == 3 || q.dim() == 4, op, ": expected 3 or 4 dimensions, got ", q.dim());
  return (q.dim() == 3 ? q.unsqueeze(0) : q).contiguous(at::MemoryFormat::ChannelsLast);
}

at::Tensor EmptyImages(int64_t images, int64_t channels, int64_t height, int64_t width) {
  return at::detail::empty_cpu({images, channels, height, width}, at::kByte, false, at::MemoryFormat::ChannelsLast);
}

// From sums of bytes to bytes of means.
class Averages {
 public:
  Averages(double q_scale, int64_t q_zero_point, double scale, int64_t zero_point, int64_t qmin, int64_t qmax)
      : ratio_(static_cast<float>(q_scale / scale)),
        q_zero_(q_zero_point),
        lo_(static_cast<float>(qmin - zero_point)),
        hi_(static_cast<float>(qmax - zero_point)),
        zero_(static_cast<int32_t>(zero_point)) {}

  // `taps`: how many bytes each sum has.
  void Store(const std::vector<int32_t>& sums, int64_t taps, int64_t divisor, uint8_t* to) const {
    MeanLoop(sums.data(), to, static_cast<int64_t>(sums.size()), static_cast<int32_t>(taps * q_zero_),
             ratio_ / static_cast<float>(divisor), lo_, hi_, zero_);
  }

 private:
  float ratio_;
  int64_t q_zero_;
  float lo_, hi_;
  int32_t zero_;
};

}  // namespace

at::Tensor MaxPoolBytes(const at::Tensor& q, at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef padding,
                        at::IntArrayRef dilation, bool ceil_mode) {
  const at::Tensor x = AsImages(q, "qmax_pool2d");
  const int64_t c = x.size(1);
  const Window wy = MakeWindow(x.size(2), kernel, stride, padding, dilation, ceil_mode, 0);
  const Window wx = MakeWindow(x.size(3), kernel, stride, padding, dilation, ceil_mode, 1);
  at::Tensor y = EmptyImages(x.size(0), c, wy.outputs, wx.outputs);
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

at::Tensor AvgPoolBytes(const at::Tensor& q, double q_scale, int64_t q_zero_point, double scale, int64_t zero_point,
                        int64_t qmin, int64_t qmax, at::IntArrayRef kernel, at::IntArrayRef stride,
                        at::IntArrayRef padding, bool ceil_mode, bool count_include_pad,
                        std::optional<int64_t> divisor_override) {
  const Averages averages(q_scale, q_zero_point, scale, zero_point, qmin, qmax);
  const at::Tensor x = AsImages(q, "qavg_pool2d");
  const int64_t c = x.size(1);
  const int64_t one[] = {1};
  const Window wy = MakeWindow(x.size(2), kernel, stride, padding, one, ceil_mode, 0);
  const Window wx = MakeWindow(x.size(3), kernel, stride, padding, one, ceil_mode, 1);
  at::Tensor y = EmptyImages(x.size(0), c, wy.outputs, wx.outputs);
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
    averages.Store(sum, taps, divisor, to + ((n * wy.outputs + oy) * wx.outputs + ox) * c);
  });
  return q.dim() == 3 ? y.squeeze(0) : y;
}

at::Tensor AdaptiveAvgPoolBytes(const at::Tensor& q, double q_scale, int64_t q_zero_point, double scale,
                                int64_t zero_point, int64_t qmin, int64_t qmax, at::IntArrayRef output_size) {
  const Averages averages(q_scale, q_zero_point, scale, zero_point, qmin, qmax);
  const at::Tensor x = AsImages(q, "qadaptive_avg_pool2d");
  const int64_t c = x.size(1), h = x.size(2), w = x.size(3);
  const int64_t oh = At(output_size, 0), ow = At(output_size, 1);
  at::Tensor y = EmptyImages(x.size(0), c, oh, ow);
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
    averages.Store(sum, taps, taps, to + ((n * oh + oy) * ow + ox) * c);
  });
  return q.dim() == 3 ? y.squeeze(0) : y;
}

}  // namespace frametap::quant
