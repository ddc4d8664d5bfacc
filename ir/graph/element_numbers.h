// ElementNumbers: numbers of a graph that are computed from elements of tensors (x.item()). No guard at the entry can read
// them, so an op on such numbers may fail in a run: Python raises there, or its result does not fit 64 bits.
#pragma once

#include <vector>

#include "ir/graph/graph.h"

namespace frametap {

class ElementNumbers {
 public:
  // Records the outputs of the next node of `graph`.
  void Add(const Graph& graph, const Node& node);
  bool Contains(ValueId value) const { return value.raw() < values_.size() && values_[value.raw()]; }
  // Returns whether the node is an op on such numbers that has no result for some of them.
  bool MayFail(const Node& node) const;
  void Rewind(size_t values) {
    if (values_.size() > values) values_.resize(values);
  }

 private:
  bool HasOperand(const Node& node) const;

  std::vector<bool> values_;  // parallel to the values of the graph; may be shorter
};

}  // namespace frametap
