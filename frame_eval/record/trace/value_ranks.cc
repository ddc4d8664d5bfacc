#include "frame_eval/record/trace/value_ranks.h"

#include <algorithm>

#include "ir/dcheck.h"

namespace frametap {

bool ValueRanks::FollowsFromSizes(ValueId value) const {
  return std::binary_search(unsettled_.begin(), unsettled_.end(), value);
}

void ValueRanks::Settle(ValueId value) {
  FT_DCHECK(FollowsFromSizes(value));
  unsettled_.erase(std::lower_bound(unsettled_.begin(), unsettled_.end(), value));
}

void ValueRanks::Insert(ValueId value) {
  const auto at = std::lower_bound(unsettled_.begin(), unsettled_.end(), value);
  if (at == unsettled_.end() || *at != value) unsettled_.insert(at, value);
}

void ValueRanks::Add(const Node& node, bool by_size) {
  if (!unsettled_.empty()) {
    ForEachUse(node.args, [&](ValueId use) { by_size = by_size || FollowsFromSizes(use); });
  }
  if (by_size) unsettled_.insert(unsettled_.end(), node.outputs.begin(), node.outputs.end());
  FT_DCHECK(std::is_sorted(unsettled_.begin(), unsettled_.end()));
}

void ValueRanks::Rewind(size_t values) {
  while (!unsettled_.empty() && unsettled_.back().raw() >= values) unsettled_.pop_back();
}

}  // namespace frametap
