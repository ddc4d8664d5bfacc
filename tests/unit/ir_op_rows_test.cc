// Laws: op_rows/R2
#include "ir/ops/op_rows.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "ir/ops/size_rules_call.h"

namespace frametap {
namespace ops {
namespace {

struct Part {
  const char* overloads;
  bool in_place_too;
};

Part Sizes(SizeRule*, const char* overloads = "default") { return {overloads, false}; }
Part For(const char* overloads, uint64_t) { return {overloads, true}; }
Part OfInts(const char* overloads, BuiltinOp) { return {overloads, true}; }

struct Row {
  std::string name;
  std::vector<Part> parts;
};

// The rows of ATen.
std::vector<Row> Rows() {
  return {
#define OP(name, facts, ...) {"aten::" #name, {__VA_ARGS__}},
#define OP_OF(library, name, facts, ...)
#include "ir/ops/ops.def"
#undef OP
#undef OP_OF
  };
}

bool Exists(const std::string& name, const std::string& overload) {
  return c10::Dispatcher::singleton().findSchema({name, overload}).has_value();
}

TEST(OpRowsTest, RowsNameOperatorsAndOverloads) {
  std::map<std::string, int> overloads;
  for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) ++overloads[op.name];
  for (const Row& row : Rows()) {
    EXPECT_TRUE(overloads.contains(row.name) || overloads.contains(row.name + "_")) << row.name;
    for (const Part& part : row.parts) {
      for (const absl::string_view word : absl::StrSplit(part.overloads, ' ')) {
        const std::string overload(word == "default" ? "" : word);
        EXPECT_TRUE(Exists(row.name, overload) || (part.in_place_too && Exists(row.name + "_", overload)))
            << row.name << "." << overload;
      }
    }
  }
}

TEST(OpRowsTest, R2_FactsApplyInPlaceAndSizesDoNot) {
  const OpRow add = OpRowOf({"aten::add", "Tensor"});
  EXPECT_TRUE(add.Has(kPlain) && add.Has(kConvertsNumber) && !add.in_place);
  EXPECT_EQ(add.sizes, &Broadcast);
  const OpRow in_place = OpRowOf({"aten::add_", "Tensor"});
  EXPECT_EQ(in_place.facts, add.facts);
  EXPECT_TRUE(in_place.in_place);
  EXPECT_EQ(in_place.sizes, nullptr);
  const OpRow out = OpRowOf({"aten::add", "out"});
  EXPECT_TRUE(out.Has(kPlain) && !out.Has(kConvertsNumber));
  EXPECT_EQ(out.sizes, nullptr);
  EXPECT_TRUE(OpRowOf({"aten::__and__", "Scalar"}).Has(kGivesNew));
  EXPECT_EQ(OpRowOf({"aten::unheard_of", ""}).facts, kNone);
}

}  // namespace
}  // namespace ops
}  // namespace frametap
