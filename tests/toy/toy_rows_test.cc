// A guard and an effect that the program knows by their rows alone.
#include <Python.h>
#include <gtest/gtest.h>

#include <string>

#include "frame_eval/replay/reify.h"
#include "frame_eval/segment/segment.h"
#include "guards/check/guard_tree.h"
#include "guards/collect/guard_recorder.h"
#include "ir/segment/rows.h"
#include "ir/text/text.h"
#include "tests/unit/guards_fixture.h"

namespace frametap {
namespace {

using ToyRowsTest = GuardsTest;

const char* const kText =
    "segment f#0 {\n  entry f:start\n  guard {\n    L.x : bits 3\n  }\n  graph () {\n  }\n"
    "  effect { append const 0 \"a\" const 1 \"b\" }\n  exit return null at f:1\n}\n";

TEST_F(ToyRowsTest, TheGuardIsCollectedCheckedAndShown) {
  Exec("x = 5");
  GuardRecorder r(WorldState::Now());
  r.Add(GuardKind::kBits, Arg(r, "x"), GuardSite());
  r.Add(GuardKind::kBits, Arg(r, "x"), GuardSite());  // guard_recorder/R3
  auto tree = PlantTree(r.Freeze({}));
  EXPECT_EQ(tree->predicate_count(), 1u);
  EXPECT_EQ(WantAt(*tree, 0), "bits 3");
  EXPECT_TRUE(Hits(*tree));
  Exec("x = 7");
  EXPECT_TRUE(Hits(*tree));
  Exec("x = 8");
  EXPECT_EQ(Why(*tree), "L.x: 8 has not 3 bits");
  Exec("x = True");
  EXPECT_FALSE(Hits(*tree));
}

TEST_F(ToyRowsTest, TheGuardIsTransferredAsItsRowSays) {
  EXPECT_EQ(TransferOf(GuardKind::kBits), Transfer::kIfItHolds);
  Exec("class Layer: pass\na = Layer(); a.n = 5\nb = Layer(); b.n = 6\nc = Layer(); c.n = 9");
  for (const auto& [name, holds] : {std::pair("b", true), {"c", false}}) {
    GuardRecorder r(WorldState::Now());
    const SourceId a = Arg(r, "a"), other = Arg(r, name);
    const GuardRecorder::Mark from = r.mark();
    r.Add(GuardKind::kBits, Attr(r, a, "n"), GuardSite());
    const auto part = r.PartOf(a, from, r.mark());
    ASSERT_TRUE(part.has_value());
    GuardRecorder::Repetition repetition(*part, other);
    EXPECT_EQ(r.Repeat(&repetition, [](SourceId, SourceId) { return true; }), holds) << name;
  }
}

TEST_F(ToyRowsTest, TheParameterIsPartOfTheGuard) {
  Exec("x = 5");
  GuardRecorder r(WorldState::Now());
  const SourceId x = Arg(r, "x");
  for (const int64_t bit : {0, 1, 0, 1}) r.Add(GuardKind::kBit, x, GuardSite(), {.number = bit});  // guard_recorder/R3
  auto tree = PlantTree(r.Freeze({}));
  EXPECT_EQ(tree->predicate_count(), 2u);
  EXPECT_EQ(WantAt(*tree, 0), "bit 0 set");
  EXPECT_EQ(WantAt(*tree, 1), "bit 1 clear");
  Exec("x = 9");
  EXPECT_TRUE(Hits(*tree));
  Exec("x = 3");
  EXPECT_EQ(Why(*tree), "L.x: 3 has the bit");
}

TEST_F(ToyRowsTest, AGuardThatIsMadeAgainHasItsParameter) {
  Exec("class Layer: pass\na = Layer(); a.n = 4\nb = Layer(); b.n = 8");
  GuardRecorder r(WorldState::Now());
  const SourceId a = Arg(r, "a"), b = Arg(r, "b");
  const GuardRecorder::Mark from = r.mark();
  r.Add(GuardKind::kBit, Attr(r, a, "n"), GuardSite(), {.number = 2});
  const auto part = r.PartOf(a, from, r.mark());
  ASSERT_TRUE(part.has_value());
  GuardRecorder::Repetition repetition(*part, b);
  ASSERT_TRUE(r.Repeat(&repetition, [](SourceId, SourceId) { return true; }));
  auto tree = PlantTree(r.Freeze({}));
  EXPECT_EQ(WantAt(*tree, 0), "bit 2 set");
  EXPECT_EQ(WantAt(*tree, 1), "bit 2 clear");
}

TEST_F(ToyRowsTest, BothHaveATextThatParsesBack) {
  const absl::StatusOr<SegmentIr> segment = ParseSegment(kText);
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_EQ(Print(*segment), kText);
  EXPECT_EQ(segment->guards[0].predicate, (Predicate{Predicate::Form::kBits, int64_t{3}}));
  EXPECT_EQ(segment->effects[0].kind, Effect::Kind::kAppend);
  EXPECT_EQ(RowOf(Effect::Kind::kAppend).meaning, "an item is appended to a list");
}

TEST_F(ToyRowsTest, TheEffectIsCommitted) {
  absl::StatusOr<SegmentIr> parsed = ParseSegment(kText);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  Exec("made = [1]");
  Segment segment;
  segment.ir = *std::move(parsed);
  segment.constants = {Ref<>::New(Get("made")), Int(2)};
  segment.effect_names = {Str("")};
  Reifier reifier(segment);
  ASSERT_TRUE(reifier.Prepare());
  ASSERT_TRUE(reifier.Commit());
  EXPECT_EQ(PyObject_IsTrue(Eval("made == [1, 2]").get()), 1);
  segment.constants[0] = Int(3);
  Reifier refused(segment);
  ASSERT_TRUE(refused.Prepare());
  EXPECT_FALSE(refused.Commit());
  EXPECT_NE(PyErr_Occurred(), nullptr);
  PyErr_Clear();
}

}  // namespace
}  // namespace frametap
