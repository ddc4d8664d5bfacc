#include "backends/onednn/layer.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace frametap::onednn {
namespace {

// Sums of products are exact in int32 and become f32 before the bias is added. For more inputs the two are so large that
// their rounding could be seen in a result of f32.
constexpr int64_t kMostInputsToFold = 4096;

// curve(x / s) is curve(x) / s, where `s` is the scale.
bool KeepsScale(Curve curve) {
  return curve == Curve::kNone || curve == Curve::kRelu || curve == Curve::kClamp || curve == Curve::kLeakyRelu;
}

int64_t OutputsAlong(const Layer& layer, size_t axis, int64_t size) {
  const int64_t window = layer.window(axis);
  const int64_t padding = 2 * layer.padding[axis] - layer.output_padding[axis];
  if (layer.is_transposed) {
    const int64_t outputs = (size - 1) * layer.stride[axis] + window - padding;
    TORCH_CHECK(outputs > 0, "transposed convolution: padding of ", padding, " leaves nothing of the result");
    return outputs;
  }
  const int64_t room = size + padding - window;
  TORCH_CHECK(room >= 0, "convolution: the window of ", window, " is larger than the padded image of ", size + padding);
  return room / layer.stride[axis] + 1;
}

}  // namespace

bool Layer::IsOfPixels() const {
  const auto all = [](const std::array<int64_t, 3>& numbers, int64_t number) {
    return std::all_of(numbers.begin(), numbers.end(), [=](int64_t n) { return n == number; });
  };
  return is_convolution() && !is_transposed && groups == 1 && weight.numel() == inputs() * outputs() &&
         all(stride, 1) && all(padding, 0);
}

Layer Folded(Layer layer) {
  at::Tensor scales = layer.scales.to(at::kDouble).mul(static_cast<double>(layer.x.scale));
  at::Tensor bias = layer.bias.defined() ? layer.bias.to(at::kDouble) : at::Tensor();
  layer.x.scale = 1;
  if (!layer.is_convolution() && layer.x.zero_point != 0 && layer.inputs() <= kMostInputsToFold) {
    if (!bias.defined()) bias = at::zeros({layer.outputs()}, at::kDouble);
    bias = bias.sub(layer.weight.to(at::kDouble).sum(1).mul(scales).mul(layer.x.zero_point));
    layer.x.zero_point = 0;
  }
  if (layer.out && KeepsScale(layer.curve)) {
    const double inverse = 1.0 / layer.out->scale;
    scales = scales.mul(inverse);
    if (bias.defined()) bias = bias.mul(inverse);
    if (layer.accumulator) layer.accumulator->scale = static_cast<float>(layer.accumulator->scale * inverse);
    if (layer.curve == Curve::kClamp) {
      layer.low = static_cast<float>(layer.low * inverse);
      layer.high = static_cast<float>(layer.high * inverse);
    }
    layer.out->scale = 1;
  }
  layer.scales = scales.to(at::kFloat);
  if (bias.defined()) layer.bias = bias.to(at::kFloat);
  return layer;
}

Extent ResultOf(const Layer& layer, const Extent& x) {
  if (!layer.is_convolution()) return {{x.sizes[0], layer.outputs()}};
  Extent result{{x.sizes[0], layer.outputs()}};
  for (size_t i = 0; i < layer.axes(); ++i) result.sizes[2 + i] = OutputsAlong(layer, i, x.sizes[2 + i]);
  return result;
}

}  // namespace frametap::onednn
