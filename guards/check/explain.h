// Guards and misses in words, by the slow way: every path is followed from the roots, without caches.
#pragma once

#include <utility>
#include <vector>

#include "guards/collect/frozen_guards.h"
#include "guards/kinds/miss_report.h"
#include "guards/kinds/roots.h"
#include "ir/segment/segment_ir.h"

namespace frametap {

// ExplainMiss follows every path again.
std::vector<GuardLine> LinesOf(const FrozenGuards& guards, const std::vector<std::pair<SourceId, ValueId>>& inputs);
std::vector<SizeSymbol> OpenSizesOf(const FrozenGuards& guards,
                                    const std::vector<std::pair<SourceId, ValueId>>& inputs);
MissReport ExplainMiss(const FrozenGuards& guards, const Roots& roots);
// Returns what is at the end of each of `guards.wanted` now, and an empty Reached for a path that ends before.
std::vector<Reached> ReachWanted(const FrozenGuards& guards, const Roots& roots);
Predicate WantOf(const GuardEntry& entry, const SourceTable& table);

}  // namespace frametap
