// Attend against attention in float64, for any sizes, strides and scale.
// Laws: attention/A1, attention/A2, attention/A3, attention/A4
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <limits>
#include <thread>
#include <vector>

#include "backends/onednn/attention.h"
#include "backends/onednn/library.h"

namespace frametap::onednn {
namespace {

int64_t Pick(int64_t from, int64_t to) { return at::randint(from, to + 1, {1}, at::kLong).item<int64_t>(); }

// Heads come before positions or after them. Features lie at every place or at every second one.
at::Tensor Any(int64_t batch, int64_t heads, int64_t positions, int64_t features) {
  const int64_t step = Pick(1, 4) == 1 ? 2 : 1;
  const at::Tensor made = Pick(0, 1) == 0 ? at::randn({batch, heads, positions, features * step})
                                          : at::randn({batch, positions, heads, features * step}).transpose(1, 2);
  return made.to(at::kBFloat16).slice(3, 0, features * step, step);
}

at::Tensor Exact(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale, bool is_causal,
                 const at::Tensor& mask = {}) {
  at::Tensor scores = at::matmul(q.to(at::kDouble), k.to(at::kDouble).transpose(-1, -2)) * scale;
  if (mask.defined() && mask.scalar_type() == at::kBool) {
    scores = scores.masked_fill(mask.logical_not(), -std::numeric_limits<double>::infinity());
  } else if (mask.defined()) {
    scores = scores + mask;
  }
  if (is_causal) {
    const at::Tensor later = at::ones({q.size(2), k.size(2)}, at::kBool).triu(1);
    scores = scores.masked_fill(later, -std::numeric_limits<double>::infinity());
  }
  return at::matmul(scores.softmax(-1), v.to(at::kDouble));
}

class AttentionTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!HasBfloat16Products() || HasTiles()) GTEST_SKIP() << "torch's kernel is used on this processor";
  }
  at::NoGradGuard no_grad_;
};

TEST_F(AttentionTest, A1_IsAttentionUpToTheRoundingOfBfloat16) {
  for (int round = 0; round < 60; ++round) {
    const int64_t batch = Pick(1, 3), heads = Pick(1, 4), queries = Pick(1, 40), keys = Pick(1, 40);
    const int64_t width = Pick(1, 70), depth = Pick(1, 70);
    const at::Tensor q = Any(batch, heads, queries, width), k = Any(batch, heads, keys, width);
    const at::Tensor v = Any(batch, heads, keys, depth);
    const bool is_causal = Pick(0, 1) == 1;
    const double scale = 1.0 / static_cast<double>(Pick(1, 9));
    ASSERT_TRUE(CanAttend(q, k, v));
    const at::Tensor got = Attend(q, k, v, {}, scale, is_causal), exact = Exact(q, k, v, scale, is_causal);
    ASSERT_EQ(got.sizes(), exact.sizes());
    ASSERT_EQ(got.scalar_type(), at::kBFloat16);
    // Each probability, and the result, are rounded to 8 bits.
    const double error = (got.to(at::kDouble) - exact).abs().max().item<double>();
    EXPECT_LE(error, 0.01 * v.to(at::kDouble).abs().max().item<double>())
        << q.sizes() << q.strides() << k.sizes() << k.strides() << v.sizes() << v.strides() << is_causal;
  }
}

TEST_F(AttentionTest, A1_MemoryMayBeExpandedOrOverlap) {
  const at::Tensor q = Any(2, 3, 5, 8), one = at::randn({1, 1, 5, 8}).to(at::kBFloat16);
  const at::Tensor expanded = one.expand({2, 3, 5, 8});
  const at::Tensor windows = at::randn({40}).to(at::kBFloat16).as_strided({2, 3, 5, 8}, {2, 1, 3, 1});
  for (const at::Tensor& k : {expanded, windows}) {
    const at::Tensor exact = Exact(q, k, k, 0.5, false);
    EXPECT_LE((Attend(q, k, k, {}, 0.5, false).to(at::kDouble) - exact).abs().max().item<double>(), 0.04);
  }
}

