#include "guards/collect/intern_table.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace frametap {
namespace {

struct CollidingKey {
  int value;
  friend bool operator==(const CollidingKey&, const CollidingKey&) = default;
  uint64_t Hash() const { return static_cast<uint64_t>(value % 7) << 32; }
};

// intern_table/N1, against a list that is searched.
TEST(InternTable, IsTheListOfItsKeysAfterEachChange) {
  std::mt19937 random(1);
  for (int round = 0; round < 20; ++round) {
    InternTable<CollidingKey> numbering;
    std::vector<CollidingKey> list;
    for (int step = 0; step < 400; ++step) {
      if (random() % 8 == 0) {
        const size_t count = random() % (list.size() + 1);
        numbering.Truncate(count);
        list.resize(count);
      }
      const CollidingKey key{static_cast<int>(random() % 150)};
      const auto at = std::find(list.begin(), list.end(), key);
      const auto [number, is_new] = numbering.Add(key);
      ASSERT_EQ(is_new, at == list.end());
      ASSERT_EQ(number, at - list.begin());
      if (is_new) list.push_back(key);
      for (int value = 0; value < 150; ++value) {
        const auto found = std::find(list.begin(), list.end(), CollidingKey{value});
        ASSERT_EQ(numbering.Find(CollidingKey{value}).has_value(), found != list.end());
      }
    }
    for (size_t i = 0; i < list.size(); ++i) ASSERT_EQ(numbering.KeyAt(static_cast<uint32_t>(i)), list[i]);
  }
}

TEST(InternTable, FindsNothingInAnEmptyTable) {
  InternTable<CollidingKey> numbering;
  EXPECT_FALSE(numbering.Find(CollidingKey{1}).has_value());
  numbering.Reserve(4);
  EXPECT_FALSE(numbering.Find(CollidingKey{1}).has_value());
}

}  // namespace
}  // namespace frametap
