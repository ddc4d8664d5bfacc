// Attend against attention in float64, for both dtypes and any sizes, strides, masks and scale.
// Laws: attention/A1, attention/A2, attention/A3, attention/A4, attention_blocks/B1, attention_blocks/B2,
// attention_blocks/B3
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "backends/onednn/attention.h"
#include "backends/onednn/library.h"

namespace frametap::onednn {
namespace {

constexpr float kInfinite = std::numeric_limits<float>::infinity();

int64_t Pick(int64_t from, int64_t to) { return at::randint(from, to + 1, {1}, at::kLong).item<int64_t>(); }

at::Tensor Exact(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options,
                 const at::Tensor& mask = {}) {
  at::Tensor scores = at::matmul(q.to(at::kDouble), k.to(at::kDouble).transpose(-1, -2)) * options.scale;
  if (mask.defined() && mask.scalar_type() == at::kBool) {
    scores = scores.masked_fill(mask.logical_not(), -kInfinite);
  } else if (mask.defined()) {
    scores = options.mask_replaces ? at::where(mask == 0, scores, mask.to(at::kDouble)) : scores + mask;
  }
  if (options.is_causal) {
    const at::Tensor later = at::ones({q.size(2), k.size(2)}, at::kBool).triu(1);
    scores = scores.masked_fill(later, -kInfinite);
  }
  return at::matmul(scores.softmax(-1), v.to(at::kDouble));
}

int64_t FewestQueries(int64_t keys) { return std::max(kFewestQueries, std::min(kFewestFloatQueries, keys)); }

class AttentionTest : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    at::manual_seed(11);
    const bool is_ours = GetParam() == at::kFloat ? HasWideVectors() : HasBfloat16Products();
    if (!is_ours) GTEST_SKIP() << "torch's kernel is used on this processor";
  }

  at::Tensor Normal(at::IntArrayRef sizes) const { return at::randn(sizes).to(GetParam()); }

  // Heads come before positions or after them. Features lie at every place or at every second one.
  at::Tensor Any(int64_t batch, int64_t heads, int64_t positions, int64_t features) const {
    const int64_t step = Pick(1, 4) == 1 ? 2 : 1;
    const at::Tensor made = Pick(0, 1) == 0 ? Normal({batch, heads, positions, features * step})
                                            : Normal({batch, positions, heads, features * step}).transpose(1, 2);
    return made.slice(3, 0, features * step, step);
  }

  // With bfloat16 each probability, and the result, are rounded to 8 bits. With float32, scores of 30 are rounded to 2e-6.
  void ExpectNear(const at::Tensor& got, const at::Tensor& exact, const at::Tensor& v) const {
    ASSERT_EQ(got.sizes(), exact.sizes());
    ASSERT_EQ(got.scalar_type(), GetParam());
    const double largest = v.to(at::kDouble).abs().max().item<double>();
    EXPECT_LE((got.to(at::kDouble) - exact).abs().max().item<double>(),
              largest * (GetParam() == at::kFloat ? 5e-6 : 0.01))
        << exact.sizes() << v.strides();
  }

  const at::NoGradGuard no_grad_;
};

INSTANTIATE_TEST_SUITE_P(Types, AttentionTest, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return info.param == at::kFloat ? "Float32" : "Bfloat16"; });

TEST_P(AttentionTest, A1_IsAttention) {
  for (int round = 0; round < 100; ++round) {
    const int64_t most = round % 2 == 0 ? 40 : 140;
    const int64_t batch = Pick(1, 3), heads = Pick(1, 4), keys = Pick(1, most);
    const int64_t queries = Pick(FewestQueries(keys), most);
    const int64_t width = Pick(1, 70), depth = Pick(1, 70);
    const at::Tensor q = Any(batch, heads, queries, width), k = Any(batch, heads, keys, width);
    const at::Tensor v = Any(batch, heads, keys, depth);
    AttentionOptions options;
    options.is_causal = Pick(0, 1) == 1;
    options.scale = 1.0 / static_cast<double>(Pick(1, 9));
    ASSERT_TRUE(CanAttend(q, k, v));
    ExpectNear(Attend(q, k, v, {}, options), Exact(q, k, v, options), v);
  }
}

