// Views of iterators read the next elements and take none. Sources and guards lead through them.
// Laws: iterator_view/I1, iterator_view/I2
#include "guards/cpython/iterator_view.h"

#include "tests/unit/guards_fixture.h"

namespace frametap {
namespace {

const GuardSite kHere;

TEST_F(GuardsTest, I1_ViewsTellWhatComesAndTakeNothing) {
  const std::pair<const char*, IteratorKind> rows[] = {
      {"iter(['a', 'b', 'c'])", IteratorKind::kList},
      {"reversed(['a', 'b', 'c'])", IteratorKind::kListReversed},
      {"iter(('a', 'b', 'c'))", IteratorKind::kTuple},
      {"reversed(('a', 'b', 'c'))", IteratorKind::kTupleReversed},
      {"iter({'a': 'x', 'b': 'y', 'c': 'z'}.values())", IteratorKind::kDictValues},
      {"iter({'a': 'x', 'b': 'y', 'c': 'z'})", IteratorKind::kDictKeys},
      {"iter(range(7, 1, -2))", IteratorKind::kRange},
      {"iter('abc')", IteratorKind::kText},
      {"iter('\\u0430bc')", IteratorKind::kText},
  };
  for (const auto& [expression, kind] : rows) {
    const Ref<> it = Eval(expression);
    ASSERT_EQ(KindOfIterator(it.get()), kind) << expression;
    for (int64_t left = 3; left > 0; --left) {
      EXPECT_EQ(ItemsLeft(it.get()), left) << expression;
      PyObject* last = UpcomingItem(it.get(), left - 1);
      EXPECT_EQ(UpcomingItem(it.get(), left), nullptr) << expression;
      PyObject* item = kind == IteratorKind::kDictKeys ? UpcomingKey(it.get(), 0) : UpcomingItem(it.get(), 0);
      int64_t number = 0;
      EXPECT_EQ(UpcomingNumber(it.get(), 0, &number), kind == IteratorKind::kRange);
      const Ref<> next = Ref<>::Steal(PyIter_Next(it.get()));
      if (kind == IteratorKind::kRange) {
        EXPECT_EQ(PyLong_AsLongLong(next.get()), number);
      } else if (kind != IteratorKind::kText) {
        EXPECT_EQ(item, next.get()) << expression;
        EXPECT_TRUE(left != 1 || kind == IteratorKind::kDictKeys || last == next.get()) << expression;
      }
    }
    EXPECT_EQ(ItemsLeft(it.get()), 0) << expression;
    EXPECT_FALSE(Ref<>::Steal(PyIter_Next(it.get()))) << expression;
    EXPECT_EQ(ItemsLeft(it.get()), 0) << expression;
    EXPECT_EQ(UpcomingItem(it.get(), 0), nullptr) << expression;
  }
}

TEST_F(GuardsTest, I2_WhatIsNotKnownHasNoView) {
  for (const char* expression :
       {"iter({1, 2})", "(i for i in 'ab')", "zip('ab', 'cd', strict=True)", "filter(None, [1])",
        "iter(range(2 ** 70))", "reversed('ab')", "3", "[1]", "iter(OrderedDict(a=1))", "iter(lambda: 1, 2)"}) {
    EXPECT_EQ(KindOfIterator(Eval(expression).get()), IteratorKind::kNone) << expression;
  }
  Exec("d = dict(a=1, b=2); it = iter(d.items()); d['c'] = 3");
  EXPECT_EQ(ItemsLeft(Get("it")), -1);
  EXPECT_EQ(UpcomingKey(Get("it"), 0), nullptr);
}

TEST_F(GuardsTest, IteratorsArePutBack) {
  Exec(
      "rows, pairs = [1, 2, 3], dict(a=1, b=2)\n"
      "its = [iter(rows), reversed(rows), iter((1, 2)), iter('ab'), iter(range(5)), iter(pairs.items()), "
      "enumerate(iter(rows)), zip(iter(rows), iter('abc')), map(max, iter(rows), iter(range(4)))]\n"
      "for it in its: next(it)\n");
  std::vector<IteratorPlace> places;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(Get("its")); ++i) places.emplace_back(PyList_GET_ITEM(Get("its"), i));
  Exec("first = [list(it) for it in its]");
  for (auto place = places.rbegin(); place != places.rend(); ++place) place->PutBack();
  Exec("second = [list(it) for it in its]\nassert first == second and all(first), (first, second)");
}

TEST_F(GuardsTest, SourcesLeadThroughIterators) {
  Exec("rows = ['a', 'b', 'c']; it = iter(rows); next(it)");
  GuardRecorder r(WorldState::Now());
  const SourceId it = Arg(r, "it");
  r.Type(it, kHere);
  const SourceId left = r.Child(it, Accessor::kLeft, 0, nullptr, nullptr);
  r.Relation(left, Py_GT, Int(0).get(), true, kHere);
  const SourceId item = r.Child(it, Accessor::kNext, 0, nullptr, Str("b").get());
  r.Value(item, kHere);
  auto tree = PlantTree(r.Freeze({item}));
  EXPECT_TRUE(Hits(*tree));
  Exec("it = iter(('b', 'x'))");
  EXPECT_EQ(Why(*tree), "L.it: type: tuple_iterator != list_iterator");
  Exec("it = iter(['b'])");
  EXPECT_TRUE(Hits(*tree));
  EXPECT_EQ(tree->Object(item), Get("rows") ? PyList_GET_ITEM(Get("rows"), 1) : nullptr);
  Exec("it = iter(['x'])");
  EXPECT_FALSE(Hits(*tree));
  Exec("it = iter([])");
  EXPECT_EQ(Why(*tree), "L.it.<left>: not 0 > 0");
  Exec("it = 3");
  EXPECT_FALSE(Hits(*tree));
}

TEST_F(GuardsTest, NumbersOfIteratorsHaveNoObjects) {
  Exec("it = iter(range(5, 50, 5)); next(it)");
  GuardRecorder r(WorldState::Now());
  const SourceId it = Arg(r, "it");
  const SourceId count = r.Child(it, Accessor::kCount, 1, nullptr, Int(15).get());
  r.Type(count, kHere);
  r.Relation(count, Py_LT, Int(20).get(), true, kHere);
  auto tree = PlantTree(r.Freeze({count}));
  EXPECT_TRUE(Hits(*tree));
  EXPECT_TRUE(tree->IsNumber(count));
  EXPECT_EQ(tree->Number(count), 15);
  Exec("next(it)");
  EXPECT_EQ(Why(*tree), "L.it.<count>[1]: not 20 < 20");
  Exec("it = iter([1, 2, 3])");
  EXPECT_EQ(Why(*tree), "L.it.<count>[1]: the iterator gives nothing after 1 items");
}

}  // namespace
}  // namespace frametap
