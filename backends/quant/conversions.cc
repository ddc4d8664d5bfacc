#include "backends/quant/conversions.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backends/quant/annotate.h"
#include "backends/quant/normalise.h"
#include "backends/quant/op_table.h"
#include "backends/quant/states.h"

namespace frametap::quant {
namespace {

absl::flat_hash_map<uint32_t, std::vector<ValueId>> PlacesOf(const std::vector<uint32_t>& names) {
  absl::flat_hash_map<uint32_t, std::vector<ValueId>> places;
  for (size_t v = 0; v < names.size(); ++v) places[names[v]].push_back(ValueId(v));
  return places;
}

// The key of a layer's weight, or "" if it is not one of the graph's inputs.
std::string WeightOf(const Graph& graph, const Node& node, const std::vector<at::Tensor>& weights) {
  const auto weight = TensorArg(node, "weight");
  for (size_t i = 0; weight && i < graph.inputs.size(); ++i) {
    if (graph.inputs[i] == *weight && weights[i].defined()) return IdentityOf(weights[i]);
  }
  return "";
}

// Whether the elements of the result are elements of the arguments, or zeros.
bool Moves(const Node& node) {
  switch (FamilyOf(node)) {
    case Family::kMove:
      return PadsWithZero(node);
    case Family::kShape:
    case Family::kRelu:
    case Family::kMaxPool:
    case Family::kCat:
      return true;
    default:
      return IsState(node);
  }
}

// K1. Facts of channels are left out, since elements may have moved to others.
void AddMoved(const Graph& graph, ObservationView* seen) {
  for (const Node& node : graph.nodes) {
    if (node.outputs.size() != 1 || seen->met[node.outputs[0].raw()] || !Moves(node)) continue;
    bool is_met = true, is_extrapolated = false;
    Statistics moved;
    for (const ValueId v : ActivationsOf(node)) {
      is_met = is_met && seen->met[v.raw()] && !seen->statistics[v.raw()].empty();
      is_extrapolated = is_extrapolated || seen->extrapolated[v.raw()];
      moved.AddRange(seen->statistics[v.raw()]);
    }
    if (!is_met || moved.empty()) continue;
    seen->met[node.outputs[0].raw()] = true;
    seen->extrapolated[node.outputs[0].raw()] = is_extrapolated;
    seen->statistics[node.outputs[0].raw()] = std::move(moved);
  }
}

}  // namespace

void Conversions::Add(const Graph& graph, const std::vector<at::Tensor>& weights, const Observation& observation) {
  Known known;
  ObservationView seen = ObservationView::Of(observation);
  known.graph = WithStates(graph);
  known.weights = weights;
  known.kept = std::move(seen.kept);
  known.structure = StructureOf(known.graph, weights, &names_);
  known.statistics = std::move(seen.statistics);
  known.statistics.resize(known.graph.values.size());
  known.by_exact = PlacesOf(known.structure.exact);
  known.by_loose = PlacesOf(known.structure.loose);
  known.by_placed = PlacesOf(known.structure.placed);
  known.by_whole = PlacesOf(known.structure.whole);
  known.by_local = PlacesOf(known.structure.local);
  known_.push_back(std::move(known));
  for (const at::Tensor& weight : weights) {
    if (weight.defined()) weights_.Add(weight);
  }
}

// If several values of both graphs have one name, the n-th here is the n-th there. `count`: how many are here.
void Conversions::AddMatches(const Places& places, size_t k, uint32_t name, size_t place, size_t count,
                             Matches* matches) {
  const auto found = places.find(name);
  if (found == places.end()) return;
  const bool is_paired = found->second.size() == count;
  for (size_t i = 0; i < found->second.size(); ++i) {
    if (!is_paired || i == place) matches->emplace_back(k, found->second[i].raw());
  }
}

// structure/S2. Returns whether, for each type, the inputs of one graph are called as some or all of the other one's are.
bool Conversions::ComparesNames(const Structure& a, const Structure& b) {
  for (const auto& [type, names] : a.inputs) {
    const auto found = b.inputs.find(type);
    if (found == b.inputs.end()) continue;
    const std::set<std::string>& others = found->second;
    if (!std::includes(names.begin(), names.end(), others.begin(), others.end()) &&
        !std::includes(others.begin(), others.end(), names.begin(), names.end())) {
      return false;
    }
  }
  return true;
}

// K1. In a graph that calibration has not met, a value may have the exact name of another one by chance. For example, a round
// of a loop has the sizes of another round, or two inputs have one name. So values that are equal up to sizes count as well.
void Conversions::Match(const Graph& graph, const Structure& structure, ObservationView* seen) const {
  const size_t values = structure.exact.size();
  seen->statistics.assign(values, Statistics());
  seen->met.assign(values, true);
  seen->extrapolated.assign(values, false);
  const bool is_known = std::any_of(known_.begin(), known_.end(),
                                    [&](const Known& known) { return known.structure.exact == structure.exact; });
  std::vector<bool> compares_names;
  for (const Known& known : known_) compares_names.push_back(ComparesNames(known.structure, structure));
  const Places by_exact = PlacesOf(structure.exact), by_loose = PlacesOf(structure.loose),
               by_placed = PlacesOf(structure.placed), by_whole = PlacesOf(structure.whole);
  absl::flat_hash_map<uint32_t, size_t> exact_met, loose_met, placed_met, whole_met;
  for (size_t v = 0; v < values; ++v) {
    const uint32_t exact = structure.exact[v], loose = structure.loose[v], placed = structure.placed[v],
                   whole = structure.whole[v], local = structure.local[v];
    const size_t exact_place = exact_met[exact]++, loose_place = loose_met[loose]++,
                 placed_place = placed_met[placed]++, whole_place = whole_met[whole]++;
    Matches matches;
    for (size_t k = 0; k < known_.size(); ++k) {
      AddMatches(known_[k].by_exact, k, exact, exact_place, by_exact.at(exact).size(), &matches);
      if (is_known) continue;
      if (compares_names[k]) {
        AddMatches(known_[k].by_loose, k, loose, loose_place, by_loose.at(loose).size(), &matches);
      } else {
        AddMatches(known_[k].by_placed, k, placed, placed_place, by_placed.at(placed).size(), &matches);
      }
    }
    if (matches.empty() && local != 0) {
      for (size_t k = 0; k < known_.size(); ++k) {
        AddMatches(known_[k].by_local, k, local, 0, 0, &matches);  // no round is the n-th: there are never 0 of a name
      }
      seen->extrapolated[v] = !matches.empty();
    }
    const bool has_channels = !matches.empty();  // a part may have others
    for (size_t k = 0; k < known_.size() && !has_channels; ++k) {
      if (compares_names[k]) AddMatches(known_[k].by_whole, k, whole, whole_place, by_whole.at(whole).size(), &matches);
    }
    seen->met[v] = !matches.empty();
    std::sort(matches.begin(), matches.end());
    matches.erase(std::unique(matches.begin(), matches.end()), matches.end());
    for (const auto& [k, of] : matches) {
      if (has_channels) {
        seen->statistics[v].Add(known_[k].statistics[of]);
      } else {
        seen->statistics[v].AddRange(known_[k].statistics[of]);
      }
    }
  }
  AddMoved(graph, seen);
}

absl::StatusOr<Converted> Conversions::Convert(const Graph& recorded, const std::vector<at::Tensor>& weights,
                                               ObservationView seen, bool may_be_unseen) {
  const Graph graph = WithStates(recorded);
  Match(graph, StructureOf(graph, weights, &names_), &seen);
  auto quantized = ConvertSeen(graph, weights, seen, config_, &frozen_, may_be_unseen);
  if (!quantized.ok()) return quantized.status();
  Converted converted;
  converted.quantized = *std::move(quantized);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const OpReport& row = converted.quantized.report[i];
    const bool is_int8 = row.decision == Decision::kInt8;
    converted.is_int8 = converted.is_int8 || is_int8;
    if (!IsLayer(node)) continue;
    if (is_int8 && row.is_extrapolated) ++converted.extrapolated;
    const std::string weight = WeightOf(graph, node, weights);
    if (!may_be_unseen) {
      if (is_int8) int8_weights_.insert(weight);
      continue;
    }
    if (is_int8 || !FloatByRequest(config_, node).empty()) continue;
    const bool is_met = seen.met[node.outputs[0].raw()];
    if (is_met && !int8_weights_.contains(weight)) continue;  // as after calibration
    converted.lost.push_back({NameWithPlace(node), is_met ? row.reason : kNotMet});
  }
  DropRowsOfStates(graph, &converted.quantized.report);
  return converted;
}

