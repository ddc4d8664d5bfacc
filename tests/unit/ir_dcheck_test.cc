// Laws: dcheck/D1, dcheck/D2
#include "ir/dcheck.h"

#include <gtest/gtest.h>

#include "ir/segment/source.h"

namespace frametap {
namespace {

TEST(Dcheck, D1_AnInvariantThatDoesNotHoldEndsTheProcess) {
  EXPECT_TRUE(ChecksAreOn());
  EXPECT_DEATH(FT_DCHECK(1 + 1 == 3), "the invariant `1 \\+ 1 == 3` does not hold \\(.*ir_dcheck_test.cc:[0-9]+");
  FT_DCHECK(1 + 1 == 2);
  EXPECT_DEATH(SourceTable()[SourceId(3)], "sources_.size");
}

TEST(Dcheck, D2_AConditionIsNotEvaluatedWhereChecksAreOff) {
  int evaluated = 0;
  checks::on = false;
  FT_DCHECK(++evaluated == 0);
  checks::on = true;
  EXPECT_EQ(evaluated, 0);
}

}  // namespace
}  // namespace frametap