TEST_P(AttentionTest, A1_HeadsOfQueriesMayShareKeys) {
  if (GetParam() == at::kBFloat16 && !HasTiles()) GTEST_SKIP() << "oneDNN takes one number of heads";
  for (const int64_t heads : {1, 2, 3}) {
    const at::Tensor q = Any(2, 6, 40, 8), k = Any(2, heads, 9, 8), v = Any(2, heads, 9, 8);
    ASSERT_TRUE(CanAttend(q, k, v));
    const auto repeated = [&](const at::Tensor& x) { return x.repeat_interleave(6 / heads, 1); };
    ExpectNear(Attend(q, k, v, {}, {}), Exact(q, repeated(k), repeated(v), {}), v);
  }
}

TEST_P(AttentionTest, A1_MemoryMayBeExpandedOrOverlap) {
  const at::Tensor q = Any(2, 3, 5, 8), expanded = Normal({1, 1, 5, 8}).expand({2, 3, 5, 8});
  const at::Tensor windows = Normal({40}).as_strided({2, 3, 5, 8}, {2, 1, 3, 1});
  for (const at::Tensor& k : {expanded, windows}) ExpectNear(Attend(q, k, k, {}, {}), Exact(q, k, k, {}), k);
}

TEST_P(AttentionTest, A4_MasksAreAddedOrHideKeysOrReplaceScores) {
  for (int round = 0; round < 100; ++round) {
    const int64_t batch = Pick(1, 3), heads = Pick(1, 4), keys = Pick(2, 50);
    const int64_t queries = Pick(FewestQueries(keys), 50);
    const at::Tensor q = Any(batch, heads, queries, 8), k = Any(batch, heads, keys, 8), v = Any(batch, heads, keys, 8);
    const auto either = [](int64_t size) { return Pick(0, 1) == 0 ? 1 : size; };
    at::Tensor mask = at::randn({either(batch), either(heads), either(queries), Pick(0, 3) == 0 ? 1 : keys});
    for (int64_t dims = Pick(0, 3); dims > 0 && mask.size(0) == 1; --dims) mask = mask.squeeze(0);
    AttentionOptions options;
    options.scale = 0.5;
    if (Pick(0, 1) == 0) {
      mask = mask > -0.5;
      mask.select(-1, Pick(0, mask.size(-1) - 1)).fill_(true);
    } else if (Pick(0, 2) == 0) {
      mask = mask.masked_fill(mask > 1, std::numeric_limits<float>::lowest());
    } else if (Pick(0, 1) == 0) {
      options.mask_replaces = true;
      mask = (mask > 0.5) * -static_cast<double>(Pick(1, 10000));
    }
    if (Pick(0, 3) == 0) mask = at::stack({mask, mask}, -1).select(-1, 1);  // with gaps
    ASSERT_TRUE(CanAttend(q, k, v, mask));
    ExpectNear(Attend(q, k, v, mask, options), Exact(q, k, v, options, mask), v);
  }
}

TEST_P(AttentionTest, A4_AQueryWithoutKeysGivesZerosOrNaN) {
  const at::Tensor q = Any(2, 3, 9, 8), k = Any(2, 3, 7, 8), v = Any(2, 3, 7, 4);
  at::Tensor sees = at::ones({9, 7}, at::kBool);
  sees.select(0, 3).fill_(false);
  for (const at::Tensor& mask : {sees, at::zeros({9, 7}).masked_fill(sees.logical_not(), -kInfinite)}) {
    AttentionOptions options;
    const at::Tensor zeros = Attend(q, k, v, mask, options), without = Attend(q, k, v, {}, options);
    EXPECT_EQ(zeros.select(2, 3).count_nonzero().item<int64_t>(), 0);
    EXPECT_FALSE(zeros.isnan().any().item<bool>());
    EXPECT_TRUE(zeros.select(2, 2).allclose(without.select(2, 2), 1e-5, 1e-5));
    options.gives_nan = true;
    const at::Tensor nans = Attend(q, k, v, mask, options);
    EXPECT_TRUE(nans.select(2, 3).isnan().all().item<bool>());
    EXPECT_EQ(nans.isnan().sum().item<int64_t>(), 2 * 3 * 4);
  }
}