// The errors of all graphs are known before the first one is converted: equal layers get equal biases (K2).
void Conversions::AddAllRoundingErrors() {
  for (Known& known : known_) {
    if (known.kept.empty()) continue;
    ObservationView seen;
    seen.runs = 1;
    seen.kept = std::exchange(known.kept, {});
    Match(known.graph, known.structure, &seen);
    // A graph that is refused here is refused again when it is converted.
    AddRoundingErrors(known.graph, known.weights, seen, config_, &frozen_, &known.statistics).IgnoreError();
  }
}

absl::StatusOr<Converted> Conversions::ConvertCalibrated(const Graph& graph, const std::vector<at::Tensor>& weights,
                                                         const Observation& observation, const QuantConfig& config) {
  config_ = config;
  AddAllRoundingErrors();
  return Convert(graph, weights, ObservationView::Of(observation), false);
}

absl::StatusOr<Converted> Conversions::ConvertRecorded(const Graph& graph, const std::vector<c10::IValue>& inputs) {
  ObservationView seen;
  seen.runs = 1;
  return Convert(graph, weights_.Among(inputs, graph.inputs.size()), std::move(seen), true);
}

std::vector<at::Tensor> Conversions::AllWeights() {
  std::vector<at::Tensor> all;
  weights_.AddTo(&all);
  frozen_.AddTo(&all);
  return all;
}

}  // namespace frametap::quant
