// Depthwise against convolutions in float64, for any window, and next to oneDNN's kernel of the same layer.
// Laws: depthwise/D1, depthwise/D2
#include "backends/quant/depthwise.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <limits>

#include "backends/onednn/layer_kernel.h"
#include "backends/onednn/library.h"

namespace frametap::quant {
namespace {

using onednn::Curve;
using onednn::Layer;

int64_t Pick(int64_t from, int64_t to) { return at::randint(from, to + 1, {1}, at::kLong).item<int64_t>(); }

Layer Random() {
  Layer layer;
  const int64_t channels = Depthwise::kFewestChannels + Pick(0, 2) * Pick(0, 40);
  const bool is_three = Pick(0, 1) == 1;  // the form that is unrolled
  layer.weight = at::randn({channels, 1, Pick(1, 4), is_three ? 3 : Pick(1, 5)});
  if (Pick(0, 1) == 1) layer.bias = at::randn({channels});
  for (size_t i = 0; i < 2; ++i) {
    layer.stride[i] = Pick(1, 3);
    layer.dilation[i] = i == 1 && is_three ? 1 : Pick(1, 2);
    layer.padding[i] = Pick(0, 2);
  }
  layer.groups = channels;
  layer.multiplies_bfloat16 = layer.reads_bfloat16 = layer.gives_bfloat16 = true;
  layer.curve = std::array{Curve::kNone, Curve::kRelu, Curve::kClamp}[static_cast<size_t>(Pick(0, 2))];
  layer.low = -0.5f;
  layer.high = 1.5f;
  return layer;
}

at::Tensor RandomImages(const Layer& layer) {
  const auto size = [&](size_t axis) { return layer.window(axis) - 1 + Pick(1, 14); };
  return at::randn({Pick(1, 3), layer.groups, size(0), size(1)})
      .to(at::kBFloat16)
      .contiguous(at::MemoryFormat::ChannelsLast);
}

at::Tensor Wanted(const Layer& layer, const at::Tensor& x) {
  const auto two = [](const std::array<int64_t, 3>& all) { return std::vector<int64_t>(all.begin(), all.begin() + 2); };
  const at::Tensor weight = layer.weight.to(at::kBFloat16).to(at::kDouble);
  const at::Tensor bias = layer.bias.defined() ? layer.bias.to(at::kDouble) : at::Tensor();
  const at::Tensor sum = at::convolution(x.to(at::kDouble), weight, bias, two(layer.stride), two(layer.padding),
                                         two(layer.dilation), false, {0, 0}, layer.groups);
  return layer.curve == Curve::kRelu ? sum.relu() : layer.curve == Curve::kClamp ? sum.clamp(-0.5, 1.5) : sum;
}

TEST(DepthwiseTest, D1_AnyWindowIsRoundedOnce) {
  const at::NoGradGuard no_grad;
  at::manual_seed(3);
  for (int i = 0; i < 300; ++i) {
    const Layer layer = Random();
    ASSERT_TRUE(Depthwise::Takes(layer));
    const Depthwise kernel(layer);
    const at::Tensor x = RandomImages(layer);
    ASSERT_TRUE(kernel.TakesImages(x));
    const at::Tensor got = kernel.Run(x), want = Wanted(layer, x);
    ASSERT_EQ(got.sizes(), want.sizes());
    ASSERT_TRUE(got.is_contiguous(at::MemoryFormat::ChannelsLast));
    // Half a step of bfloat16 is a 256th; sums of float32 may cross the middle of a step.
    const at::Tensor apart = (got.to(at::kDouble) - want).abs() - want.abs() / 250;
    ASSERT_LT(apart.max().item<double>(), 1e-5) << layer.weight.sizes() << " of " << x.sizes();
  }
}

TEST(DepthwiseTest, OnednnGivesTheSame) {
  const at::NoGradGuard no_grad;
  ASSERT_TRUE(onednn::Load().ok()) << onednn::Load();
  if (!onednn::HasBfloat16Products()) GTEST_SKIP() << "no products of bfloat16";
  at::manual_seed(4);
  for (int i = 0; i < 40; ++i) {
    const Layer layer = Random();
    const at::Tensor x = RandomImages(layer);
    onednn::LayerKernel kernel(layer);
    const at::Tensor apart = (Depthwise(layer).Run(x).to(at::kDouble) - kernel.Run(x).to(at::kDouble)).abs();
    ASSERT_LT((apart - kernel.Run(x).to(at::kDouble).abs() / 100).max().item<double>(), 1e-2);
  }
}

TEST(DepthwiseTest, D2_NanAndInfinityStay) {
  const at::NoGradGuard no_grad;
  Layer layer;
  layer.weight = at::randn({40, 1, 1, 3}).abs() + 0.1;
  layer.groups = 40;
  layer.padding = {0, 1, 0};
  layer.multiplies_bfloat16 = layer.reads_bfloat16 = layer.gives_bfloat16 = true;
  at::Tensor x = at::randn({1, 40, 2, 9}).to(at::kBFloat16).contiguous(at::MemoryFormat::ChannelsLast);
  x.select(2, 0).select(2, 4).fill_(std::numeric_limits<float>::quiet_NaN());
  x.select(2, 1).select(2, 4).fill_(std::numeric_limits<float>::infinity());
  for (const Curve curve : {Curve::kNone, Curve::kRelu, Curve::kClamp}) {
    layer.curve = curve;
    layer.low = -3;
    layer.high = std::numeric_limits<float>::infinity();
    const at::Tensor got = Depthwise(layer).Run(x), want = Wanted(
                                                        [&] {
                                                          Layer plain = layer;
                                                          plain.curve = Curve::kNone;
                                                          return plain;
                                                        }(),
                                                        x);
    EXPECT_TRUE(at::isnan(got).equal(at::isnan(want)));
    EXPECT_TRUE((got == std::numeric_limits<float>::infinity()).equal(want == std::numeric_limits<double>::infinity()));
  }
  // Rounding would make minus zero of the bits of this NaN.
  layer.weight[0][0][0][1] = at::randint(0x7FFFFFFF, 0x80000000, {1}, at::kLong).to(at::kInt).view(at::kFloat)[0];
  EXPECT_TRUE(at::isnan(Depthwise(layer).Run(x)).select(1, 0).all().item<bool>());
}

TEST(DepthwiseTest, OtherLayersAreOnednns) {
  const auto takes = [](const auto& change) {
    Layer layer = Random();
    layer.weight = at::randn({64, 1, 3, 3});
    layer.groups = 64;
    change(&layer);
    return Depthwise::Takes(layer);
  };
  EXPECT_TRUE(takes([](Layer*) {}));
  EXPECT_FALSE(takes([](Layer* l) { l->gives_bfloat16 = false; }));
  EXPECT_FALSE(takes([](Layer* l) { l->reads_bfloat16 = false; }));
  EXPECT_FALSE(takes([](Layer* l) { l->has_addend = true; }));
  EXPECT_FALSE(takes([](Layer* l) { l->is_transposed = true; }));
  EXPECT_FALSE(takes([](Layer* l) { l->curve = Curve::kHardswish; }));
  EXPECT_FALSE(takes([](Layer* l) { l->weight = at::randn({128, 1, 3, 3}); }));  // two outputs for each input
  EXPECT_FALSE(takes([](Layer* l) { l->weight = at::randn({64, 2, 3, 3}), l->groups = 32; }));
  EXPECT_FALSE(takes([](Layer* l) { l->weight = at::randn({31, 1, 3, 3}), l->groups = 31; }));
  EXPECT_FALSE(takes([](Layer* l) { l->weight = at::randn({64, 1, 3}); }));
}

}  // namespace
}  // namespace frametap::quant
