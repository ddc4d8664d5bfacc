// quantize_images/I1: images quantized to channels_last have the bytes of quantize_per_tensor, whatever their strides.
// Laws: quantize_images/I1
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "backends/quant/operators.h"
#include "backends/quant/quantize_images.h"

namespace frametap::quant {
namespace {

struct Scheme {
  double scale;
  int64_t zero_point, qmin, qmax;
};

at::Tensor Call(const char* op, const at::Tensor& x, const Scheme& s) {
  torch::jit::Stack stack{x, s.scale, s.zero_point, s.qmin, s.qmax, static_cast<int64_t>(at::kByte)};
  FindOperator(op).callBoxed(stack);
  return stack[0].toTensor();
}

// Ties, values far outside, and NaN.
at::Tensor Floats(at::IntArrayRef sizes) {
  at::Tensor x = at::randn(sizes).mul(40);
  const float special[] = {NAN,
                           -NAN,
                           INFINITY,
                           -INFINITY,
                           0.0f,
                           -0.0f,
                           0.25f,
                           -0.25f,
                           0.75f,
                           1.25f,
                           1e-42f,
                           std::numeric_limits<float>::max(),
                           std::numeric_limits<float>::lowest()};
  float* data = x.mutable_data_ptr<float>();
  for (int64_t i = 0, k = 0; i < x.numel(); i += 3, ++k) data[i] = special[k % std::size(special)];
  return x;
}

void ExpectBytes(const at::Tensor& x) {
  SCOPED_TRACE(absl::StrCat("sizes ", absl::StrJoin(x.sizes(), ","), " strides ", absl::StrJoin(x.strides(), ",")));
  const at::Tensor before = x.clone();
  for (const Scheme& s : {Scheme{0.5, 100, 0, 255}, Scheme{0.3, 0, 0, 127}, Scheme{1e-3, 255, 3, 255}}) {
    const at::Tensor got = Call("frametap::quantize_per_tensor_channels_last", x, s);
    EXPECT_TRUE(got.equal(Call("frametap::quantize_per_tensor", x, s)));
    EXPECT_EQ(got.sizes(), x.sizes());
    EXPECT_EQ(got.strides(),
              at::empty(x.sizes(), at::TensorOptions().memory_format(at::MemoryFormat::ChannelsLast)).strides());
  }
  EXPECT_TRUE(x.view(at::kInt).equal(before.view(at::kInt)));
}

class QuantizeImagesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RegisterOperators();
    at::manual_seed(7);
  }
};

TEST_F(QuantizeImagesTest, I1_OfEachNumberOfChannelsAndPixels) {
  for (const int64_t channels : {1, 2, 3, 4, 5, 15, 16, 17, 20, 31, 63, 64, 65, 68, 80, 130}) {
    for (const int64_t width : {1, 2, 7, 15, 16, 17, 64, 127, 128, 129, 300}) {
      ExpectBytes(Floats({1, channels, 1, width}));
      ExpectBytes(Floats({2, channels, 3, width}));
    }
  }
}

TEST_F(QuantizeImagesTest, I1_WithOtherStrides) {
  for (const int64_t channels : {1, 3, 4, 16, 19, 70}) {
    const at::Tensor x = Floats({3, channels + 2, 7, 70});
    EXPECT_TRUE(HasDenseRows(x.narrow(3, 2, 66)));
    ExpectBytes(x.narrow(3, 2, 66));
    ExpectBytes(x.narrow(2, 1, 5));
    ExpectBytes(x.narrow(1, 2, channels));
    ExpectBytes(x.narrow(0, 1, 2));
    ExpectBytes(x.slice(0, 0, 3, 2));
    ExpectBytes(x.slice(1, 0, channels + 2, 2));
    ExpectBytes(x.slice(2, 0, 7, 3));
    ExpectBytes(x.slice(3, 0, 70, 2));  // rows are not dense
    ExpectBytes(x.transpose(2, 3));
    ExpectBytes(x.transpose(0, 1));
    ExpectBytes(x.transpose(1, 2));
    ExpectBytes(x.flip({3}));
    ExpectBytes(x.narrow(0, 0, 1).expand({4, -1, -1, -1}));
    ExpectBytes(x.narrow(1, 0, 1).expand({-1, 9, -1, -1}));
    ExpectBytes(x.narrow(2, 0, 1).expand({-1, -1, 6, -1}));
    ExpectBytes(x.narrow(3, 0, 1).expand({-1, -1, -1, 20}));
    ExpectBytes(x.contiguous(at::MemoryFormat::ChannelsLast));
    ExpectBytes(x.contiguous(at::MemoryFormat::ChannelsLast).narrow(3, 1, 40));
    ExpectBytes(x.contiguous(at::MemoryFormat::ChannelsLast).narrow(1, 1, channels));
    ExpectBytes(x.as_strided({2, 3, 4, 5}, {1, 2, 3, 1}));  // elements that are in several places
  }
}

TEST_F(QuantizeImagesTest, I1_WithoutElements) {
  for (size_t axis = 0; axis < 4; ++axis) {
    std::vector<int64_t> sizes{2, 3, 4, 5};
    sizes[axis] = 0;
    ExpectBytes(at::empty(sizes));
    ExpectBytes(at::empty({2, 3, 4, 5}).narrow(static_cast<int64_t>(axis), 1, 0));
  }
}

// Stores that reach into the next pixel must not reach into the tile of another thread, or past the end of the tensor.
TEST_F(QuantizeImagesTest, NothingIsWrittenBeside) {
  for (const int64_t channels : {1, 3, 5, 17, 67}) {
    const at::Tensor x = Floats({1, channels, 5, 67});
    const at::Tensor all = at::full({x.numel() + 128}, 77, at::kByte);
    const at::Tensor inner = all.narrow(0, 64, x.numel());
    const at::Tensor to = inner.as_strided(x.sizes(), {x.numel(), 1, 67 * channels, channels});
    QuantizeImages(x, {2.0f, -100, 155, 100}, to);
    EXPECT_TRUE(to.equal(Call("frametap::quantize_per_tensor", x, {0.5, 100, 0, 255})));
    EXPECT_TRUE(all.narrow(0, 0, 64).eq(77).all().item<bool>());
    EXPECT_TRUE(all.narrow(0, 64 + x.numel(), 64).eq(77).all().item<bool>());
  }
}

TEST_F(QuantizeImagesTest, I1_WithSeveralThreads) {
  const int threads = at::get_num_threads();
  at::set_num_threads(4);
  ExpectBytes(Floats({2, 3, 200, 201}));
  ExpectBytes(Floats({2, 67, 50, 51}));
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace frametap::quant
