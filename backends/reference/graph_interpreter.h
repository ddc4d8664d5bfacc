// GraphInterpreter: runs a graph node by node. The caller may look at values and replace them between two steps.
//   N1  Results are equal to the results of the recorded ops, in order, each under its recorded thread state.
//   N2  A value is freed after its last use. `hold` counts further uses, which end with Release.
// Not here: speed (backends/native runs a graph by a plan).
#pragma once

#include <vector>

#include "ir/graph/eager_state.h"
#include "ir/graph/graph.h"

namespace frametap {

class GraphInterpreter {
 public:
  enum class Constants : uint8_t {
    kShared,  // the graph's own tensors: no node may write to them
    kFresh,   // boxing/N4
  };
  // The graph must outlive this. `hold`: further uses by value, or empty.
  GraphInterpreter(const Graph& graph, std::vector<c10::IValue> inputs, const std::vector<int>& hold = {},
                   Constants constants = Constants::kShared);

  bool done() const { return next_ == graph_.nodes.size(); }
  NodeId next() const { return NodeId(next_); }
  NodeId Step();  // runs the next node; its dead arguments are freed before the call returns
  const c10::IValue& value(ValueId v) const { return values_[v.raw()]; }
  void Replace(ValueId v, c10::IValue value);  // nothing if the value is no longer needed
  void Release(ValueId v);
  std::vector<c10::IValue> Outputs();

 private:
  void MakeConstants(const std::vector<Arg>& args);
  c10::IValue Boxed(const Arg& arg, const c10::Type& type) const;

  const Graph& graph_;
  const Constants constants_;
  size_t next_ = 0;
  std::vector<c10::IValue> values_;
  std::vector<int> uses_;
  EagerStateScope state_;
};

}  // namespace frametap
