// Guards of one object are transferred to another. The predicates that hold there are guarded there, and no others.
// Laws: repetition/R4
#include "guards/check/guard_tree.h"
#include "tests/unit/guards_fixture.h"

namespace frametap {
namespace {

const GuardSite kHere;

class GuardsRepetitionTest : public GuardsTest {
 protected:
  GuardsRepetitionTest() {
    Exec(R"(
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.scale, self.items, self.table, self.number = 1.5, [1, 2.0], {'a': 1}, 3
a, b = Layer(), Layer()
other = a.items
)");
  }

  GuardRecorder::Part Record(GuardRecorder& r) {
    a_ = Arg(r, "a");
    b_ = Arg(r, "b");
    const GuardRecorder::Mark from = r.mark();
    r.Type(a_, kHere);
    r.Add(GuardKind::kNoHooks, a_, kHere);
    r.NoInstanceAttr(a_, Str("tag").get(), kHere);
    const SourceId linear = ModuleAttr(r, a_, "linear");
    r.Type(linear, kHere);
    r.Tensor(ModuleAttr(r, linear, "weight"), TensorRead(), kHere);
    r.Value(Attr(r, a_, "scale"), kHere);
    const SourceId items = Attr(r, a_, "items");
    r.Type(items, kHere);
    r.Length(items, kHere);
    r.Value(ItemOf(r, items, 1), kHere);
    r.Keys(Attr(r, a_, "table"), kHere);
    r.Relation(Attr(r, a_, "number"), Py_GT, Int(2).get(), true, kHere);
    const auto part = r.PartOf(a_, from, r.mark());
    EXPECT_TRUE(part);
    return part.value_or(GuardRecorder::Part{});
  }
  bool Repeats(GuardRecorder& r, const GuardRecorder::Part& part) {
    const GuardRecorder::Mark before = r.mark();
    GuardRecorder::Repetition repetition(part, b_);
    const bool holds = r.Repeat(&repetition, [](SourceId, SourceId) { return true; });
    if (!holds) r.Rewind(before);
    return holds;
  }

  SourceId a_, b_;
};

TEST_F(GuardsRepetitionTest, WhatHoldsIsGuarded) {
  GuardRecorder r(WorldState::Now());
  const GuardRecorder::Part part = Record(r);
  EXPECT_EQ(part.sources.size(), 7u);
  EXPECT_EQ(r.SaidOf(b_), GuardRecorder::Said::kNothing);
  const GuardRecorder::Mark before = r.mark();
  ASSERT_TRUE(Repeats(r, part));
  EXPECT_EQ(r.SaidSince(before).size(), part.sources.size() + part.predicates.size());
  EXPECT_EQ(r.SaidOf(b_), GuardRecorder::Said::kMore);
  const std::unique_ptr<GuardTree> tree = PlantTree(r.Freeze({}));
  EXPECT_TRUE(Hits(*tree));
  const std::pair<const char*, const char*> changes[] = {
      {"b.scale = 2.5", "b.scale = 1.5"},
      {"b.tag = 1", "del b.tag"},
      {"b.items.append(3)", "b.items.pop()"},
      {"b.items[1] = 3.0", "b.items[1] = 2.0"},
      {"b.table['c'] = 1", "del b.table['c']"},
      {"b.number = 2", "b.number = 5"},
      {"h = b.register_forward_hook(print)", "h.remove()"},
      {"w = b.linear.weight; b.linear.weight = nn.Parameter(w.double())", "b.linear.weight = w"},
      {"c = b.linear; b.linear = nn.Identity()", "b.linear = c"},
  };
  for (const auto& [change, back] : changes) {
    Exec(change);
    EXPECT_FALSE(Hits(*tree)) << change;
    Exec(back);
    EXPECT_TRUE(Hits(*tree)) << back;
  }
}

// A guard that several predicates have holds its references once: the garbage collector and CountOf must not take them for
// more.
TEST_F(GuardsRepetitionTest, R4_ReferencesAreCountedOnce) {
  PyObject* const layer = Get("Layer");
  const Py_ssize_t before = Py_REFCNT(layer);
  std::unique_ptr<GuardTree> tree;
  {
    GuardRecorder r(WorldState::Now());
    const GuardRecorder::Part part = Record(r);
    ASSERT_TRUE(Repeats(r, part));
    EXPECT_EQ(r.CountOf(layer), Py_REFCNT(layer) - before);
    tree = PlantTree(r.Freeze({}));
  }
  struct Visits {
    PyObject* of;
    Py_ssize_t count = 0;
  } visits{layer};
  const auto visit = [](PyObject* object, void* arg) {
    auto* visits = static_cast<Visits*>(arg);
    visits->count += object == visits->of ? 1 : 0;
    return 0;
  };
  EXPECT_TRUE(Hits(*tree));
  EXPECT_EQ(tree->Traverse(visit, &visits), 0);
  EXPECT_GT(visits.count, 0);
  EXPECT_EQ(visits.count, Py_REFCNT(layer) - before);
  tree.reset();
  EXPECT_EQ(Py_REFCNT(layer), before);
}

TEST_F(GuardsRepetitionTest, WhatDoesNotHoldIsNotSaid) {
  for (const char* change :
       {"b.scale = 2.5", "b.scale = 1", "b.tag = 1", "b.items.pop()", "b.items = (1, 2.0)", "b.table = {'b': 1}",
        "del b.table", "b.number = 2", "b.number = 3.0", "b.register_forward_hook(print)", "b.linear = nn.Identity()",
        "b.linear.weight = None", "b.linear.__dict__['weight'] = 1", "b = nn.Linear(3, 3)"}) {
    Exec("b = Layer()");
    Exec(change);
    GuardRecorder r(WorldState::Now());
    const GuardRecorder::Part part = Record(r);
    const GuardRecorder::Mark before = r.mark();
    EXPECT_FALSE(Repeats(r, part)) << change;
    EXPECT_TRUE(r.SaidSince(before).empty());
    EXPECT_EQ(r.SaidOf(b_), GuardRecorder::Said::kNothing);
  }
}

TEST_F(GuardsRepetitionTest, WhatStandsWithOthersIsNoPart) {
  {
    GuardRecorder r(WorldState::Now());
    const SourceId a = Arg(r, "a"), other = Arg(r, "other");
    const GuardRecorder::Mark from = r.mark();
    const SourceId items = Attr(r, a, "items");
    r.SameObject(other, items, true, kHere);
    const auto part = r.PartOf(a, from, r.mark());
    ASSERT_TRUE(part);
    EXPECT_EQ(part->shared, std::vector<SourceId>{items});  // for the caller to say whether it is the same again
  }
  GuardRecorder r(WorldState::Now());
  const SourceId a = Arg(r, "a"), other = Arg(r, "other");
  const GuardRecorder::Mark from = r.mark();
  r.SameObject(other, Attr(r, a, "table"), false, kHere);
  EXPECT_FALSE(r.PartOf(a, from, r.mark()));
}

TEST_F(GuardsRepetitionTest, ATableOfObjectsIsNoPart) {
  Exec("table = {a: 1}");
  GuardRecorder r(WorldState::Now());
  const SourceId a = Arg(r, "a"), table = Arg(r, "table");
  const GuardRecorder::Mark from = r.mark();
  KeyOf(r, table, Get("a"));
  EXPECT_FALSE(r.PartOf(a, from, r.mark()));
}

}  // namespace
}  // namespace frametap
