#include <gtest/gtest.h>
#include <torch/library.h>

#include <optional>
#include <utility>
#include <vector>

#include "ir/ops/op_facts.h"

namespace frametap {
namespace {

const OpFacts& Of(const char* name, const char* overload = "") {
  return FactsOf(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
}

TEST(OpFactsTest, PlainOpsHaveNone) {
  for (const OpFacts* f : {&Of("aten::linear"), &Of("aten::add", "Tensor"), &Of("aten::view"), &Of("aten::conv2d")}) {
    EXPECT_TRUE(f->pure());
    EXPECT_FALSE(f->data_dependent_size || f->scalar_from_data || f->scalar_from_metadata || f->factory ||
                 f->size_dependent_rank || f->list_result);
  }
}

TEST(OpFactsTest, WritesAreReadOffTheSchemaOrTheRow) {
  EXPECT_TRUE(Of("aten::add_", "Tensor").writes_inputs);
  EXPECT_TRUE(Of("aten::add", "out").writes_inputs);
  EXPECT_TRUE(Of("aten::index_put_").writes_inputs);
  EXPECT_TRUE(Of("aten::_foreach_add_", "Scalar").writes_inputs);
  EXPECT_TRUE(Of("aten::batch_norm").writes_inputs);
  EXPECT_TRUE(Of("aten::native_batch_norm").writes_inputs);
  EXPECT_FALSE(Of("aten::layer_norm").writes_inputs);
}

TEST(OpFactsTest, AnOpThatIsDefinedAgainIsLookedAtAgain) {
  const auto define = [](const char* schema) {
    torch::Library library(torch::Library::DEF, "frametap_op_facts", std::nullopt, __FILE__, __LINE__);
    library.def(schema);
    return Of("frametap_op_facts::again").writes_inputs;
  };
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(define("again(Tensor x) -> Tensor"));
    EXPECT_TRUE(define("again(Tensor(a!) x) -> Tensor(a!)"));
  }
}

TEST(OpFactsTest, SizesThatFollowFromElements) {
  for (const char* name : {"aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::bincount", "aten::argwhere",
                           "aten::one_hot", "aten::unique_consecutive", "aten::unique_dim"}) {
    EXPECT_TRUE(Of(name).data_dependent_size) << name;
  }
  EXPECT_TRUE(Of("aten::index", "Tensor").data_dependent_size);
  EXPECT_TRUE(Of("aten::repeat_interleave", "Tensor").data_dependent_size);
  EXPECT_FALSE(Of("aten::repeat_interleave", "self_int").data_dependent_size);
  EXPECT_FALSE(Of("aten::index_select").data_dependent_size);
}

TEST(OpFactsTest, NumbersFollowFromElementsUnlessARowSaysOtherwise) {
  for (const char* name :
       {"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal", "aten::allclose"}) {
    EXPECT_TRUE(Of(name).scalar_from_data) << name;
    EXPECT_FALSE(Of(name).scalar_from_metadata) << name;
  }
  for (const char* name : {"aten::is_floating_point", "aten::is_conj", "aten::sym_numel", "aten::is_same_size"}) {
    EXPECT_TRUE(Of(name).scalar_from_metadata) << name;
    EXPECT_FALSE(Of(name).scalar_from_data) << name;
  }
}

TEST(OpFactsTest, RandomFactoryRankList) {
  EXPECT_TRUE(Of("aten::dropout").random);
  EXPECT_TRUE(Of("aten::randn_like").random);
  EXPECT_TRUE(Of("aten::normal_").random);
  EXPECT_TRUE(Of("aten::scaled_dot_product_attention").random);
  EXPECT_FALSE(Of("aten::relu").random);
  EXPECT_TRUE(Of("aten::randn").factory);
  EXPECT_TRUE(Of("aten::arange").factory);
  EXPECT_TRUE(Of("aten::zeros_like").factory);
  EXPECT_FALSE(Of("aten::clone").factory);
  EXPECT_TRUE(Of("aten::squeeze").size_dependent_rank);
  EXPECT_FALSE(Of("aten::unsqueeze").size_dependent_rank);
  EXPECT_TRUE(Of("aten::split", "Tensor").list_result);
  EXPECT_TRUE(Of("aten::_foreach_add", "Scalar").list_result);
  EXPECT_FALSE(Of("aten::cat").list_result);
  EXPECT_TRUE(Of("aten::_assert_async").no_result);
}

TEST(OpFactsTest, ElementsThatAreRefused) {
  for (const char* name :
       {"aten::quantile", "aten::nanquantile", "aten::linalg_matrix_power", "aten::pinverse", "aten::linalg_inv_ex",
        "aten::linalg_cholesky_ex", "aten::linalg_lu_factor_ex", "aten::fake_quantize_per_channel_affine",
        "aten::quantize_per_channel", "aten::istft", "aten::histogramdd", "aten::index_select", "aten::floor_divide",
        "aten::bernoulli_", "aten::cov"}) {
    for (const auto& op : c10::Dispatcher::singleton().getAllOpNames()) {
      if (op.name != name) continue;
      EXPECT_TRUE(Of(name, op.overload_name.c_str()).raises_on_elements) << name;
    }
  }
  EXPECT_TRUE(Of("aten::div", "Tensor_mode").raises_on_elements);
  EXPECT_TRUE(Of("aten::lstm", "data").raises_on_elements);
  EXPECT_TRUE(Of("aten::narrow", "Tensor").raises_on_elements);
  EXPECT_TRUE(Of("aten::randint_like", "Tensor").raises_on_elements);
  EXPECT_TRUE(Of("aten::masked_fill_", "Tensor").raises_on_elements);
  EXPECT_TRUE(Of("aten::linspace", "Tensor_Scalar").raises_on_elements);
}

TEST(OpFactsTest, EverydayOpsRefuseNone) {
  for (const auto& [name, overload] :
       std::vector<std::pair<const char*, const char*>>{{"aten::add", "Tensor"},
                                                        {"aten::add_", "Tensor"},
                                                        {"aten::relu_", ""},
                                                        {"aten::eq_", "Scalar"},
                                                        {"aten::mm", ""},
                                                        {"aten::linear", ""},
                                                        {"aten::conv2d", ""},
                                                        {"aten::batch_norm", ""},
                                                        {"aten::layer_norm", ""},
                                                        {"aten::softmax", "int"},
                                                        {"aten::mean", "dim"},
                                                        {"aten::view", ""},
                                                        {"aten::view_as", ""},
                                                        {"aten::narrow", ""},
                                                        {"aten::masked_fill", "Scalar"},
                                                        {"aten::linspace", ""},
                                                        {"aten::transpose", "int"},
                                                        {"aten::slice", "Tensor"},
                                                        {"aten::contiguous", ""},
                                                        {"aten::to", "dtype"},
                                                        {"aten::cat", ""},
                                                        {"aten::zeros_like", ""},
                                                        {"aten::randn", ""},
                                                        {"aten::randint_like", "low_dtype"},
                                                        {"aten::dropout", ""},
                                                        {"aten::copy_", ""},
                                                        {"aten::zero_", ""},
                                                        {"aten::clone", ""},
                                                        {"aten::_foreach_add_", "Scalar"},
                                                        {"aten::_fused_adamw_", ""},
                                                        {"aten::lstm", "input"},
                                                        {"aten::div", "Tensor"},
                                                        {"aten::unsafe_split", "Tensor"},
                                                        {"aten::scaled_dot_product_attention", ""}}) {
    EXPECT_FALSE(Of(name, overload).raises_on_elements) << name;
  }
}

}  // namespace
}  // namespace frametap
