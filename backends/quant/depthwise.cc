#include "backends/quant/depthwise.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>

#include <cstring>
#include <limits>

#include "backends/quant/wide_loop.h"
#include "backends/quant/window.h"

namespace frametap::quant {
namespace {

// A block of channels is two vectors: those at even places, which are the lower halves of 32 bits, and those at odd places.
constexpr int64_t kBlock = 2 * kLanes;

using Pairs [[gnu::vector_size(kLanes * sizeof(uint32_t))]] = uint32_t;

struct Tap {
  int64_t place;   // of an element of the first window
  int64_t weight;  // of a block
};

// A block of channels of neighbouring pixels of a result.
struct Row {
  const c10::BFloat16* from;
  int64_t step;          // from a window to the next one
  const float* weights;  // of the block; the bias is the first one
  const Tap* taps;       // row by row of the window
  int64_t count;         // of taps
  int64_t width;         // taps of a row, if they are side by side; else 0
  float low, high;
  c10::BFloat16* to;
  int64_t channels;
};

struct Sums {
  Lanes even, odd;
};

[[gnu::always_inline]] inline void LoadPair(const float* x, Sums* to) {
  Load(x, &to->even);
  Load(x + kLanes, &to->odd);
}

[[gnu::always_inline]] inline void LoadPair(const c10::BFloat16* x, Sums* to) {
  Pairs pairs;
  std::memcpy(&pairs, x, sizeof(pairs));
  const Pairs lower = pairs << 16, upper = pairs & 0xFFFF0000;
  std::memcpy(&to->even, &lower, sizeof(lower));
  std::memcpy(&to->odd, &upper, sizeof(upper));
}

// Rounds half to even to the upper half of the bits. Those below it are left.
[[gnu::always_inline]] inline void RoundToUpper(const Lanes& x, Pairs* to) {
  Pairs bits;
  std::memcpy(&bits, &x, sizeof(bits));
  const Pairs rounded = bits + 0x7FFF + (bits >> 16 & 1);
  *to = x == x ? rounded : Pairs{} + 0x7FC00000;
}

[[gnu::always_inline]] inline void Store(const Row& row, int64_t pixel, Sums sums) {
  const Lanes low = Lanes{} + row.low, high = Lanes{} + row.high;
  for (Lanes* x : {&sums.even, &sums.odd}) {  // NaN compares false
    *x = *x < low ? low : *x;
    *x = *x > high ? high : *x;
  }
  Pairs lower, upper;
  RoundToUpper(sums.even, &lower);
  RoundToUpper(sums.odd, &upper);
  const Pairs both = lower >> 16 | (upper & 0xFFFF0000);
  std::memcpy(row.to + pixel * row.channels, &both, sizeof(both));
}

[[gnu::always_inline]] inline void Convolve(const Row& row, int64_t pixel) {
  Sums sums, x, weights;
  LoadPair(row.weights, &sums);
  for (int64_t tap = 0; tap < row.count; ++tap) {
    LoadPair(row.from + row.taps[tap].place + pixel * row.step, &x);
    LoadPair(row.weights + row.taps[tap].weight, &weights);
    sums.even += x.even * weights.even;
    sums.odd += x.odd * weights.odd;
  }
  Store(row, pixel, sums);
}

// Four pixels, whose windows have rows of three. An element is read once for the windows that it is in.
constexpr int64_t kAtOnce = 4, kThree = 3;

template <int64_t stride>
[[gnu::always_inline]] inline void ConvolveFour(const Row& row, int64_t pixel) {
  constexpr int64_t kElements = (kAtOnce - 1) * stride + kThree;
  Sums sums[kAtOnce], weights[kThree], x;
  LoadPair(row.weights, &sums[0]);
  for (int64_t p = 1; p < kAtOnce; ++p) sums[p] = sums[0];
  for (int64_t tap = 0; tap < row.count; tap += kThree) {
    for (int64_t k = 0; k < kThree; ++k) LoadPair(row.weights + row.taps[tap + k].weight, &weights[k]);
    const c10::BFloat16* const from = row.from + row.taps[tap].place + pixel * row.step;
#pragma GCC unroll 16
    for (int64_t element = 0; element < kElements; ++element) {
      LoadPair(from + element * row.channels, &x);
#pragma GCC unroll 16
      for (int64_t p = 0; p < kAtOnce; ++p) {
        const int64_t k = element - p * stride;
        if (k < 0 || k >= kThree) continue;
        sums[p].even += x.even * weights[k].even;
        sums[p].odd += x.odd * weights[k].odd;
      }
    }
  }
  for (int64_t p = 0; p < kAtOnce; ++p) Store(row, pixel + p, sums[p]);
}

FRAMETAP_WIDE_LOOP
void ConvolveRow(const Row& row, int64_t pixels) {
  int64_t p = 0;
  if (row.width == kThree && row.step == row.channels) {
    for (; p + kAtOnce <= pixels; p += kAtOnce) ConvolveFour<1>(row, p);
  } else if (row.width == kThree && row.step == 2 * row.channels) {
    for (; p + kAtOnce <= pixels; p += kAtOnce) ConvolveFour<2>(row, p);
  }
  for (; p < pixels; ++p) Convolve(row, p);
}

// The last block ends with the last channel, and shares some with the block before it.
int64_t FirstChannel(int64_t block, int64_t channels) { return std::min(block * kBlock, channels - kBlock); }
int64_t BlocksOf(int64_t channels) { return (channels + kBlock - 1) / kBlock; }

Window WindowOf(const onednn::Layer& layer, size_t axis, int64_t size, int64_t outputs) {
  return {size,
          layer.weight.size(2 + static_cast<int64_t>(axis)),
          layer.stride[axis],
          layer.padding[axis],
          layer.dilation[axis],
          outputs};
}

int64_t TapOf(const Window& w, int64_t output, int64_t element) {
  return (element + w.padding - output * w.stride) / w.dilation;
}

}  // namespace

bool Depthwise::Takes(const onednn::Layer& layer) {
  using onednn::Curve;
  const bool has_limits = layer.curve == Curve::kNone || layer.curve == Curve::kRelu || layer.curve == Curve::kClamp;
  return layer.weight.dim() == 4 && layer.reads_bfloat16 && layer.gives_bfloat16 && !layer.is_transposed &&
         !layer.has_addend && has_limits && layer.groups == layer.inputs() && layer.groups == layer.outputs() &&
         layer.groups >= kFewestChannels;
}

Depthwise::Depthwise(const onednn::Layer& layer)
    : layer_(layer),
      low_(layer.curve == onednn::Curve::kRelu    ? 0
           : layer.curve == onednn::Curve::kClamp ? layer.low
                                                  : -std::numeric_limits<float>::infinity()),
      high_(layer.curve == onednn::Curve::kClamp ? layer.high : std::numeric_limits<float>::infinity()) {
  const int64_t channels = layer.groups, taps = layer.weight.numel() / channels;
  const float* const weights = layer.weight.const_data_ptr<float>();
  const float* const bias = layer.bias.defined() ? layer.bias.const_data_ptr<float>() : nullptr;
  // Products of bfloat16 have weights of bfloat16.
  const auto weight = [&](int64_t channel, int64_t tap) { return ToFloat(ToBfloat16(weights[channel * taps + tap])); };
  for (int64_t block = 0; block < BlocksOf(channels); ++block) {
    for (int64_t tap = -1; tap < taps; ++tap) {
      for (int64_t i = 0; i < kBlock; ++i) {
        const int64_t channel = FirstChannel(block, channels) + i % kLanes * 2 + i / kLanes;
        weights_.push_back(tap >= 0 ? weight(channel, tap) : bias != nullptr ? bias[channel] : 0);
      }
    }
  }
}

bool Depthwise::TakesImages(const at::Tensor& x) const {
  return x.dim() == 4 && x.scalar_type() == at::kBFloat16 && x.size(1) == layer_.groups && x.numel() > 0 &&
         x.is_contiguous(at::MemoryFormat::ChannelsLast);
}

at::Tensor Depthwise::Run(const at::Tensor& x) const {
  const int64_t channels = layer_.groups, height = x.size(2), width = x.size(3);
  const onednn::Extent result = onednn::ResultOf(layer_, {{x.size(0), channels, height, width}});
  const Window wy = WindowOf(layer_, 0, height, result.sizes[2]), wx = WindowOf(layer_, 1, width, result.sizes[3]);
  at::Tensor y = at::detail::empty_cpu({x.size(0), channels, wy.outputs, wx.outputs}, at::kBFloat16, false,
                                       at::MemoryFormat::ChannelsLast);
  const auto* const from = x.const_data_ptr<c10::BFloat16>();
  auto* const to = y.mutable_data_ptr<c10::BFloat16>();
  const std::vector<Span> spans = SpansOf(wx);
  const int64_t block_size = (1 + wy.kernel * wx.kernel) * kBlock;
  const int64_t work = std::max<int64_t>(1, wx.outputs * channels * wy.kernel * wx.kernel);
  at::parallel_for(0, x.size(0) * wy.outputs, std::max<int64_t>(1, kGrain / work), [&](int64_t begin, int64_t end) {
    std::vector<Tap> taps;
    for (int64_t line = begin; line < end; ++line) {
      const int64_t oy = line % wy.outputs;
      const c10::BFloat16* const image = from + line / wy.outputs * height * width * channels;
      const std::vector<int64_t> rows = ElementsOf(wy, oy);
      for (const Span& span : spans) {
        taps.clear();
        for (const int64_t iy : rows) {
          const int64_t ky = TapOf(wy, oy, iy);
          for (const int64_t ix : span.elements) {
            taps.push_back({(iy * width + ix) * channels, (1 + ky * wx.kernel + TapOf(wx, span.first, ix)) * kBlock});
          }
        }
        for (int64_t block = 0; block < BlocksOf(channels); ++block) {
          const int64_t channel = FirstChannel(block, channels);
          ConvolveRow({image + channel, wx.stride * channels, weights_.data() + block * block_size, taps.data(),
                       static_cast<int64_t>(taps.size()), wx.dilation == 1 && span.count > 1 ? wx.kernel : 0, low_,
                       high_, to + (line * wx.outputs + span.first) * channels + channel, channels},
                      span.count);
        }
      }
    }
  });
  return y;
}

}  // namespace frametap::quant
