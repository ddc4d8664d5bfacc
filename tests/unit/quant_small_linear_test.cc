// SmallLinear against oneDNN's kernel of the same layer.
// Laws: small_linear/S1, small_linear/S2
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "backends/onednn/layer_kernel.h"
#include "backends/quant/kernel_tensor.h"
#include "backends/quant/operators.h"
#include "backends/quant/small_linear.h"

namespace frametap::quant {
namespace {

using onednn::Curve;

int64_t Pick(int64_t from, int64_t to) { return at::randint(from, to + 1, {1}, at::kLong).item<int64_t>(); }

onednn::Layer Random() {
  onednn::Layer layer;
  layer.weight = at::randint(-127, 128, {Pick(1, 40), Pick(1, 40)}, at::kChar);
  layer.scales = at::rand({layer.outputs()}).mul(0.01).add(0.001);
  if (Pick(0, 1) == 1) layer.bias = at::randn({layer.outputs()});
  layer.x = {0.02f, static_cast<int32_t>(Pick(0, 1) * Pick(0, 127))};
  layer.curve = static_cast<Curve>(Pick(0, 2));
  layer.low = -0.5f;
  layer.high = 1.5f;
  if (Pick(0, 2) != 0) layer.out = onednn::Quantization{0.05f, static_cast<int32_t>(Pick(0, 255))};
  return layer;
}

TEST(SmallLinear, S1_GivesWhatTheKernelGives) {
  at::manual_seed(5);
  for (int i = 0; i < 300; ++i) {
    const onednn::Layer layer = Random();
    onednn::LayerKernel kernel(layer);
    ASSERT_TRUE(SmallLinear::Takes(kernel.layer()));
    const SmallLinear small(kernel.layer());
    const int64_t rows = Pick(1, 4);
    const at::Tensor x = at::randint(0, 128, {rows, layer.inputs()}, at::kByte);  // exact on any processor
    const at::Tensor want = kernel.Run(x);
    const at::Tensor got = at::zeros_like(want);
    small.Run(x.const_data_ptr<uint8_t>(), rows, got.mutable_data_ptr());
    const double apart = got.to(at::kDouble).sub(want.to(at::kDouble)).abs().max().item<double>();
    ASSERT_LE(apart, layer.out ? 1 : 1e-5 * std::max(1.0, want.abs().max().item<double>()))
        << layer.weight.sizes() << " rows " << rows << " curve " << static_cast<int>(layer.curve);
  }
}

TEST(SmallLinear, S2_LargestProductsAreExact) {
  onednn::Layer layer;
  layer.weight = at::full({3, 64}, -127, at::kChar);
  layer.scales = at::full({3}, 1.0f);
  const SmallLinear small(onednn::Folded(layer));
  const at::Tensor x = at::full({1, 64}, 255, at::kByte);
  const at::Tensor got = at::zeros({1, 3});
  small.Run(x.const_data_ptr<uint8_t>(), 1, got.mutable_data_ptr());
  EXPECT_EQ(got.min().item<double>(), -127.0 * 255 * 64);
}

// Few rows are taken by SmallLinear, many by oneDNN; the operator gives the same for both.
TEST(SmallLinear, TheOperatorChooses) {
  RegisterOperators();
  onednn::Layer layer;
  layer.weight = at::randint(-127, 128, {16, 16}, at::kChar);
  layer.scales = at::rand({16}).mul(0.01);
  layer.bias = at::randn({16});
  layer.x = {0.02f, 3};
  layer.out = onednn::Quantization{0.05f, 7};
  const at::Tensor kernel = MakeKernelTensor(layer);
  const auto run = [&](const at::Tensor& x) {
    torch::jit::Stack stack{x, kernel};
    FindOperator("frametap::qlinear").callBoxed(stack);
    return stack[0].toTensor();
  };
  const at::Tensor many = at::randint(0, 128, {200, 16}, at::kByte);
  const at::Tensor all = run(many);
  EXPECT_EQ(KernelIn(kernel)->counts().made, 1);
  for (int64_t row = 0; row < 200; row += 9) {
    EXPECT_LE(run(many[row]).to(at::kInt).sub(all[row].to(at::kInt)).abs().max().item<int64_t>(), 1);
  }
  EXPECT_EQ(run(many.narrow(0, 0, 6).view({2, 3, 16})).sizes(), at::IntArrayRef({2, 3, 16}));
  EXPECT_EQ(run(many.narrow(0, 0, 0)).sizes(), at::IntArrayRef({0, 16}));
  EXPECT_EQ(KernelIn(kernel)->counts().made, 1);
  EXPECT_THROW(run(many.narrow(1, 0, 15)), c10::Error);
}

}  // namespace
}  // namespace frametap::quant
