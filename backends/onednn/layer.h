// Layer: a linear layer, a convolution or a transposed convolution as data, on bytes or on floats.
//   Y1  Images of one, two or three axes lie pixel by pixel (channels_last). The type of the weight decides. With int8, there
//       is one scale for each output and no zero point; activations are uint8, and results are uint8, f32 or bfloat16. With
//       f32, activations and results are f32 or bfloat16, and nothing is quantized. Biases are f32.
//   Y2  The order is: products, bias, the accumulator or the addend, the curve, the output's scale and zero point.
//   Y3  Products that saturate (HasExactProducts of library.h) are the caller's matter: it keeps activations below 128.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>

namespace frametap::onednn {

struct Quantization {
  float scale = 1;
  int32_t zero_point = 0;
};

enum class Curve : uint8_t {
  kNone,
  kRelu,
  kClamp,
  kHardswish,
  kSwish,
  kGelu,
  kGeluTanh,
  kSigmoid,
  kHardsigmoid,
  kTanh,
  kLeakyRelu,
};

struct Layer {
  // [outputs, inputs], or [outputs, inputs / groups, window...]. Transposed: [inputs, outputs / groups, window...].
  at::Tensor weight;
  at::Tensor scales;  // of bytes: f32 [outputs]
  at::Tensor bias;    // f32 [outputs], or undefined
  Quantization x;
  std::optional<Quantization> out;          // none: the result is of floats
  std::optional<Quantization> accumulator;  // a run adds to bytes that are quantized so; none: it does not
  bool has_addend = false;                  // a run takes a tensor of the result's sizes and type, which is added
  bool multiplies_bfloat16 = false;         // on floats: products are of bfloat16, and their sums of f32
  bool reads_bfloat16 = false;              // with `multiplies_bfloat16`: the input is of it, and packed weights are
  bool gives_bfloat16 = false;  // the result is of it, and so is the addend; on floats with `reads_bfloat16`
  Curve curve = Curve::kNone;
  float low = 0, high = 0;  // of kClamp; `low`: the slope of kLeakyRelu below 0
  // For convolutions, by axis of the image. `output_padding`: of transposed ones; at most `padding`.
  std::array<int64_t, 3> stride{1, 1, 1}, padding{0, 0, 0}, dilation{1, 1, 1}, output_padding{0, 0, 0};
  int64_t groups = 1;
  bool is_transposed = false;

  at::ScalarType input_type() const { return !is_float() ? at::kByte : reads_bfloat16 ? at::kBFloat16 : at::kFloat; }
  at::ScalarType result_type() const { return out ? at::kByte : gives_bfloat16 ? at::kBFloat16 : at::kFloat; }
  bool is_float() const { return weight.scalar_type() == at::kFloat; }
  bool is_convolution() const { return weight.dim() > 2; }
  bool IsOfPixels() const;  // a convolution that is a linear layer of each pixel
  size_t axes() const { return static_cast<size_t>(weight.dim()) - 2; }
  int64_t window(size_t axis) const { return dilation[axis] * (weight.size(2 + static_cast<int64_t>(axis)) - 1) + 1; }
  int64_t outputs() const { return is_transposed ? weight.size(1) * groups : weight.size(0); }
  int64_t inputs() const { return is_transposed ? weight.size(0) : weight.size(1) * groups; }
};

// Sizes of an input or a result: rows, features; or images, channels, and the size of each axis. Others are 0.
struct Extent {
  std::array<int64_t, 5> sizes{0, 0, 0, 0, 0};
  friend bool operator==(const Extent&, const Extent&) = default;
};

// The same layer, on bytes, with fewer numbers for oneDNN to apply at each run, each of which costs a tenth of the time of a
// small layer. Scales of the input and, where the curve allows, of the output become part of the scales of the
// weights. A linear layer's zero point of the input becomes part of its bias.
Layer Folded(Layer layer);

// Throws c10::Error if the window is larger than the padded image, or if nothing is left of the result.
Extent ResultOf(const Layer& layer, const Extent& x);

}  // namespace frametap::onednn
