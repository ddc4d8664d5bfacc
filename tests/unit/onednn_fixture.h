// For tests of the kernels of backends/onednn: their common set-up, and curves by torch's functions.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/hardsigmoid.h>
#include <ATen/ops/hardswish.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/silu.h>

#include <gtest/gtest.h>

#include "backends/onednn/layer.h"
#include "backends/onednn/library.h"

namespace frametap::onednn {

class OnednnFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(Load().ok()) << Load();
    at::manual_seed(11);
    at::set_num_threads(1);
  }
  const at::NoGradGuard no_grad_;
};

inline at::Tensor Curved(const at::Tensor& x, const Layer& layer) {
  switch (layer.curve) {
    case Curve::kNone:
      return x;
    case Curve::kRelu:
      return x.relu();
    case Curve::kClamp:
      return x.clamp(layer.low, layer.high);
    case Curve::kHardswish:
      return at::hardswish(x);
    case Curve::kSwish:
      return at::silu(x);
    case Curve::kGelu:
      return at::gelu(x);
    case Curve::kGeluTanh:
      return at::gelu(x, "tanh");
    case Curve::kSigmoid:
      return x.sigmoid();
    case Curve::kHardsigmoid:
      return at::hardsigmoid(x);
    case Curve::kTanh:
      return x.tanh();
    case Curve::kLeakyRelu:
      return at::leaky_relu(x, layer.low);
  }
  return x;
}

}  // namespace frametap::onednn
