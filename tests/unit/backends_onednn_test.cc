// LayerKernel against products in float64, for any shape, window, group, zero point and curve, on bytes and on floats. Also
// its cache and threads. CTest runs it once more for each instruction set of oneDNN (tests/CMakeLists.txt).
// Laws: layer_kernel/K1, layer_kernel/K3, layer_kernel/K5
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/movedim.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <sstream>
#include <thread>

#include "backends/onednn/layer_kernel.h"
#include "backends/onednn/library.h"
#include "backends/onednn/tiles.h"
#include "tests/unit/onednn_fixture.h"

namespace frametap::onednn {
namespace {

int64_t Limit() { return HasExactProducts() ? 256 : 128; }  // layer/Y3

int64_t Pick(int64_t from, int64_t to) { return at::randint(from, to + 1, {1}, at::kLong).item<int64_t>(); }

Curve AnyCurve() { return static_cast<Curve>(Pick(0, static_cast<int64_t>(Curve::kLeakyRelu))); }

at::Tensor Bytes(at::IntArrayRef sizes) { return at::randint(0, Limit(), sizes, at::kByte); }

at::Tensor Real(const at::Tensor& bytes, const Quantization& q) {
  return (bytes.to(at::kDouble) - q.zero_point) * static_cast<double>(q.scale);
}

at::Tensor WeightOf(const Layer& layer) {
  if (layer.is_float()) return layer.weight.to(at::kDouble);
  // One row of scales for each group of a transposed convolution: its outputs are in the second dimension.
  const int64_t groups = layer.is_transposed ? layer.groups : 1;
  std::vector<int64_t> by_group(layer.weight.sizes().begin(), layer.weight.sizes().end());
  by_group[0] /= groups;
  by_group.insert(by_group.begin(), groups);
  std::vector<int64_t> each(by_group.size(), 1);
  each[0] = groups;
  each[layer.is_transposed ? 2 : 1] = -1;
  const at::Tensor weight = layer.weight.to(at::kDouble).view(by_group) * layer.scales.to(at::kDouble).view(each);
  return weight.view(layer.weight.sizes());
}

at::Tensor Convolved(const Layer& layer, const at::Tensor& x, const at::Tensor& bias) {
  const size_t axes = layer.axes();
  const auto list = [&](const auto& numbers) { return at::IntArrayRef(numbers).slice(0, axes).vec(); };
  return at::convolution(x, WeightOf(layer), bias, list(layer.stride), list(layer.padding), list(layer.dilation),
                         layer.is_transposed, list(layer.output_padding), layer.groups);
}

at::Tensor Products(const Layer& layer, const at::Tensor& x) {
  const at::Tensor bias = layer.bias.defined() ? layer.bias.to(at::kDouble) : at::Tensor();
  return layer.is_convolution() ? Convolved(layer, x, bias) : at::linear(x, WeightOf(layer), bias);
}

// In float64; bytes where the layer gives bytes.
at::Tensor Wanted(const Layer& layer, const at::Tensor& x, const at::Tensor& accumulator) {
  at::Tensor real = Products(layer, Real(x, layer.x));
  if (layer.accumulator) real = real + Real(accumulator, *layer.accumulator);
  real = Curved(real, layer);
  if (!layer.out) return real;
  return (real / layer.out->scale).round().add(layer.out->zero_point).clamp(0, 255);
}

// Largest difference: in steps of the output's scale, or for f32 in millionths of its largest value.
double Difference(const Layer& layer, const at::Tensor& got, const at::Tensor& want) {
  const double apart = (got.to(at::kDouble) - want).abs().max().item<double>();
  return layer.out ? apart : 1e6 * apart / std::max(1e-3, want.abs().max().item<double>());
}

Layer Random(bool is_convolution) {
  Layer layer;
  int64_t products = 0;
  if (is_convolution) {
    const int64_t kind = Pick(0, 3);  // dense, a few groups, depthwise, depthwise with a factor
    const int64_t inputs = Pick(1, 3) * Pick(1, 24);
    layer.groups = kind == 0 ? 1 : kind == 1 ? 2 : inputs;
    const int64_t in = kind == 1 ? inputs * 2 : inputs;
    const int64_t outputs = kind == 0 ? Pick(1, 40) : kind == 1 ? 2 * Pick(1, 20) : kind == 2 ? in : in * 2;
    layer.is_transposed = Pick(0, 2) == 0;
    std::vector<int64_t> sizes{outputs, in / layer.groups};
    if (layer.is_transposed) sizes = {in, outputs / layer.groups};
    for (int64_t i = Pick(1, 3); i > 0; --i) sizes.push_back(Pick(1, 4));
    layer.weight = at::randint(-127, 128, sizes, at::kChar);
    for (size_t i = 0; i < layer.axes(); ++i) {
      layer.stride[i] = Pick(1, 3);
      layer.dilation[i] = Pick(1, 2);
      layer.padding[i] = Pick(0, 2);
      if (layer.is_transposed) {
        // No more than the window, so that something is left.
        layer.padding[i] = std::min(layer.padding[i], (layer.window(i) - 1) / 2);
        const int64_t below = std::max(layer.stride[i], layer.dilation[i]) - 1;
        layer.output_padding[i] = Pick(0, std::min(layer.padding[i], below));
      }
    }
  } else {
    layer.weight = at::randint(-127, 128, {Pick(1, 70), Pick(1, 90)}, at::kChar);
  }
  products = std::max<int64_t>(1, layer.weight.numel() / layer.outputs());
  layer.scales = at::rand({layer.outputs()}).mul(0.01).add(0.001);
  if (Pick(0, 1) == 1) layer.bias = at::randn({layer.outputs()});
  layer.x = {0.02f, static_cast<int32_t>(Pick(0, 1) * Pick(0, Limit() - 1))};
  layer.curve = AnyCurve();
  layer.low = layer.curve == Curve::kLeakyRelu ? 0.1f : -0.5f;
  layer.high = 1.5f;
  if (Pick(0, 3) != 0) {
    layer.out = Quantization{0.01f * std::sqrt(static_cast<float>(products)), static_cast<int32_t>(Pick(0, 2) * 64)};
  }
  if (is_convolution && !layer.is_transposed && layer.out && Pick(0, 1) == 1) {
    layer.accumulator = Quantization{0.03f, static_cast<int32_t>(Pick(0, 1) * Pick(0, 255))};
    layer.curve = Pick(0, 1) == 1 ? Curve::kRelu : Curve::kNone;
  }
  return layer;
}

// The same layer on floats, with any curve.
Layer FloatForm(Layer layer) {
  layer.weight = layer.weight.to(at::kFloat).mul(0.01f);
  layer.scales = at::Tensor();
  layer.out.reset();
  layer.accumulator.reset();
  layer.curve = AnyCurve();
  if (layer.curve == Curve::kLeakyRelu) layer.low = 0.1f;
  layer.has_addend = Pick(0, 1) == 1;
  return layer;
}

at::Tensor PixelByPixel(const at::Tensor& images) { return images.movedim(1, -1).contiguous().movedim(-1, 1); }

at::Tensor RandomInput(const Layer& layer) {
  if (!layer.is_convolution()) {
    if (Pick(0, 1) == 1) return Bytes({Pick(1, 20), layer.inputs()});
    return Bytes({Pick(1, 4), Pick(1, 9), layer.inputs()}).transpose(0, 1);
  }
  std::vector<int64_t> sizes{Pick(1, 3), layer.inputs()};
  const int64_t longest = layer.axes() == 3 ? 5 : 12;
  for (size_t i = 0; i < layer.axes(); ++i) {
    sizes.push_back(layer.is_transposed ? Pick(1, longest) : layer.window(i) - 1 + Pick(1, longest));
  }
  const at::Tensor x = Bytes(sizes);
  return Pick(0, 1) == 1 ? PixelByPixel(x) : x;
}

std::string TextOf(const Layer& layer, const at::Tensor& x) {
  std::ostringstream text;
  text << (layer.is_transposed ? "transposed " : "") << "weight " << layer.weight.sizes() << " x " << x.sizes()
       << " zero " << layer.x.zero_point << " groups " << layer.groups << " stride " << at::IntArrayRef(layer.stride)
       << " padding " << at::IntArrayRef(layer.padding) << " more " << at::IntArrayRef(layer.output_padding)
       << " dilation " << at::IntArrayRef(layer.dilation) << " curve " << static_cast<int>(layer.curve) << " bias "
       << layer.bias.defined();
  if (layer.out) text << " out " << layer.out->scale << "+" << layer.out->zero_point;
  if (layer.accumulator) text << " accumulator " << layer.accumulator->zero_point;
  return text.str();
}

class Onednn : public OnednnFixture {};

TEST_F(Onednn, AnyLayerIsWithinOneStepOfItsProducts) {
  for (int i = 0; i < 400; ++i) {
    const Layer layer = Random(i % 2 == 0);
    LayerKernel kernel(layer);
    for (int run = 0; run < 2; ++run) {  // of two sizes
      const at::Tensor x = RandomInput(layer);
      at::Tensor accumulator;
      if (layer.accumulator) {
        accumulator = at::randint(0, 256,
                                  Wanted(
                                      [&] {
                                        Layer alone = layer;
                                        alone.accumulator.reset();
                                        return alone;
                                      }(),
                                      x, {})
                                      .sizes(),
                                  at::kByte);
        accumulator = PixelByPixel(accumulator);
      }
      const at::Tensor want = Wanted(layer, x, accumulator);
      at::Tensor got;
      ASSERT_NO_THROW(got = layer.accumulator ? kernel.RunInto(x, accumulator) : kernel.Run(x)) << TextOf(layer, x);
      ASSERT_EQ(got.sizes(), want.sizes()) << TextOf(layer, x);
      ASSERT_EQ(got.scalar_type(), layer.out ? at::kByte : at::kFloat);
      ASSERT_LE(Difference(layer, got, want), layer.out ? 1 : 50) << TextOf(layer, x);
      if (layer.accumulator) {
        EXPECT_TRUE(got.is_same(accumulator));
      }
    }
  }
}

// In float64.
at::Tensor WantedOfFloats(const Layer& layer, const at::Tensor& x, const at::Tensor& addend) {
  at::Tensor sum = Products(layer, x.to(at::kDouble));
  if (addend.defined()) sum = sum + addend.to(at::kDouble);
  return Curved(sum, layer);
}

TEST_F(Onednn, AnyLayerOnFloatsIsItsProducts) {
  for (int i = 0; i < 400; ++i) {
    Layer layer = FloatForm(Random(i % 2 == 0));
    layer.multiplies_bfloat16 = i % 4 == 3;
    layer.reads_bfloat16 = i % 8 == 3 && HasBfloat16Products();
    layer.gives_bfloat16 = layer.reads_bfloat16 && i % 16 == 3;
    LayerKernel kernel(layer);
    for (int run = 0; run < 2; ++run) {  // of two sizes
      const at::Tensor x = RandomInput(layer).to(at::kFloat).sub(100).mul(0.01f).to(layer.input_type());
      Layer alone = layer;
      alone.curve = Curve::kNone;
      const at::Tensor sizes = WantedOfFloats(alone, x, {});
      at::Tensor addend;
      if (layer.has_addend)
        addend = Pick(0, 1) == 1 ? at::randn(sizes.sizes()) : PixelByPixel(at::randn(sizes.sizes()));
      if (addend.defined()) addend = addend.to(layer.result_type());
      const at::Tensor want = WantedOfFloats(layer, x, addend);
      at::Tensor got;
      ASSERT_NO_THROW(got = kernel.Run(x, addend.defined() ? &addend : nullptr)) << TextOf(layer, x);
      ASSERT_EQ(got.sizes(), want.sizes()) << TextOf(layer, x);
      ASSERT_EQ(got.scalar_type(), layer.result_type());
      // bfloat16 has 8 bits; errors of many products partly cancel.
      ASSERT_LE(Difference(layer, got, want), layer.multiplies_bfloat16 ? 60000 : 50) << TextOf(layer, x);
    }
  }
}

Layer RandomTiles() {
  Layer layer = Random(true);
  while (!layer.is_transposed) layer = Random(true);
  layer.groups = 1;
  layer.padding.fill(0);
  layer.dilation.fill(1);
  layer.output_padding.fill(0);
  for (size_t i = 0; i < layer.axes(); ++i) layer.stride[i] = layer.window(i);
  layer.scales = at::rand({layer.outputs()}).mul(0.01).add(0.001);
  if (layer.bias.defined()) layer.bias = at::randn({layer.outputs()});
  return layer;
}

TEST_F(Onednn, K5_TilesAreALinearLayerOfThePixels) {
  for (int i = 0; i < 200; ++i) {
    Layer layer = RandomTiles();
    if (i % 2 == 1) {
      layer = FloatForm(layer);
      layer.has_addend = false;
      layer.multiplies_bfloat16 = layer.reads_bfloat16 = layer.gives_bfloat16 = i % 4 == 3 && HasBfloat16Products();
    }
    EXPECT_TRUE(GivesTiles(layer)) << TextOf(layer, {});
    LayerKernel kernel(layer);
    at::Tensor x = RandomInput(layer);
    kernel.Prepare(x.sizes());
    const int64_t made = kernel.counts().made;
    if (layer.is_float()) x = x.to(at::kFloat).sub(100).mul(0.01f).to(layer.input_type());
    const at::Tensor got = kernel.Run(x), want = Wanted(layer, x, {});
    ASSERT_EQ(got.sizes(), want.sizes()) << TextOf(layer, x);
    const double most = layer.out ? 1 : layer.multiplies_bfloat16 ? 60000 : 50;
    ASSERT_LE(Difference(layer, got, layer.is_float() ? WantedOfFloats(layer, x, {}) : want), most) << TextOf(layer, x);
    EXPECT_EQ(kernel.counts().made, made);
  }
}

TEST_F(Onednn, K5_LargeImagesAreSomeRowsAtATime) {
  Layer layer;
  layer.weight = at::randint(-127, 128, {20, 33, 3, 2}, at::kChar);
  layer.scales = at::rand({33}).mul(0.01);
  layer.x = {0.02f, 3};
  layer.is_transposed = true;
  layer.stride = {3, 2, 1};
  LayerKernel kernel(layer);
  const at::Tensor x = Bytes({7, 20, 21, 23});  // a megabyte is 57 rows of 23 x 198 floats, and 33 are left of 147
  EXPECT_LE(Difference(layer, kernel.Run(x), Wanted(layer, x, {})), 50);
  EXPECT_EQ(PaysByPixel(layer), HasTiles());
  EXPECT_EQ(kernel.counts().sizes, HasTiles() ? 2 : 1);
}

TEST_F(Onednn, TilesPayWithAmxAndFewBits) {
  Layer layer = RandomTiles();
  EXPECT_EQ(PaysByPixel(layer), HasTiles());
  layer = FloatForm(layer);
  layer.has_addend = false;
  EXPECT_FALSE(PaysByPixel(layer));
  layer.multiplies_bfloat16 = layer.reads_bfloat16 = true;
  EXPECT_EQ(PaysByPixel(layer), HasTiles());
}

TEST_F(Onednn, OnlyWindowsSideBySideAreTiles) {
  Layer tiles;
  tiles.weight = at::randn({4, 5, 2, 2});
  tiles.is_transposed = true;
  tiles.stride = {2, 2, 1};
  ASSERT_TRUE(GivesTiles(tiles));
  const auto changed = [&](const auto& change) {
    Layer layer = tiles;
    change(layer);
    return GivesTiles(layer);
  };
  EXPECT_FALSE(changed([](Layer& l) { l.is_transposed = false; }));
  EXPECT_FALSE(changed([](Layer& l) { l.stride = {2, 1, 1}; }));  // they overlap
  EXPECT_FALSE(changed([](Layer& l) { l.stride = {3, 2, 1}; }));  // gaps
  EXPECT_FALSE(changed([](Layer& l) { l.padding = {1, 0, 0}; }));
  EXPECT_FALSE(changed([](Layer& l) { l.dilation = {1, 2, 1}; }));
  EXPECT_FALSE(changed([](Layer& l) { l.groups = 2; }));
  EXPECT_FALSE(changed([](Layer& l) { l.has_addend = true; }));
}

TEST_F(Onednn, OneImageAndNoRows) {
  Layer layer = Random(true);
  while (layer.accumulator || layer.axes() != 2) layer = Random(true);
  LayerKernel convolution(layer);
  const at::Tensor x = Bytes({layer.inputs(), 9, 9});
  EXPECT_LE(Difference(layer, convolution.Run(x), Wanted(layer, x.unsqueeze(0), {}).squeeze(0)), layer.out ? 1 : 50);
  EXPECT_EQ(convolution.Run(Bytes({0, layer.inputs(), 9, 9})).size(0), 0);
  Layer plain;
  plain.weight = at::randint(-127, 128, {4, 3}, at::kChar);
  plain.scales = at::rand({4});
  LayerKernel linear(plain);
  EXPECT_EQ(linear.Run(Bytes({2, 0, 3})).sizes(), at::IntArrayRef({2, 0, 4}));
  EXPECT_EQ(linear.Run(Bytes({3})).sizes(), at::IntArrayRef({4}));
}

TEST_F(Onednn, AnAccumulatorOfAnotherLayoutIsCopied) {
  Layer layer;
  layer.weight = at::randint(-127, 128, {6, 5, 1, 1}, at::kChar);
  layer.scales = at::rand({6}).mul(0.01);
  layer.x = {0.02f, 3};
  layer.out = Quantization{0.1f, 7};
  layer.accumulator = Quantization{0.05f, 9};
  LayerKernel kernel(layer);
  const at::Tensor x = Bytes({2, 5, 4, 3});
  const at::Tensor accumulator = Bytes({2, 6, 4, 3});
  const at::Tensor before = accumulator.clone();
  const at::Tensor got = kernel.RunInto(x, accumulator);
  EXPECT_LE(Difference(layer, got, Wanted(layer, x, before)), 1);
  EXPECT_TRUE(accumulator.equal(before));
}

Layer Small() {
  Layer layer;
  layer.weight = at::randint(-127, 128, {24, 32}, at::kChar);
  layer.scales = at::rand({24}).mul(0.01);
  layer.x = {0.02f, 3};
  layer.out = Quantization{0.1f, 100};
  return layer;
}

TEST_F(Onednn, K1_TheSizesThatAreKeptAreBounded) {
  const Layer layer = Small();
  LayerKernel kernel(layer);
  kernel.Prepare({1, 32});
  EXPECT_EQ(kernel.counts().made, 1);
  for (int64_t rows = 1; rows <= 20; ++rows) {
    const at::Tensor x = Bytes({rows, 32});
    EXPECT_LE(Difference(layer, kernel.Run(x), Wanted(layer, x, {})), 1);
    kernel.Run(Bytes({1, 32}));  // used at all times, so never dropped
  }
  EXPECT_EQ(kernel.counts().made, 20);
  EXPECT_EQ(kernel.counts().sizes, static_cast<int64_t>(LayerKernel::kMaxSizes));
  EXPECT_EQ(kernel.counts().dropped, 20 - static_cast<int64_t>(LayerKernel::kMaxSizes));
}

TEST_F(Onednn, K1_AnotherNumberOfThreadsIsAnotherPrimitive) {
  const Layer layer = Small();
  LayerKernel kernel(layer);
  const at::Tensor x = Bytes({64, 32});
  for (const int threads : {1, 2, 3, 1}) {
    at::set_num_threads(threads);
    EXPECT_LE(Difference(layer, kernel.Run(x), Wanted(layer, x, {})), 1) << threads;
  }
  EXPECT_EQ(kernel.counts().made, 3);
}

TEST_F(Onednn, K3_ThreadsShareAKernel) {
  const Layer layer = Small();
  LayerKernel kernel(layer);
  std::vector<at::Tensor> inputs, wanted;
  for (int64_t rows = 1; rows <= 40; ++rows) {  // more than are kept
    inputs.push_back(Bytes({rows, 32}));
    wanted.push_back(Wanted(layer, inputs.back(), {}));
  }
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < 400; ++i) {
        const size_t at = (i * 7 + t) % inputs.size();
        if (Difference(layer, kernel.Run(inputs[at]), wanted[at]) > 1) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(Onednn, AnAddendThatDoesNotFitIsSaid) {
  Layer layer;
  layer.weight = at::randn({24, 32});
  const at::Tensor x = at::randn({2, 32}), addend = at::randn({2, 24});
  EXPECT_THROW(LayerKernel(layer).Run(x, &addend), c10::Error);
  layer.has_addend = true;
  LayerKernel kernel(layer);
  EXPECT_THROW(kernel.Run(x), c10::Error);
  EXPECT_EQ(kernel.Run(x, &addend).sizes(), addend.sizes());
  const at::Tensor row = at::randn({1, 24}), whole = at::randint(0, 9, {2, 24});
  EXPECT_THROW(kernel.Run(x, &row), c10::Error);
  EXPECT_THROW(kernel.Run(x, &whole), c10::Error);
  EXPECT_THROW(kernel.Run(Bytes({2, 32}), &addend), c10::Error);
  layer = Small();
  layer.has_addend = true;
  EXPECT_THROW(LayerKernel{layer}, c10::Error);
}

TEST_F(Onednn, WhatDoesNotFitIsSaid) {
  LayerKernel kernel(Small());
  EXPECT_THROW(kernel.Run(Bytes({2, 31})), c10::Error);
  EXPECT_THROW(kernel.Run(at::randn({2, 32})), c10::Error);
  EXPECT_THROW(kernel.RunInto(Bytes({2, 32}), Bytes({2, 24})), c10::Error);
  Layer layer = Small();
  layer.scales = at::rand({23});
  EXPECT_THROW(LayerKernel{layer}, c10::Error);
  layer = Small();
  layer.weight = at::zeros({24, 0}, at::kChar);
  EXPECT_THROW(LayerKernel{layer}, c10::Error);
  layer = Small();
  layer.weight = at::zeros({24, 3, 5, 5}, at::kChar);
  LayerKernel convolution(layer);
  EXPECT_THROW(convolution.Run(Bytes({1, 3, 4, 9})), c10::Error);
  EXPECT_EQ(convolution.Run(Bytes({1, 3, 5, 9})).sizes(), at::IntArrayRef({1, 24, 1, 5}));
}

}  // namespace
}  // namespace frametap::onednn
