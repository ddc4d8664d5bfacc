// ValueRanks: values whose rank follows from sizes, as the rank of squeeze() does. The ranks of all others follow from the
// ranks of the inputs, which every guard holds.
#pragma once

#include <utility>
#include <vector>

#include "ir/graph/graph.h"

namespace frametap {

class ValueRanks {
 public:
  bool FollowsFromSizes(ValueId value) const;
  void Settle(ValueId value);  // the guards fix it now
  void Insert(ValueId value);
  // Records the outputs of a new node. `by_size`: the ranks of the op's results may follow from sizes of arguments.
  void Add(const Node& node, bool by_size);

  const std::vector<ValueId>& unsettled() const { return unsettled_; }
  void Restore(std::vector<ValueId> unsettled) {
    unsettled_ = std::move(unsettled);
  }  // after Rewind to where they were these
  void Rewind(size_t values);

 private:
  std::vector<ValueId> unsettled_;  // ascending; few are
};

}  // namespace frametap