// Torch adds minus infinity to the score of a hidden key, whichever type the mask has.
TEST_P(AttentionTest, A4_AHiddenScoreThatIsNotFiniteMakesTheResultNaN) {
  const at::Tensor q = Normal({2, 3, 35, 8}).abs(), v = Any(2, 3, 37, 4);
  const at::Tensor sees = at::ones({35, 37}, at::kBool);
  sees.select(1, 5).fill_(false);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinite, -kInfinite}) {
    const at::Tensor k = Normal({2, 3, 37, 8});
    k.select(2, 5).fill_(bad);
    for (const at::Tensor& mask : {sees, at::zeros({35, 37}).masked_fill(sees.logical_not(), -kInfinite)}) {
      const at::Tensor got = Attend(q, k, v, mask, {});
      EXPECT_EQ(got.isnan().sum().item<int64_t>(), bad < 0 ? 0 : got.numel()) << bad << mask.scalar_type();
    }
    AttentionOptions options;
    options.mask_replaces = true;
    const at::Tensor replaced = Attend(q, k, v, sees.logical_not().to(at::kFloat) * -1e9, options);
    EXPECT_FALSE(replaced.isnan().any().item<bool>()) << bad;
  }
}

TEST_P(AttentionTest, A1_NaNStaysInItsQueryAndInfinityIsNaN) {
  const at::Tensor k = Any(1, 2, 37, 8), v = Any(1, 2, 37, 8);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinite, -kInfinite}) {
    const at::Tensor q = Normal({1, 2, 35, 8});
    q.select(2, 33).fill_(bad);
    const at::Tensor got = Attend(q, k, v, {}, {});
    EXPECT_TRUE(got.select(2, 33).isnan().all().item<bool>());
    EXPECT_EQ(got.isnan().sum().item<int64_t>(), 16);
  }
}

TEST_P(AttentionTest, A1_LargeScoresDoNotOverflow) {
  const at::Tensor q = Any(1, 2, 35, 8) * 100, k = Any(1, 2, 37, 8) * 100, v = Any(1, 2, 37, 8);
  const at::Tensor got = Attend(q, k, v, {}, {}), exact = Exact(q, k, v, {});
  const double most = GetParam() == at::kFloat ? 0.02 : 0.1;  // scores of 1e5 have an error of 4e-3
  EXPECT_LE((got.to(at::kDouble) - exact).abs().max().item<double>(), most);
}

TEST_P(AttentionTest, A1_QueriesThatAreCausalSeeNoKeyAfterThem) {
  const at::Tensor q = Any(1, 2, 70, 8), k = Normal({1, 2, 90, 8}), v = k.clone();
  AttentionOptions options;
  options.is_causal = true;
  const at::Tensor before = Attend(q, k, v, {}, options).clone();
  k.slice(2, 50).fill_(std::numeric_limits<float>::quiet_NaN());
  const at::Tensor after = Attend(q, k, v, {}, options);
  EXPECT_TRUE(after.slice(2, 0, 50).equal(before.slice(2, 0, 50)));
  EXPECT_TRUE(after.slice(2, 50).isnan().all().item<bool>());
}

