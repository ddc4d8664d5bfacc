// Window: where the windows of a pool or a convolution lie along one axis of an image.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace frametap::quant {

struct Window {
  int64_t size, kernel, stride, padding, dilation, outputs;
};

// Returns where a window's elements lie; those outside of the image are left out.
inline std::vector<int64_t> ElementsOf(const Window& w, int64_t output) {
  std::vector<int64_t> elements;
  for (int64_t k = 0; k < w.kernel; ++k) {
    const int64_t element = output * w.stride - w.padding + k * w.dilation;
    if (element >= 0 && element < w.size) elements.push_back(element);
  }
  return elements;
}

// Neighbouring results. Their windows have the same elements, counted from where each window begins.
struct Span {
  int64_t first, count;
  std::vector<int64_t> elements;  // of the first window
};

// Returns the results along an axis. Those whose windows lie in the image are one span, and each of the others is one.
inline std::vector<Span> SpansOf(const Window& w) {
  const int64_t room = w.size - 1 - w.dilation * (w.kernel - 1) + w.padding;
  const int64_t begin = std::min((w.padding + w.stride - 1) / w.stride, w.outputs);
  const int64_t end = std::clamp(room < 0 ? 0 : room / w.stride + 1, begin, w.outputs);
  std::vector<Span> spans;
  for (int64_t output = 0; output < w.outputs;) {
    const int64_t count = output == begin && begin < end ? end - begin : 1;
    spans.push_back({output, count, ElementsOf(w, output)});
    output += count;
  }
  return spans;
}

}  // namespace frametap::quant
