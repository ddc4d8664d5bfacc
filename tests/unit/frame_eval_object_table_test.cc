#include <gtest/gtest.h>

#include <random>
#include <unordered_map>
#include <vector>

#include "frame_eval/record/objects/object_table.h"

namespace frametap {
namespace {

// The table never looks into them.
PyObject* ObjectAt(uintptr_t address) { return reinterpret_cast<PyObject*>(address); }
ObjectRecord* KnownAt(uintptr_t address) { return reinterpret_cast<ObjectRecord*>(address); }

TEST(ObjectTable, AnswersAsAMapDoes) {
  std::mt19937 random(7);
  ObjectTable table;
  std::unordered_map<PyObject*, ObjectRecord*> map;
  // Few addresses, near each other and often used again, as the addresses of an allocator are.
  std::uniform_int_distribution<uintptr_t> any_address(1, 4000), any_known(1, 1000);
  for (int i = 0; i < 200000; ++i) {
    PyObject* const object = ObjectAt(any_address(random) * 16);
    if (random() % 5 < 2) {
      table.Erase(object);
      map.erase(object);
    } else {
      ObjectRecord* const known = KnownAt(any_known(random) * 64);
      table.Set(object, known);
      map[object] = known;
    }
    PyObject* const other = ObjectAt(any_address(random) * 16);
    const auto found = map.find(other);
    ASSERT_EQ(table.Find(other), found == map.end() ? nullptr : found->second);
    ASSERT_EQ(table.size(), map.size());
  }
  size_t count = 0;
  table.ForEach([&](PyObject* object, const ObjectRecord& known) {
    ++count;
    EXPECT_EQ(map.at(object), &known);
  });
  EXPECT_EQ(count, map.size());
}

TEST(ObjectTable, FindsWhatStoodBehindAnErasedOne) {
  ObjectTable table;
  std::vector<PyObject*> objects;
  for (uintptr_t i = 1; i <= 500; ++i) objects.push_back(ObjectAt(i << 20));  // many of them collide
  for (PyObject* object : objects) table.Set(object, KnownAt(reinterpret_cast<uintptr_t>(object)));
  for (size_t i = 0; i < objects.size(); i += 2) table.Erase(objects[i]);
  for (size_t i = 0; i < objects.size(); ++i) {
    EXPECT_EQ(table.Find(objects[i]), i % 2 == 0 ? nullptr : KnownAt(reinterpret_cast<uintptr_t>(objects[i])));
  }
}

TEST(ObjectTable, NothingIsKnownOfNoObject) { EXPECT_EQ(ObjectTable().Find(nullptr), nullptr); }

}  // namespace
}  // namespace frametap