// A copy that ends where reading stops the process.
at::Tensor BeforeAnEdge(const at::Tensor& x) {
  constexpr size_t kPage = 4096;
  const at::Tensor from = x.contiguous();
  const size_t pages = from.nbytes() / kPage + 1, bytes = pages * kPage;
  auto* const memory =
      static_cast<char*>(mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  EXPECT_EQ(mprotect(memory + bytes, kPage, PROT_NONE), 0);
  void* const data = memory + bytes - from.nbytes();
  std::memcpy(data, from.const_data_ptr(), from.nbytes());
  return at::from_blob(
      data, from.sizes(), [memory, bytes](void*) { munmap(memory, bytes + kPage); }, from.options());
}

TEST_P(AttentionTest, B3_NothingIsReadBehindATensor) {
  for (int round = 0; round < 60; ++round) {
    const int64_t keys = Pick(1, 70), queries = Pick(FewestQueries(keys), 70), width = Pick(1, 70);
    const auto made = [&](int64_t positions) { return BeforeAnEdge(Normal({1, 2, positions, width})); };
    const at::Tensor q = made(queries), k = made(keys), v = made(keys), mask = BeforeAnEdge(at::randn({queries, keys}));
    ExpectNear(Attend(q, k, v, mask, {}), Exact(q, k, v, {}, mask), v);
  }
}

TEST_P(AttentionTest, A2_HeadsOfAPositionAreBesideEachOther) {
  const at::Tensor q = Any(2, 3, 9, 8), k = Any(2, 3, 7, 8), v = Any(2, 3, 7, 4);
  EXPECT_TRUE(Attend(q, k, v, {}, {}).transpose(1, 2).is_contiguous());
}

TEST_P(AttentionTest, A3_SizesThatWereDroppedComeAgain) {
  const at::Tensor q = Any(1, 2, 9, 8), k = Any(1, 2, 9, 8), v = Any(1, 2, 9, 8);
  const at::Tensor first = Attend(q, k, v, {}, {}).clone();
  for (int64_t n = 2; n <= static_cast<int64_t>(kMaxAttentions) + 3; ++n) {
    const at::Tensor x = Any(1, 2, n, 8);
    Attend(x, x, x, {}, {});
  }
  EXPECT_TRUE(Attend(q, k, v, {}, {}).equal(first));
}

TEST_P(AttentionTest, A3_ThreadsDoNotShareWhatTheyCompute) {
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  const at::Tensor q = Any(1, 2, 33, 16), k = Any(1, 2, 33, 16), v = Any(1, 2, 33, 16);
  AttentionOptions options;
  options.is_causal = true;
  const at::Tensor expected = Attend(q, k, v, {}, options).clone();
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      const at::NoGradGuard no_grad;
      for (int i = 0; i < 50; ++i) {
        const double error = (Attend(q, k, v, {}, options) - expected).abs().max().item<double>();
        wrong[t] += error > 0.02 ? 1 : 0;  // another number of threads may add in another order
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST_P(AttentionTest, B2_ThreadsShareTheBlocks) {
  const at::Tensor q = Any(1, 3, 330, 24), k = Any(1, 3, 170, 24), v = Any(1, 3, 170, 40);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor expected = Attend(q, k, v, {}, {}).clone();
  at::set_num_threads(4);  // three heads: threads begin within one
  const at::Tensor got = Attend(q, k, v, {}, {});
  at::set_num_threads(threads);
  const bool is_ours = GetParam() == at::kFloat || HasTiles();
  EXPECT_LE((got - expected).abs().max().item<double>(), is_ours ? 0 : 0.02);
}

TEST(AttentionRefusal, OtherTensorsAreTorchs) {
  const at::Tensor q = at::randn({1, 2, 5, 8}).to(at::kBFloat16), k = q + 1;
  EXPECT_FALSE(CanAttend(q.to(at::kFloat), k, k));
  EXPECT_FALSE(CanAttend(q.to(at::kDouble), k.to(at::kDouble), k.to(at::kDouble)));
  EXPECT_FALSE(CanAttend(q[0], k[0], k[0]));
  const at::Tensor one = k.slice(1, 0, 1);
  EXPECT_EQ(CanAttend(q, one, one), HasTiles());
  EXPECT_FALSE(CanAttend(q, one, k));
  EXPECT_FALSE(CanAttend(one, q, q));  // fewer heads of queries
  EXPECT_FALSE(CanAttend(q.slice(2, 0, 0), k, k));
  EXPECT_FALSE(CanAttend(q, k, k, at::zeros({5, 6})));  // a key too many
  EXPECT_FALSE(CanAttend(q, k, k, at::zeros({5, 5}, at::kDouble)));
  const at::Tensor many = at::zeros({1, 64, 512, 1}, at::kBFloat16);  // 64 MB of scores
  EXPECT_EQ(CanAttend(many, many, many), HasTiles());
  const at::Tensor few = at::zeros({1, 1, 2, 1}), keys = at::zeros({1, 1, kMostKeys + 1, 1});
  EXPECT_FALSE(CanAttend(few, keys, keys));
  EXPECT_FALSE(CanAttend(few.slice(2, 0, 1), few, few));  // nothing is gained by packing for one query
}

}  // namespace
}  // namespace frametap::onednn
