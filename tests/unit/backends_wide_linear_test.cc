// Linear layers on float32 against products in float64 and torch's curves. Where the processor has no AVX-512, the same tests
// run on oneDNN's kernels, except for the laws of our own.
// Laws: layer_kernel/K6, wide_linear/D1, wide_linear/D2, wide_curves/V1, wide_curves/V2
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/max.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <thread>

#include "backends/onednn/layer_kernel.h"
#include "backends/onednn/library.h"
#include "backends/onednn/wide_linear.h"
#include "tests/unit/onednn_fixture.h"

namespace frametap::onednn {
namespace {

constexpr Curve kLastCurve = Curve::kLeakyRelu;

Layer Linear(int64_t inputs, int64_t outputs) {
  Layer layer;
  layer.weight = at::randn({outputs, inputs});
  return layer;
}

void SetCurve(Curve curve, Layer* layer) {
  layer->curve = curve;
  layer->low = curve == Curve::kLeakyRelu ? 0.1f : -0.5f;
  layer->high = 1.5f;
}

// Gives the curve of its input.
Layer CurveAlone(Curve curve) {
  Layer layer;
  layer.weight = at::ones({1, 1});
  SetCurve(curve, &layer);
  return layer;
}

class WideLinearTest : public OnednnFixture {};

TEST_F(WideLinearTest, D1_ResultsAreTheLayersForAnySizes) {
  int i = 0;
  // Parts are of 1,152 inputs, panels of 32 outputs, products of 14 rows, and blocks of 168.
  for (const int64_t inputs : {1, 15, 384, 1024, 1153, 2500}) {
    for (const int64_t outputs : {1, 16, 31, 33, 100}) {
      for (const int64_t rows : {1, 2, 3, 7, 13, 14, 15, 29, 168, 169, 500}) {
        Layer layer = Linear(inputs, outputs);
        SetCurve(static_cast<Curve>(i % (static_cast<int>(kLastCurve) + 1)), &layer);
        layer.has_addend = i % 3 == 0;
        if (i % 2 == 0) layer.bias = at::randn({outputs});
        at::set_num_threads(i++ % 4 + 1);
        const at::Tensor x = at::randn({rows, inputs}), addend = at::randn({rows, outputs});
        LayerKernel kernel(layer);
        at::Tensor want = at::linear(x.to(at::kDouble), layer.weight.to(at::kDouble),
                                     layer.bias.defined() ? layer.bias.to(at::kDouble) : at::Tensor());
        if (layer.has_addend) want = want + addend.to(at::kDouble);
        want = Curved(want, layer);
        const at::Tensor got = kernel.Run(x, layer.has_addend ? &addend : nullptr);
        const double apart = (got.to(at::kDouble) - want).abs().max().item<double>();
        ASSERT_LE(apart, 4e-6 * std::sqrt(static_cast<double>(inputs)) * (1 + want.abs().max().item<double>()))
            << rows << " x " << inputs << " x " << outputs << " curve " << static_cast<int>(layer.curve);
      }
    }
  }
}

TEST_F(WideLinearTest, K6_HasNoPrimitives) {
  LayerKernel kernel(Linear(64, 64));
  kernel.Prepare({8, 64});
  kernel.Run(at::randn({9, 64}));
  EXPECT_EQ(kernel.counts().made, HasWideVectors() ? 0 : 2);
}

// A convolution of `window` pixels in a row.
Layer Convolution(int64_t inputs, int64_t outputs, int64_t window) {
  Layer layer = Linear(inputs * window, outputs);
  layer.weight = layer.weight.view({outputs, inputs, 1, window});
  return layer;
}

TEST_F(WideLinearTest, OnlyLinearLayersOfFloat32) {
  constexpr int64_t kRows = 100;
  const Layer layer = Linear(128, 64), pixels = Convolution(128, 64, 1);
  EXPECT_EQ(WideLinear::Takes(layer, kRows), HasWideVectors());
  EXPECT_EQ(WideLinear::Takes(pixels, kRows), HasWideVectors());
  Layer other = layer;
  other.multiplies_bfloat16 = true;
  EXPECT_FALSE(WideLinear::Takes(other, kRows));
  other = layer;
  other.weight = layer.weight.to(at::kChar);
  EXPECT_FALSE(WideLinear::Takes(other, kRows));
  EXPECT_FALSE(WideLinear::Takes(Convolution(128, 64, 2), kRows));
  other = pixels;
  other.stride[1] = 2;
  EXPECT_FALSE(WideLinear::Takes(other, kRows));
  other = pixels;
  other.padding[0] = 1;
  EXPECT_FALSE(WideLinear::Takes(other, kRows));
  other = Convolution(128, 64, 1);
  other.groups = 2;
  EXPECT_FALSE(WideLinear::Takes(other, kRows));
}

TEST_F(WideLinearTest, K6_AConvolutionIsALinearLayerOfItsFewPixels) {
  Layer layer = Convolution(130, 70, 1);
  layer.bias = at::randn({70});
  layer.has_addend = true;
  SetCurve(Curve::kRelu, &layer);
  LayerKernel kernel(layer);
  for (const int64_t width : {1, 11, 40}) {  // the last one has too many pixels
    const at::Tensor x = at::randn({3, 130, 7, width}), addend = at::randn({3, 70, 7, width});
    const at::Tensor want =
        (at::conv2d(x.to(at::kDouble), layer.weight.to(at::kDouble), layer.bias.to(at::kDouble)) + addend).relu();
    const at::Tensor got = kernel.Run(x, &addend);
    EXPECT_LE((got - want).abs().max().item<double>(), 1e-5 * want.max().item<double>()) << width;
  }
  EXPECT_EQ(kernel.counts().made, HasWideVectors() ? 1 : 3);
}

TEST_F(WideLinearTest, D1_ResultsDoNotDependOnThreads) {
  if (!HasWideVectors()) GTEST_SKIP() << "oneDNN's kernels differ by the number of rows";
  Layer layer = Linear(1024, 300);
  SetCurve(Curve::kGelu, &layer);
  LayerKernel kernel(layer);
  const at::Tensor x = at::randn({400, 1024});
  const at::Tensor all = kernel.Run(x);
  for (const int threads : {2, 3, 7}) {
    at::set_num_threads(threads);
    EXPECT_TRUE(kernel.Run(x).equal(all)) << threads;
  }
}

TEST_F(WideLinearTest, D2_ThreadsShareAKernel) {
  const Layer layer = Linear(500, 70);
  LayerKernel kernel(layer);
  const at::Tensor x = at::randn({64, 500}), want = kernel.Run(x);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      const at::NoGradGuard no_grad;
      for (int i = 0; i < 100; ++i) wrong += kernel.Run(x).equal(want) ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

class WideCurveTest : public WideLinearTest, public ::testing::WithParamInterface<int> {
 protected:
  Layer layer_ = CurveAlone(static_cast<Curve>(GetParam()));
};

TEST_P(WideCurveTest, V1_NumbersThatAreNotFiniteAreThoseOfTorch) {
  if (!HasWideVectors()) GTEST_SKIP() << "oneDNN's curves differ";
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const at::Tensor x = at::tensor({-kInfinity, kInfinity, std::numeric_limits<float>::quiet_NaN(), 0.0f, -0.0f, -1e30f,
                                   1e30f, -1e37f, 1e37f, 1e-30f, -1e-30f, -100.0f, 100.0f});
  const at::Tensor got = LayerKernel(layer_).Run(x.unsqueeze(1)).squeeze(1), want = Curved(x, layer_);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const auto is = got[i].item<float>(), should = want[i].item<float>();
    if (std::isfinite(should)) {
      EXPECT_NEAR(is, should, 1e-6f * std::max(1.0f, std::abs(should))) << x[i].item<float>();
    } else {
      EXPECT_EQ(std::isnan(is), std::isnan(should)) << x[i].item<float>() << ": " << is << " and not " << should;
      if (!std::isnan(should)) {
        EXPECT_EQ(is, should) << x[i].item<float>();
      }
    }
  }
}

TEST_P(WideCurveTest, V2_ErrorsAreSmall) {
  if (!HasWideVectors()) GTEST_SKIP() << "oneDNN's curves have other errors";
  for (const double most : {1e-3, 1.0, 30.0}) {
    const at::Tensor x = at::linspace(-most, most, 200001, at::kFloat);
    const at::Tensor want = Curved(x.to(at::kDouble), layer_);
    const at::Tensor got = LayerKernel(layer_).Run(x.unsqueeze(1)).squeeze(1).to(at::kDouble);
    const at::Tensor size = at::max(x.abs().to(at::kDouble), want.abs()).clamp_min(1e-30);
    EXPECT_LE(((got - want).abs() / size).max().item<double>(), 5e-7) << most;
  }
}

INSTANTIATE_TEST_SUITE_P(Curves, WideCurveTest, ::testing::Range(0, static_cast<int>(kLastCurve) + 1));

}  // namespace
}  // namespace frametap::onednn
