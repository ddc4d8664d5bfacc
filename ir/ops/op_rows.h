// OpRow: what the row of an operator in ops.def says of one of its overloads.
//   R1  The rows have the order of their names, and each name once. The compiler checks this.
//   R2  A row applies to all overloads, and to those in place. `Sizes` applies to the named overloads alone.
// Not here: what a fact means (ops.def), and the answers that schemas, tags and rows give together (op_facts.h, size_rules.h).
#pragma once

#include <ATen/core/operator_name.h>

#include <cstdint>
#include <string>
#include <vector>

namespace frametap {

class OpCall;
class Shape;
using SizeRule = Shape(const OpCall& call);

namespace ops {

enum Fact : uint32_t {
  kNone = 0,
  kWrites = 1 << 0,
  kRandom = 1 << 1,
  kFactory = 1 << 2,
  kNumberFromMetadata = 1 << 3,
  kNumberFromData = 1 << 4,
  kAnyElement = 1 << 5,
  kRaises = 1 << 6,
  kAsksForElements = 1 << 7,
  kSizesFromSizes = 1 << 8,
  kSizesFromData = 1 << 9,
  kRankFromSizes = 1 << 10,
  kChangesMetadata = 1 << 11,
  kKeepsMetadata = 1 << 12,
  kGivesNew = 1 << 13,
  kGivesByType = 1 << 14,
  kOnlyReads = 1 << 15,
  kPlain = 1 << 16,
  kOverwrites = 1 << 17,
  kConvertsNumber = 1 << 18,
  kMovesElements = 1 << 19,
  kFiniteFromFinite = 1 << 20,
};

}  // namespace ops

struct OpRow {
  uint32_t facts = ops::kNone;
  SizeRule* sizes = nullptr;
  bool in_place = false;  // the operator is the in-place form of the one that the row names

  bool Has(uint32_t any_of) const { return (facts & any_of) != 0; }
};

// Returns an empty row if there is none.
OpRow OpRowOf(const c10::OperatorName& op);

// Returns the names of the operators with this fact ("aten::abs"), or of overloads ("aten::add.Tensor").
std::vector<std::string> OpsWith(ops::Fact fact);

}  // namespace frametap
