// dcheck/D1: FT_DCHECK is on in all C++ tests, also in one that is run by hand.
#include <gtest/gtest.h>

#include "ir/dcheck.h"

namespace frametap {
namespace {

class ChecksOn : public testing::Environment {
 public:
  void SetUp() override { checks::on = true; }
};

[[maybe_unused]] const testing::Environment* const added = testing::AddGlobalTestEnvironment(new ChecksOn);

}  // namespace
}  // namespace frametap
