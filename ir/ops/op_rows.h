// OpRow: what the row of an operator in ops.def says of one of its overloads.
//   R1  The rows have the order of their names, and each name once. The compiler checks this.
//   R2  A row applies to all overloads, and to those in place. `Sizes` applies to the named overloads alone.
// Not here: what a fact means (ops.def), and the answers that schemas, tags and rows give together (op_facts.h, size_rules.h).
#pragma once

#include <ATen/core/operator_name.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace frametap {

class OpCall;
class Shape;
using SizeRule = Shape(const OpCall& call);

namespace ops {

enum Fact : uint64_t {
  kNone = 0,
  kWrites = uint64_t{1} << 0,
  kRandom = uint64_t{1} << 1,
  kFactory = uint64_t{1} << 2,
  kNumberFromMetadata = uint64_t{1} << 3,
  kNumberFromData = uint64_t{1} << 4,
  kAnyElement = uint64_t{1} << 5,
  kRaises = uint64_t{1} << 6,
  kAsksForElements = uint64_t{1} << 7,
  kSizesFromSizes = uint64_t{1} << 8,
  kSizesFromData = uint64_t{1} << 9,
  kRankFromSizes = uint64_t{1} << 10,
  kChangesMetadata = uint64_t{1} << 11,
  kKeepsMetadata = uint64_t{1} << 12,
  kGivesNew = uint64_t{1} << 13,
  kGivesByType = uint64_t{1} << 14,
  kGivesByDtype = uint64_t{1} << 15,
  kOnlyReads = uint64_t{1} << 16,
  kPlain = uint64_t{1} << 17,
  kOverwrites = uint64_t{1} << 18,
  kConvertsNumber = uint64_t{1} << 19,
  kMovesElements = uint64_t{1} << 20,
  kFiniteFromFinite = uint64_t{1} << 21,
  kSharesMemory = uint64_t{1} << 22,
  kReinterprets = uint64_t{1} << 23,
  kSizesFromMasks = uint64_t{1} << 24,
  kDropsOnes = uint64_t{1} << 25,
  kPartsAlongDim = uint64_t{1} << 26,
  kPartForEachSize = uint64_t{1} << 27,
  kGivesElement = uint64_t{1} << 28,
  kMakesElement = uint64_t{1} << 29,
  kTakesSize = uint64_t{1} << 30,
  kDropsOut = uint64_t{1} << 31,
  kOfOperator = uint64_t{1} << 32,
  kTakesFloatTensor = uint64_t{1} << 33,
  kAsksForAttention = uint64_t{1} << 34,
  kPartsOfSize = uint64_t{1} << 35,
  kPartsInNumber = uint64_t{1} << 36,
  kSections = uint64_t{1} << 37,
  kOneForEachTensor = uint64_t{1} << 38,
  kObserved = uint64_t{1} << 39,
};

}  // namespace ops

struct OpRow {
  uint64_t facts = ops::kNone;
  SizeRule* sizes = nullptr;
  BuiltinOp of_ints = BuiltinOp::kNone;  // computes the same of two ints
  bool in_place = false;                 // the operator is the in-place form of the one that the row names

  bool Has(uint64_t any_of) const { return (facts & any_of) != 0; }
};

// Returns an empty row if there is none.
OpRow OpRowOf(const c10::OperatorName& op);
inline OpRow OpRowOf(const c10::OperatorHandle& op) { return OpRowOf(op.operator_name()); }

// Returns whether the operator is one of ATen's.
bool IsOfTorch(const c10::OperatorHandle& op);

// Returns whether results may share memory with an argument, although the schema does not show that.
bool SharesMemoryUnseen(const c10::OperatorHandle& op);

// Returns the names of the operators with this fact ("aten::abs"), or of overloads ("aten::add.Tensor").
std::vector<std::string> OpsWith(ops::Fact fact);

}  // namespace frametap
