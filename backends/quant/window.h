// Window: where the windows of a pool or a convolution lie along one axis of an image.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
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

// Returns the results whose windows lie in the image: the first one, and the one after the last.
inline std::pair<int64_t, int64_t> Whole(const Window& w) {
  const int64_t room = w.size - 1 - w.dilation * (w.kernel - 1) + w.padding;
  const int64_t first = std::min((w.padding + w.stride - 1) / w.stride, w.outputs);
  return {first, std::clamp(room < 0 ? 0 : room / w.stride + 1, first, w.outputs)};
}

}  // namespace frametap::quant
