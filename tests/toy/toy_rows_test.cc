// An effect that the program knows by its row alone.
#include <Python.h>
#include <gtest/gtest.h>

#include <string>

#include "frame_eval/replay/reify.h"
#include "frame_eval/segment/segment.h"
#include "ir/segment/rows.h"
#include "ir/text/text.h"
#include "tests/unit/guards_fixture.h"

namespace frametap {
namespace {

using ToyRowsTest = GuardsTest;

const char* const kText =
    "segment f#0 {\n  entry f:start\n  guard {\n    L.x : int\n  }\n  graph () {\n  }\n"
    "  effect { append const 0 \"a\" const 1 \"b\" }\n  exit return null at f:1\n}\n";

TEST_F(ToyRowsTest, TheEffectHasATextThatParsesBack) {
  const absl::StatusOr<SegmentIr> segment = ParseSegment(kText);
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_EQ(Print(*segment), kText);
  EXPECT_EQ(segment->effects[0].kind, Effect::Kind::kAppend);
  EXPECT_EQ(EffectRowCount(), static_cast<size_t>(Effect::Kind::kAppend) + 1);
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
