// Conversions: what calibration has learned of all graphs of a function, for these and for all that are recorded later.
//   K1  Statistics belong to values by their structure (structure.h). A graph recorded again is converted with the same
//       scales. Any other graph gets the scales of all graphs that are equal up to sizes. Later rounds of a loop than
//       calibration has met get the scales of all rounds of the same layers; the report marks their ops. A value that
//       calibration has not met, and whose op only moves elements of values that it has met, has their ranges. A value that
//       differs from a value there by parts and padding has them, too.
//   K2  Weights are folded, quantized and packed once.
//   K3  A layer of a later graph that is float though it was int8 after calibration, or because calibration did not meet it,
//       is named, with the reason.
// Not here: when graphs are recorded; what runs them (quant_backend.h).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "backends/quant/observe.h"
#include "backends/quant/quantize.h"
#include "backends/quant/structure.h"

namespace frametap::quant {

// A layer that runs in float, and is int8 elsewhere.
struct LostLayer {
  std::string layer;  // "aten.linear in head"; "" of a whole graph
  std::string why;
  std::string Text() const { return layer.empty() ? why : layer + ": " + why; }
};

struct Converted {
  QuantizedGraph quantized;
  bool is_int8 = false;         // some op of it
  std::vector<LostLayer> lost;  // K3
  int extrapolated = 0;         // layers in int8 with the ranges of other rounds (K1)
};

class Conversions {
 public:
  // A graph that calibration has run, with its statistics. `weights` as in Convert.
  void Add(const Graph& graph, const std::vector<at::Tensor>& weights, const Observation& observation);

  // One of the graphs that were added. kFailedPrecondition and so on as of Convert.
  absl::StatusOr<Converted> ConvertCalibrated(const Graph& graph, const std::vector<at::Tensor>& weights,
                                              const Observation& observation, const QuantConfig& config);

  // Any graph of the function. `inputs` are the inputs of the recording, beside Graph::inputs.
  absl::StatusOr<Converted> ConvertRecorded(const Graph& graph, const std::vector<c10::IValue>& inputs);

  // The weights of all graphs, and what has been made of them once.
  std::vector<at::Tensor> AllWeights();

 private:
  using Places = absl::flat_hash_map<uint32_t, std::vector<ValueId>>;  // by name, in the order of the values
  struct Known {
    Graph graph;
    std::vector<at::Tensor> weights;
    std::vector<std::vector<c10::IValue>> kept;  // inputs of runs; none once their rounding errors are known
    Structure structure;
    std::vector<Statistics> statistics;  // by value
    Places by_exact, by_loose, by_placed, by_whole, by_local;
  };

  void AddAllRoundingErrors();
  void Match(const Graph& graph, const Structure& structure, ObservationView* seen) const;
  using Matches = std::vector<std::pair<size_t, uint32_t>>;  // places in `known_`, and values there
  static void AddMatches(const Places& places, size_t k, uint32_t name, size_t place, size_t count, Matches* matches);
  static bool ComparesNames(const Structure& a, const Structure& b);
  absl::StatusOr<Converted> Convert(const Graph& recorded, const std::vector<at::Tensor>& weights, ObservationView seen,
                                    bool may_be_unseen);

  QuantConfig config_;
  Names names_;
  FrozenWeights frozen_;
  std::vector<Known> known_;
  WeightSet weights_;
  absl::flat_hash_set<std::string> int8_weights_;  // by IdentityOf
};

}  // namespace frametap::quant
