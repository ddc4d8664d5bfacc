// Laws: params/P1, params/P2, params/P3, statistics/S1, statistics/S3, statistics/S4
#include "backends/quant/statistics.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>

#include "backends/quant/operators.h"

namespace frametap::quant {
namespace {

double Error(const at::Tensor& x, const Params& p) {
  double sum = 0;
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double v = x.const_data_ptr<float>()[i];
    const double q = std::min(std::max(std::nearbyint(v / p.scale) + p.zero_point, double(p.qmin)), double(p.qmax));
    sum += std::pow((q - p.zero_point) * p.scale - v, 2);
  }
  return sum;
}

TEST(QuantStatisticsTest, P2_ZeroIsExact) {
  for (const Range r : {Range{-1, 3}, Range{0.5, 2}, Range{-4, -1}, Range{0, 0}, Range{-1e-45, 1e-45}}) {
    const Params p = ChooseAffine(r, 0, 255);
    EXPECT_GE(p.zero_point, 0);
    EXPECT_LE(p.zero_point, 255);
    EXPECT_GT(p.scale, 0);
  }
  EXPECT_EQ(ChooseAffine({0, 255}, 0, 255).zero_point, 0);
  EXPECT_EQ(ChooseAffine({-255, 0}, 0, 255).zero_point, 255);
}

TEST(QuantStatisticsTest, S1_TheTiniestAndTheLargestRangesAreCounted) {
  for (const double factor : {1e-45, 1e-40, 3e-36, 1e-30, 1e30, 1e38}) {
    const at::Tensor x = at::linspace(-1, 1, 1000, at::kDouble).mul(factor).to(at::kFloat);
    Statistics s;
    s.Add(x);
    s.Add(x.mul(0.5));
    EXPECT_TRUE(s.finite());
    EXPECT_EQ(s.elements(), 2000);
    const Range range = s.LeastSquares(255);
    EXPECT_LE(range.lo, 0) << factor;
    EXPECT_GE(range.hi, 0) << factor;
    EXPECT_GT(ChooseAffine(range, 0, 255).scale, 0);
  }
}

TEST(QuantStatisticsTest, S1_BatchesAndLayoutDoNotMatter) {
  const at::Tensor x = at::randn({4, 8, 6, 6});
  Statistics whole;
  whole.Add(x);
  Statistics parts;
  parts.Add(x.slice(0, 0, 1));
  parts.Add(x.slice(0, 1, 4).contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_EQ(whole.elements(), parts.elements());
  EXPECT_EQ(whole.MinMax().lo, parts.MinMax().lo);
  EXPECT_EQ(whole.MinMax().hi, parts.MinMax().hi);
  EXPECT_NEAR(whole.LeastSquares(255).hi, parts.LeastSquares(255).hi, 0.1);
}

TEST(QuantStatisticsTest, S3_LeastSquaresBeatsExtremesOnHeavyTails) {
  at::Tensor x = at::randn({20000});
  x.data_ptr<float>()[17] = 60;
  Statistics s;
  s.Add(x);
  const Params wide = ChooseAffine(s.MinMax(), 0, 255);
  const Params best = ChooseAffine(s.LeastSquares(255), 0, 255);
  EXPECT_LE(Error(x, best), Error(x, wide));
  // 4 bits: rounding outweighs clipping, the tail goes.
  const Params wide4 = ChooseAffine(s.MinMax(), 0, 15);
  const Params best4 = ChooseAffine(s.LeastSquares(15), 0, 15);
  EXPECT_LT(Error(x, best4), 0.5 * Error(x, wide4));
}

TEST(QuantStatisticsTest, NaNAndInfinityAreSeen) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    Statistics s;
    s.Add(at::tensor({1.0f, bad, 2.0f}));
    EXPECT_FALSE(s.finite());
  }
  Statistics large;
  large.Add(at::tensor({-3e38f, 3e38f}));
  EXPECT_TRUE(large.finite());
}

