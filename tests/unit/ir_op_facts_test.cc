#include <gtest/gtest.h>

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

}  // namespace
}  // namespace frametap
