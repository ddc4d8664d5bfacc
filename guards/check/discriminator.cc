#include "guards/check/discriminator.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "guards/collect/frozen_guards.h"

namespace frametap {
namespace {

// The same number for the same path in another tree. (Two paths with one number would cost a look-up, no more. D1
// holds by the guards, and a segment that is not found is recorded again.)
std::vector<uint64_t> PathsOf(const Steps& steps) {
  std::vector<uint64_t> paths;
  paths.reserve(steps.size());
  for (const Step& s : steps) {
    paths.push_back(absl::HashOf(s.parent.valid() ? paths[s.parent.raw()] : 0, s.accessor, s.index, s.key.object.get(),
                                 s.via, s.dict, s.home, s.slot_type.get(), s.slot_offset));
  }
  return paths;
}

bool Walk(const Steps& steps, SourceId id, const Roots& roots, Reached* at) {
  const Step& step = steps[id.raw()];
  if (step.parent.valid() && !Walk(steps, step.parent, roots, at)) return false;
  PyObject* parent = step.parent.valid() ? at->object : nullptr;
  return Follow(step, parent, roots, at);
}

struct FactAt {
  SourceId source;
  uint64_t key;
};
using FactTable = absl::flat_hash_map<std::pair<uint64_t, Fact::Kind>, FactAt>;

FactTable FactsOf(const GuardTree& tree) {
  const FrozenGuards& guards = tree.frozen();
  const std::vector<uint64_t> paths = PathsOf(guards.steps);
  FactTable facts;
  for (const GuardEntry& p : guards.predicates) {
    const std::optional<Fact> fact = p.guard != nullptr ? p.guard->fact() : std::nullopt;
    if (fact) facts.try_emplace({paths[p.source.raw()], fact->kind}, FactAt{p.source, fact->key});
  }
  return facts;
}

}  // namespace

std::optional<Discriminator> Discriminator::Of(const std::vector<const GuardTree*>& trees) {
  if (trees.size() < 2) return std::nullopt;
  std::vector<FactTable> others;
  for (size_t i = 1; i < trees.size(); ++i) others.push_back(FactsOf(*trees[i]));
  std::optional<Discriminator> best;
  size_t most = 1;
  const FactTable own = FactsOf(*trees[0]);
  for (const auto& [place, fact] : own) {
    absl::flat_hash_set<uint64_t> keys = {fact.key};
    bool everywhere = true;
    for (const FactTable& other : others) {
      auto it = other.find(place);
      everywhere = it != other.end();
      if (!everywhere) break;
      keys.insert(it->second.key);
    }
    // The path that is met first is the shorter one, as a rule.
    const bool is_better = keys.size() > most || (best && keys.size() == most && fact.source < best->source_);
    if (!everywhere || !is_better) continue;
    most = keys.size();
    best = Discriminator(*trees[0], fact.source, place.second, place.first);
  }
  return best;
}

std::optional<uint64_t> Discriminator::KeyOf(const GuardTree& tree) const {
  const FactTable facts = FactsOf(tree);
  auto it = facts.find({path_, kind_});
  return it == facts.end() ? std::nullopt : std::optional<uint64_t>(it->second.key);
}

uint64_t Discriminator::KeyAt(const Roots& roots) const {
  ErrScope keep;
  try {
    Reached at;
    return Walk(tree_->frozen().steps, source_, roots, &at) ? Fact::KeyAt(kind_, at) : 0;
  } catch (...) {
    return 0;  // an unusual tensor's sizes, say; no segment fits that
  }
}

}  // namespace frametap
