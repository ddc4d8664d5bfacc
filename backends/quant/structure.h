// Structure: names for the values of a graph by the way they are computed, so that values of two recordings can be
// compared.
//   S1  Two values of equal `exact` names are made by the same ops from the same weights, constants and inputs.
//   S2  Two values of equal `loose` names are so up to sizes: numbers that say how large something is count as equal. In equal
//       `placed` names, the n-th inputs of a type count as equal, too, whatever they are called: an input is called another
//       name after a break. Where names can be compared, they decide: another size may reach inputs in another order.
//       Two values of equal `whole` names are so up to parts that are taken of values, and zeros around them.
//   S3  Two values of equal `local` names are made by the same ops from the results of the same layers, up to sizes. The
//       inputs of these layers do not count, so that rounds of a loop have equal names. Neighbours in a list that are equal
//       count once. A value that no layer has a part in has no such name. A running sum has another name in each round.
//   S4  Grad mode, inference mode and requires_grad do not count. Autocast does.
//   S5  A write in place gives other names to all that share the memory, for the nodes after it.
//   S6  A weight is known by its memory, and a constant by its content. Another input is known by its name, dtype and rank.
// Not here: what is done with equal values (conversions.h).
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "ir/graph/graph.h"

namespace frametap::quant {

// Numbers for texts; equal texts have equal numbers. Any thread may ask.
class Names {
 public:
  uint32_t Of(const std::string& text);

 private:
  std::mutex mutex_;
  absl::flat_hash_map<std::string, uint32_t> numbers_;
};

struct Structure {
  std::vector<uint32_t> exact, loose, placed, whole, local;  // by value; `local` may be 0, for none
  std::map<std::string, std::set<std::string>> inputs;       // names of tensors that are not weights, by type
};

// `weights`: beside the inputs; undefined where an input is not a weight.
Structure StructureOf(const Graph& graph, const std::vector<at::Tensor>& weights, Names* names);

}  // namespace frametap::quant
