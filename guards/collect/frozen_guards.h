// FrozenGuards: the sources and predicates of a recording, as the tree that checks them takes them.
#pragma once

#include <memory>
#include <vector>

#include "guards/collect/guard_site.h"
#include "guards/kinds/accessor.h"
#include "guards/kinds/class_note.h"
#include "guards/kinds/guard.h"
#include "guards/kinds/relation.h"
#include "guards/kinds/world.h"
#include "guards/stable_vector.h"

namespace frametap {

struct RelatedNumbers {
  std::unique_ptr<NumbersRelation> relation;
  std::vector<SourceId> numbers;
};

struct GuardEntry {
  SourceId source;
  SourceId other;          // SameObject
  bool same = false;       // SameObject
  bool is_again = false;   // `guard` belongs to an earlier entry of the list, applied to another source
  Guard* guard = nullptr;  // null: SameObject, or `related`
  std::unique_ptr<RelatedNumbers> related;  // `source` is the first of them
  GuardSite why;

  GuardEntry() = default;
  GuardEntry(const GuardEntry&) = delete;
  ~GuardEntry() {
    if (!is_again) delete guard;
  }
  const Guard* own_guard() const { return is_again ? nullptr : guard; }
};

struct FrozenGuards {
  WorldState world;
  Steps steps;
  std::unique_ptr<NamesRead> names;  // outlives `predicates`
  StableVector<GuardEntry> predicates;
  std::vector<Ref<>> codes;  // of their spots
  std::vector<SourceId> wanted;
};

}  // namespace frametap
