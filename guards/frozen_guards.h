// FrozenGuards: what a recorder hands to the tree that will check it.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "guards/accessor.h"
#include "guards/class_note.h"
#include "guards/guard.h"
#include "guards/guard_recorder.h"
#include "guards/guard_tree.h"
#include "guards/kinds/relation.h"

namespace frametap {

struct RelatedNumbers {
  std::unique_ptr<NumbersRelation> relation;
  std::vector<SourceId> numbers;
};

struct Predicate {
  SourceId source;
  SourceId other;          // SameObject
  bool same = false;       // SameObject
  bool is_again = false;   // `guard` belongs to an earlier predicate of the list, applied to another source
  Guard* guard = nullptr;  // null: SameObject, or `related`
  std::unique_ptr<RelatedNumbers> related;  // `source` is the first of them
  Spot why;

  Predicate() = default;
  Predicate(const Predicate&) = delete;
  ~Predicate() {
    if (!is_again) delete guard;
  }
  const Guard* own_guard() const { return is_again ? nullptr : guard; }
};

struct FrozenGuards {
  WorldState world;
  Steps steps;
  std::unique_ptr<NamesRead> names;  // outlives `predicates`
  StableVector<Predicate> predicates;
  std::vector<Ref<>> codes;  // of their spots
  std::vector<SourceId> wanted;
};

std::unique_ptr<GuardTree> PlantTree(FrozenGuards guards);

// explain.cc. ExplainMiss follows every path again.
std::vector<GuardLine> LinesOf(const FrozenGuards& guards, const std::vector<std::pair<SourceId, ValueId>>& inputs);
std::vector<SizeSymbol> OpenSizesOf(const FrozenGuards& guards,
                                    const std::vector<std::pair<SourceId, ValueId>>& inputs);
MissReport ExplainMiss(const FrozenGuards& guards, const Roots& roots);
Reached ReachAnew(const FrozenGuards& guards, const Roots& roots, SourceId id);  // empty if the path ends before
std::string WantOf(const Predicate& predicate, const SourceTable& table);

}  // namespace frametap
