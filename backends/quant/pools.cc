#include "backends/quant/pools.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/max_pool2d.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "backends/quant/wide_loop.h"
#include "backends/quant/window.h"

namespace frametap::quant {
namespace {

// Windows of neighbouring pixels of a result.
template <class T>
struct Windows {
  const T* from;
  const int64_t* taps;  // where the elements of the first window are, from `from`
  int64_t count;        // of taps, at least 1
  int64_t step;         // from a window to the next one
  int64_t channels;
  T* to;
};

// The maximum of vectors: NaN where one of them is.
template <class T>
struct Maximum {
  using Vector [[gnu::vector_size(32)]] = T;
  [[gnu::always_inline]] void Begin(const Vector& x) { most = x; }
  [[gnu::always_inline]] void Add(const Vector& x) { most = (x > most) | (x != x) ? x : most; }
  [[gnu::always_inline]] void Get(Vector* to) const { *to = most; }
  Vector most;
};

// Signed bits have the order of the numbers if the bits of negative numbers are turned.
template <>
struct Maximum<c10::BFloat16> {
  using Vector [[gnu::vector_size(32)]] = int16_t;
  [[gnu::always_inline]] void Begin(const Vector& x) {
    most = x ^ (x >> 15 & 0x7FFF);
    has_nan = (x & 0x7FFF) > 0x7F80;
  }
  [[gnu::always_inline]] void Add(const Vector& x) {
    const Vector place = x ^ (x >> 15 & 0x7FFF);
    most = place > most ? place : most;
    has_nan |= (x & 0x7FFF) > 0x7F80;
  }
  [[gnu::always_inline]] void Get(Vector* to) const { *to = (most ^ (most >> 15 & 0x7FFF)) | (has_nan & 0x7FC0); }
  Vector most, has_nan;
};

template <class T>
[[gnu::always_inline]] inline void MaxOfWindows(const Windows<T>& w, int64_t pixels) {
  using Vector = typename Maximum<T>::Vector;
  constexpr auto kSize = static_cast<int64_t>(sizeof(Vector) / sizeof(T));
  constexpr std::integral_constant<size_t, sizeof(Vector)> kWhole;
  for (int64_t p = 0; p < pixels; ++p) {
    const T* const from = w.from + p * w.step;
    T* const to = w.to + p * w.channels;
    const auto block = [&](int64_t channel, auto bytes) {
      Maximum<T> maximum;
      Vector x{};
      std::memcpy(&x, from + w.taps[0] + channel, bytes);
      maximum.Begin(x);
      for (int64_t tap = 1; tap < w.count; ++tap) {
        std::memcpy(&x, from + w.taps[tap] + channel, bytes);
        maximum.Add(x);
      }
      maximum.Get(&x);
      std::memcpy(to + channel, &x, bytes);
    };
    int64_t channel = 0;
    for (; channel + kSize <= w.channels; channel += kSize) block(channel, kWhole);
    if (channel == w.channels) continue;
    if (w.channels >= kSize) {
      block(w.channels - kSize, kWhole);
    } else {
      block(0, static_cast<size_t>(w.channels) * sizeof(T));
    }
  }
}

FRAMETAP_WIDE_LOOP
void MaxLoop(const Windows<uint8_t>& windows, int64_t pixels) { MaxOfWindows(windows, pixels); }
FRAMETAP_WIDE_LOOP
void MaxLoop(const Windows<float>& windows, int64_t pixels) { MaxOfWindows(windows, pixels); }
FRAMETAP_WIDE_LOOP
void MaxLoop(const Windows<c10::BFloat16>& windows, int64_t pixels) { MaxOfWindows(windows, pixels); }

FRAMETAP_WIDE_LOOP
void SumLoop(const uint8_t* __restrict from, int32_t* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += from[i];
}

FRAMETAP_WIDE_LOOP
void SumLoop(const float* __restrict from, float* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += from[i];
}

FRAMETAP_WIDE_LOOP
void SumLoop(const c10::BFloat16* __restrict from, float* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += ToFloat(from[i]);
}

FRAMETAP_WIDE_LOOP
void MeanLoop(const int32_t* __restrict sum, uint8_t* __restrict to, int64_t n, int32_t taps_times_zero, float inverse,
              float lo, float hi, int32_t zero_point) {
  for (int64_t i = 0; i < n; ++i) {
    to[i] = ToByte(static_cast<float>(sum[i] - taps_times_zero), inverse, lo, hi, zero_point);
  }
}

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

template <class T>
void MaxOf(const at::Tensor& x, const Window& wy, const Window& wx, at::Tensor* y) {
  const int64_t c = x.size(1);
  const T* const from = x.const_data_ptr<T>();
  T* const to = y->mutable_data_ptr<T>();
  T least{};
  if constexpr (!std::is_same_v<T, uint8_t>) least = -std::numeric_limits<float>::infinity();
  const std::vector<Span> spans = SpansOf(wx);
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, c * wy.kernel * wx.kernel * wx.outputs));
  at::parallel_for(0, x.size(0) * wy.outputs, grain, [&](int64_t begin, int64_t end) {
    std::vector<int64_t> taps;
    for (int64_t line = begin; line < end; ++line) {
      const T* const image = from + line / wy.outputs * wy.size * wx.size * c;
      T* const results = to + line * wx.outputs * c;
      const std::vector<int64_t> rows = ElementsOf(wy, line % wy.outputs);
      for (const Span& span : spans) {
        T* const first = results + span.first * c;
        taps.clear();
        for (const int64_t row : rows) {
          for (const int64_t column : span.elements) taps.push_back((row * wx.size + column) * c);
        }
        if (taps.empty()) {
          std::fill_n(first, span.count * c, least);
        } else {
          MaxLoop({image, taps.data(), static_cast<int64_t>(taps.size()), wx.stride * c, c, first}, span.count);
        }
      }
    }
  });
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

// Calls `store(sums, taps, pixel)` for each pixel of `y`, of an adaptive mean. `x`: not empty.
template <class T, class Sum, class F>
void ForEachAdaptiveSum(const at::Tensor& x, const at::Tensor& y, const F& store) {
  const int64_t c = x.size(1), h = x.size(2), w = x.size(3), oh = y.size(2), ow = y.size(3);
  const T* const from = x.const_data_ptr<T>();
  ForEachPixel(x.size(0), oh, ow, c, [&](int64_t n, int64_t oy, int64_t ox) {
    const int64_t ya = oy * h / oh, yb = ((oy + 1) * h + oh - 1) / oh;
    const int64_t xa = ox * w / ow, xb = ((ox + 1) * w + ow - 1) / ow;
    thread_local std::vector<Sum> sum;
    sum.assign(c, 0);
    for (int64_t iy = ya; iy < yb; ++iy) {
      for (int64_t ix = xa; ix < xb; ++ix) SumLoop(from + ((n * h + iy) * w + ix) * c, sum.data(), c);
    }
    store(sum, (yb - ya) * (xb - xa), (n * oh + oy) * ow + ox);
  });
}

template <class T>
void MeansOf(const at::Tensor& x, at::Tensor* y) {
  const int64_t c = x.size(1);
  T* const to = y->mutable_data_ptr<T>();
  ForEachAdaptiveSum<T, float>(x, *y, [&](const std::vector<float>& sum, int64_t taps, int64_t pixel) {
    for (int64_t i = 0; i < c; ++i) to[pixel * c + i] = sum[static_cast<size_t>(i)] / static_cast<float>(taps);
  });
}

bool IsPixelByPixel(const at::Tensor& x) { return x.dim() == 4 && x.is_contiguous(at::MemoryFormat::ChannelsLast); }

// Pools take [N, C, H, W] or [C, H, W].
at::Tensor AsImages(const at::Tensor& q, const char* op) {
  TORCH_CHECK(q.dim() == 3 || q.dim() == 4, op, ": expected 3 or 4 dimensions, got ", q.dim());
  return (q.dim() == 3 ? q.unsqueeze(0) : q).contiguous(at::MemoryFormat::ChannelsLast);
}

at::Tensor EmptyImages(int64_t images, int64_t channels, int64_t height, int64_t width,
                       at::ScalarType type = at::kByte) {
  return at::detail::empty_cpu({images, channels, height, width}, type, false, at::MemoryFormat::ChannelsLast);
}

// The means are of bytes.
at::Tensor AsBytes(const at::Tensor& q, const char* op) {
  TORCH_CHECK(q.scalar_type() == at::kByte && q.device().is_cpu(), op, ": expected a uint8 tensor on the CPU, got ",
              q.scalar_type(), " on ", q.device());
  return AsImages(q, op);
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

at::Tensor MaxPool(const at::Tensor& x, at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef padding,
                   at::IntArrayRef dilation, bool ceil_mode) {
  const bool is_ours = x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16;
  if (x.scalar_type() != at::kByte && !(is_ours && IsPixelByPixel(x))) {
    return at::max_pool2d(x, kernel, stride, padding, dilation, ceil_mode);
  }
  const at::Tensor images = AsImages(x, "max_pool2d");
  const Window wy = MakeWindow(images.size(2), kernel, stride, padding, dilation, ceil_mode, 0);
  const Window wx = MakeWindow(images.size(3), kernel, stride, padding, dilation, ceil_mode, 1);
  at::Tensor y = EmptyImages(images.size(0), images.size(1), wy.outputs, wx.outputs, x.scalar_type());
  switch (x.scalar_type()) {
    case at::kByte:
      MaxOf<uint8_t>(images, wy, wx, &y);
      break;
    case at::kFloat:
      MaxOf<float>(images, wy, wx, &y);
      break;
    default:
      MaxOf<c10::BFloat16>(images, wy, wx, &y);
  }
  return x.dim() == 3 ? y.squeeze(0) : y;
}

at::Tensor AvgPoolBytes(const at::Tensor& q, double q_scale, int64_t q_zero_point, double scale, int64_t zero_point,
                        int64_t qmin, int64_t qmax, at::IntArrayRef kernel, at::IntArrayRef stride,
                        at::IntArrayRef padding, bool ceil_mode, bool count_include_pad,
                        std::optional<int64_t> divisor_override) {
  const Averages averages(q_scale, q_zero_point, scale, zero_point, qmin, qmax);
  const at::Tensor x = AsBytes(q, "qavg_pool2d");
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

at::Tensor AdaptiveAvgPool(const at::Tensor& x, at::IntArrayRef output_size) {
  const bool is_float = x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16;
  if (!is_float || !IsPixelByPixel(x) || x.numel() == 0 || At(output_size, 0) < 1 || At(output_size, 1) < 1) {
    return at::adaptive_avg_pool2d(x, output_size);
  }
  at::Tensor y = EmptyImages(x.size(0), x.size(1), At(output_size, 0), At(output_size, 1), x.scalar_type());
  if (x.scalar_type() == at::kFloat) {
    MeansOf<float>(x, &y);
  } else {
    MeansOf<c10::BFloat16>(x, &y);
  }
  return y;
}

at::Tensor AdaptiveAvgPoolBytes(const at::Tensor& q, double q_scale, int64_t q_zero_point, double scale,
                                int64_t zero_point, int64_t qmin, int64_t qmax, at::IntArrayRef output_size) {
  const Averages averages(q_scale, q_zero_point, scale, zero_point, qmin, qmax);
  const at::Tensor x = AsBytes(q, "qadaptive_avg_pool2d");
  const int64_t c = x.size(1);
  at::Tensor y = EmptyImages(x.size(0), c, At(output_size, 0), At(output_size, 1));
  uint8_t* const to = y.mutable_data_ptr<uint8_t>();
  ForEachAdaptiveSum<uint8_t, int32_t>(x, y, [&](const std::vector<int32_t>& sum, int64_t taps, int64_t pixel) {
    averages.Store(sum, taps, taps, to + pixel * c);
  });
  return q.dim() == 3 ? y.squeeze(0) : y;
}

}  // namespace frametap::quant
