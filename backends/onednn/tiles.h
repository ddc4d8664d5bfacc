// Tiles: transposed convolutions whose windows neither overlap nor leave gaps, as in a U-Net. Each pixel of the image gives a
// window of the result, so the layer is a linear layer of the pixels. With AMX that takes a fifth to a half of the time, since
// oneDNN's AMX kernels of transposed convolutions cannot be used. Otherwise it takes longer, as results are written twice.
// Not here: runs (layer_kernel.h).
#pragma once

#include "backends/onednn/layer.h"

namespace frametap::onednn {

// Returns whether the layer is such a convolution, and adds nothing to its result.
bool GivesTiles(const Layer& layer);

// Returns whether it takes less time as such a linear layer.
bool PaysByPixel(const Layer& layer);

// Returns the linear layer of a pixel. It gives the outputs of each element of the window, in the order of the window.
Layer LayerOfPixels(const Layer& layer);

// Writes the outputs of `pixels`, [images, axes of an image..., window..., outputs], to their places in `result`, where
// images lie pixel by pixel. `x`: the sizes of the images before the layer.
void PlaceTiles(const Layer& layer, const Extent& x, const void* pixels, void* result);

}  // namespace frametap::onednn
