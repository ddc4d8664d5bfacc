#include "backends/onednn/tiles.h"

#include <ATen/Parallel.h>
#include <c10/util/accumulate.h>

#include <cstring>

#include "backends/onednn/library.h"

namespace frametap::onednn {

bool GivesTiles(const Layer& layer) {
  if (!layer.is_transposed || layer.groups != 1 || layer.has_addend || layer.accumulator) return false;
  for (size_t i = 0; i < layer.axes(); ++i) {
    if (layer.window(i) != layer.stride[i] || layer.dilation[i] != 1 || layer.padding[i] != 0) return false;
  }
  return true;
}

bool PaysByPixel(const Layer& layer) {
  return GivesTiles(layer) && (!layer.is_float() || layer.reads_bfloat16) && HasTiles();
}

Layer LayerOfPixels(const Layer& layer) {
  const int64_t inputs = layer.inputs(), outputs = layer.outputs();
  const int64_t elements = layer.weight.numel() / (inputs * outputs);
  Layer linear = layer;
  linear.weight = layer.weight.reshape({inputs, outputs, elements}).permute({2, 1, 0}).reshape({-1, inputs});
  if (layer.scales.defined()) linear.scales = layer.scales.repeat({elements});
  if (layer.bias.defined()) linear.bias = layer.bias.repeat({elements});
  linear.is_transposed = false;
  linear.stride.fill(1);
  return linear;
}

void PlaceTiles(const Layer& layer, const Extent& x, const void* pixels, void* result) {
  // As images of three axes, the first of which may have size 1.
  std::array<int64_t, 3> sizes{1, 1, 1}, window{1, 1, 1};
  const size_t missing = 3 - layer.axes();
  for (size_t i = 0; i < layer.axes(); ++i) {
    sizes[missing + i] = x.sizes[2 + i];
    window[missing + i] = layer.stride[i];
  }
  const auto [planes, rows, columns] = sizes;
  const auto row = static_cast<size_t>(window[2] * layer.outputs()) * c10::elementSize(layer.result_type());
  const int64_t elements = window[0] * window[1];
  constexpr int64_t kBytes = 32768;  // that are worth a thread
  const int64_t grain = kBytes / (columns * elements * static_cast<int64_t>(row));
  at::parallel_for(0, x.sizes[0] * planes * rows, std::max<int64_t>(1, grain), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t plane = i / rows, y = i % rows;
      for (int64_t element = 0; element < elements; ++element) {
        const int64_t to_plane = plane * window[0] + element / window[1];
        const int64_t to_row = to_plane * rows * window[1] + y * window[1] + element % window[1];
        const auto* from =
            static_cast<const char*>(pixels) + static_cast<size_t>(i * columns * elements + element) * row;
        auto* to = static_cast<char*>(result) + static_cast<size_t>(to_row * columns) * row;
        for (int64_t column = 0; column < columns; ++column) {
          std::memcpy(to, from, row);
          from += static_cast<size_t>(elements) * row;
          to += row;
        }
      }
    }
  });
}

}  // namespace frametap::onednn
