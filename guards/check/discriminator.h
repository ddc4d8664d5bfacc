// Discriminator: a fact of the call (a value, a length, a type …) by which the segments of one entry point differ. A
// look-up goes straight to the segments that may fit.
//   D1  A segment that fits has the key that is found at the call. Another key is a miss; with the same, it is checked.
// Not here: which segments there are (frame_eval/segment/entry_point.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "guards/check/guard_tree.h"
#include "guards/kinds/fact.h"

namespace frametap {

class Discriminator {
 public:
  // The fact in which most of them differ; none if they differ in no fact that all of them guard. The first tree must
  // live as long as the discriminator.
  static std::optional<Discriminator> Of(const std::vector<const GuardTree*>& trees);

  std::optional<uint64_t> KeyOf(const GuardTree& tree) const;  // that it guards; none: it does not guard this fact
  uint64_t KeyAt(const Roots& roots) const;

 private:
  Discriminator(const GuardTree& tree, SourceId source, Fact::Kind kind, uint64_t path)
      : tree_(&tree), source_(source), kind_(kind), path_(path) {}

  const GuardTree* tree_;
  SourceId source_;
  Fact::Kind kind_;
  uint64_t path_;
};

}  // namespace frametap