TEST_F(AttentionTest, A4_MasksAreAddedOrHideKeys) {
  for (int round = 0; round < 60; ++round) {
    const int64_t batch = Pick(1, 3), heads = Pick(1, 4), queries = Pick(1, 20), keys = Pick(2, 20);
    const at::Tensor q = Any(batch, heads, queries, 8), k = Any(batch, heads, keys, 8), v = Any(batch, heads, keys, 8);
    const auto either = [](int64_t size) { return Pick(0, 1) == 0 ? 1 : size; };
    at::Tensor mask = at::randn({either(batch), either(heads), either(queries), keys});
    for (int64_t dims = Pick(0, 3); dims > 0 && mask.size(0) == 1; --dims) mask = mask.squeeze(0);
    if (Pick(0, 1) == 0) {
      mask = mask > -0.5;
      mask.select(-1, Pick(0, keys - 1)).fill_(true);
    } else if (Pick(0, 1) == 0) {
      mask = mask.masked_fill(mask > 1, std::numeric_limits<float>::lowest());
    }
    if (Pick(0, 3) == 0) mask = at::stack({mask, mask}, -1).select(-1, 1);  // with gaps
    ASSERT_TRUE(CanAttend(q, k, v, mask));
    const at::Tensor got = Attend(q, k, v, mask, 0.5, false), exact = Exact(q, k, v, 0.5, false, mask);
    EXPECT_LE((got.to(at::kDouble) - exact).abs().max().item<double>(), 0.04) << mask.sizes() << mask.scalar_type();
  }
}

TEST_F(AttentionTest, A4_AQueryWithoutKeysGivesZeros) {
  const at::Tensor q = Any(2, 3, 5, 8), k = Any(2, 3, 7, 8), v = Any(2, 3, 7, 4);
  at::Tensor sees = at::ones({5, 7}, at::kBool);
  sees.select(0, 3).fill_(false);
  const float hidden = -std::numeric_limits<float>::infinity();
  for (const at::Tensor& mask : {sees, at::zeros({5, 7}).masked_fill(sees.logical_not(), hidden)}) {
    const at::Tensor got = Attend(q, k, v, mask, 0.5, false);
    EXPECT_EQ(got.select(2, 3).count_nonzero().item<int64_t>(), 0);
    EXPECT_FALSE(got.isnan().any().item<bool>());
    EXPECT_TRUE(got.select(2, 2).equal(Attend(q, k, v, {}, 0.5, false).select(2, 2)));
  }
}

TEST_F(AttentionTest, A2_HeadsOfAPositionAreBesideEachOther) {
  const at::Tensor q = Any(2, 3, 5, 8), k = Any(2, 3, 7, 8), v = Any(2, 3, 7, 4);
  EXPECT_TRUE(Attend(q, k, v, {}, 1, false).transpose(1, 2).is_contiguous());
}

TEST_F(AttentionTest, A3_SizesThatWereDroppedComeAgain) {
  const at::Tensor q = Any(1, 2, 9, 8), k = Any(1, 2, 9, 8), v = Any(1, 2, 9, 8);
  const at::Tensor first = Attend(q, k, v, {}, 0.5, false).clone();
  for (int64_t n = 1; n <= static_cast<int64_t>(kMaxAttentions) + 2; ++n) {
    Attend(Any(1, 2, n, 8), Any(1, 2, n, 8), Any(1, 2, n, 8), {}, 0.5, false);
  }
  EXPECT_TRUE(Attend(q, k, v, {}, 0.5, false).equal(first));
}

TEST_F(AttentionTest, A3_ThreadsDoNotShareWhatTheyCompute) {
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  const at::Tensor q = Any(1, 2, 33, 16), k = Any(1, 2, 33, 16), v = Any(1, 2, 33, 16);
  const at::Tensor expected = Attend(q, k, v, {}, 0.25, true).clone();
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      const at::NoGradGuard no_grad;
      for (int i = 0; i < 50; ++i) {
        const double error = (Attend(q, k, v, {}, 0.25, true) - expected).abs().max().item<double>();
        wrong[t] += error > 0.02 ? 1 : 0;  // another number of threads may add in another order
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(AttentionRefusal, OtherTensorsAreTorchs) {
  const at::Tensor q = Any(1, 2, 5, 8), k = Any(1, 2, 5, 8);
  EXPECT_FALSE(CanAttend(q.to(at::kFloat), k, k));
  EXPECT_FALSE(CanAttend(q[0], k[0], k[0]));
  EXPECT_FALSE(CanAttend(q, k.slice(1, 0, 1), k.slice(1, 0, 1)));  // fewer heads
  EXPECT_FALSE(CanAttend(q.slice(2, 0, 0), k, k));
  EXPECT_FALSE(CanAttend(q, k, k, at::zeros({5, 6})));  // a key too many
  EXPECT_FALSE(CanAttend(q, k, k, at::zeros({5, 5}, at::kDouble)));
  const at::Tensor many = at::zeros({1, 64, 512, 1}, at::kBFloat16);  // 64 MB of scores
  EXPECT_FALSE(CanAttend(many, many, many));
}

}  // namespace
}  // namespace frametap::onednn