TEST(QuantStatisticsTest, P1_RoundingIsHalfToEvenAndSaturates) {
  RegisterOperators();
  torch::jit::Stack stack{at::tensor({0.5f, 1.5f, 2.5f, -0.5f, 300.0f, -300.0f, NAN}),
                          1.0,
                          int64_t{3},
                          int64_t{0},
                          int64_t{255},
                          static_cast<int64_t>(at::kByte)};
  FindOperator("frametap::quantize_per_tensor").callBoxed(stack);
  const at::Tensor want = at::tensor({3, 5, 5, 3, 255, 0, 0}).to(at::kByte);
  EXPECT_TRUE(stack[0].toTensor().equal(want)) << stack[0].toTensor();
}

TEST(QuantStatisticsTest, P3_WeightsAreSymmetricAChannel) {
  const at::Tensor w = at::randn({5, 3, 3, 3});
  w.slice(0, 2, 3).zero_();
  const QuantizedWeight q = QuantizeWeight(w, 0);
  for (int64_t c = 0; c < 5; ++c) {
    const float scale = q.scales.const_data_ptr<float>()[c];
    for (int64_t i = 0; i < 27; ++i) {
      const int8_t b = q.bytes.const_data_ptr<int8_t>()[c * 27 + i];
      EXPECT_GE(b, -127);
      EXPECT_LE(std::abs(b * scale - w.const_data_ptr<float>()[c * 27 + i]), scale * 0.501f);
    }
  }
}

TEST(QuantStatisticsTest, S4_KnowsTheMeansOfChannels) {
  const at::Tensor channels = at::tensor({1.0f, 2.0f, 3.0f, 4.0f}).view({1, 4, 1}).expand({50, 4, 3}).contiguous();
  Statistics parts, whole;
  for (const at::Tensor& part : channels.split(20)) {
    Statistics one;
    one.Add(part);
    one.AddChannels(part, -2);
    parts.Add(one);
  }
  whole.Add(channels);
  whole.AddChannels(channels, -2);
  for (const Statistics& statistics : {parts, whole}) {
    const at::Tensor means = statistics.ChannelMeans(-2);
    ASSERT_TRUE(means.defined());
    EXPECT_TRUE(means.allclose(at::tensor({1.0f, 2.0f, 3.0f, 4.0f}), 0.01));
    EXPECT_FALSE(statistics.ChannelMeans(-1).defined());
  }
}

TEST(QuantStatisticsTest, S4_HasNoMeansByChance) {
  const at::Tensor noise = at::randn({8, 100});
  Statistics centred, row, mixed;
  centred.Add(noise);
  centred.AddChannels(noise.sub(noise.mean(0, true)), -1);
  EXPECT_FALSE(centred.ChannelMeans(-1).defined());
  row.Add(noise[0]);
  row.AddChannels(noise[0], -1);
  EXPECT_FALSE(row.ChannelMeans(-1).defined());
  for (const int64_t count : {3, 4}) {
    mixed.Add(at::full({9, count}, 1.0f));
    mixed.AddChannels(at::full({9, count}, 1.0f), -1);
  }
  EXPECT_FALSE(mixed.ChannelMeans(-1).defined());
}

TEST(QuantStatisticsTest, S4_KnowsTheMeansOfErrorsApart) {
  Statistics statistics, other;
  statistics.Add(at::full({9, 2}, 5.0f));
  statistics.AddErrors(at::tensor({0.5f, -0.25f}).expand({9, 2}), -1);
  other.Add(statistics);
  const at::Tensor means = other.ErrorMeans(-1);
  ASSERT_TRUE(means.defined());
  EXPECT_TRUE(means.allclose(at::tensor({0.5f, -0.25f})));
  EXPECT_FALSE(other.ChannelMeans(-1).defined());
}

}  // namespace
}  // namespace frametap::quant
