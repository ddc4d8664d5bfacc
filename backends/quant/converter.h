// Converter: makes the reference graph, float ops between quantize and dequantize, of a normalised graph and what has been
// decided about its nodes.
//   E1  It is the only place that writes the patterns of the reference graph; Patterns (patterns.h) finds them again.
//   E2  A value with an int8 producer exists in bytes only: all its readers read those.
// Not here: the decisions (annotate.h); kernels (lower.cc).
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "backends/quant/annotate.h"
#include "backends/quant/bias_correction.h"
#include "backends/quant/frozen.h"
#include "backends/quant/normalise.h"
#include "backends/quant/observe.h"
#include "backends/quant/operators.h"
#include "backends/quant/params.h"
#include "backends/quant/quantize.h"
#include "backends/quant/rewrite.h"

namespace frametap::quant {

class Converter {
 public:
  // `frozen`: where quantized weights are kept; may be null.
  Converter(const NormalizedGraph& normal, const Annotation& annotation, int bits, FrozenWeights* frozen);

  // Chooses the parameters of each class of values, from all members whose range counts. `unseen`: values of whose class
  // nothing is known; may be null, and that is an error then.
  absl::Status ChooseParams(const Graph& source, const ObservationView& seen, const QuantConfig& config,
                            std::vector<ValueId>* unseen);
  void SetParams(ValueId v, const Params& params) { params_[v.raw()] = params; }
  // Lets the biases of layers be corrected by the channel facts of calibration.
  void ChooseCorrections(const ObservationView& seen);
  // Gives each static layer a bias of its own, which a run of the reference graph may replace.
  void MakeBiases();

  void Run();

  const Params& ParamsFor(ValueId v) const { return params_[v.raw()]; }
  const ChannelFacts& FactsOf(NodeId layer) const { return channels_[layer.raw()]; }
  // The value that int8 ops read for the float value v, or an invalid id.
  ValueId DequantizedOf(ValueId v) const { return dequantized_[v.raw()]; }
  // The value to compare with the float value v: its bytes, or itself.
  ValueId Measured(ValueId v) { return stored_[v.raw()].valid() ? stored_[v.raw()] : out_.at(v); }
  Rewrite& out() { return out_; }

 private:
  const Statistics* StatisticsOf(ValueId v, const ObservationView& seen) const;
  absl::Status Unseen(ValueId v) const;

  ValueId Read(ValueId v, bool int8_reader);
  ValueId ReadAsMade(ValueId v);
  std::vector<Arg> Reads(NodeId n, const std::vector<Arg>& args);
  void Store(ValueId v, const Node& like);
  void StoreKnown(ValueId v);
  void SetBytes(ValueId v, ValueId bytes, const Node& like);
  QuantizedWeight Quantized(ValueId v, int64_t axis);
  ValueId Weight(ValueId v, const Node& like);
  ValueId Bias(ValueId v);
  ValueId CorrectedBias(NodeId n, ValueId weight, const std::optional<ValueId>& bias);

  void EmitAnchor(NodeId n);
  void EmitDynamic(NodeId n);
  template <class F>
  void EmitLayer(NodeId n, const F& read);
  void EmitRecurrence(NodeId n);

  const NormalizedGraph& normal_;
  const Graph& from_;
  const Annotation& a_;
  const int bits_;
  FrozenWeights* const frozen_;
  const std::vector<std::vector<ValueId>> layouts_;
  Rewrite out_;
  std::vector<Params> params_;
  std::vector<ChannelFacts> channels_;  // by node; none: the bias is not corrected
  std::vector<ValueId> dequantized_;
  std::vector<ValueId> stored_;
  std::vector<ValueId> laid_out_;
  absl::flat_hash_map<std::pair<ValueId, int64_t>, ValueId> weights_;  // by the axis of the outputs, too
  absl::flat_hash_map<ValueId, ValueId> biases_;
  const c10::OperatorHandle quantize_ = FindOperator("frametap::quantize_per_tensor");
  const c10::OperatorHandle dequantize_ = FindOperator("frametap::dequantize_per_tensor");
  const c10::OperatorHandle dequantize_channel_ = FindOperator("frametap::dequantize_per_channel");
};

}  // namespace frametap::quant
