// Static int8 quantization of a captured graph: observe, convert, measure.
//   Q1  The float graph was captured in eval form. Its weights are inputs of the graph, with tensors given beside it. They
//       are frozen: the result does not see later changes of them.
//   Q2  Results have the same inputs in the same order; float weights are still taken, and ignored. There are as many
//       outputs, with the same shapes and dtypes, and the strides that layouts.h has.
//   Q3  The reference graph holds float ops between quantize and dequantize ops. It is the truth; `lowered` is a
//       function of it alone, so that it can be saved and lowered again elsewhere.
//   Q4  Every op of the float graph has a row that says int8 or why not.
//   Q5  No gradients: all ops of the results run in no-grad mode.
// Not here: capture; deciding which graphs to swap (the caller).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backends/backend.h"
#include "backends/quant/frozen.h"
#include "backends/quant/reported_op.h"
#include "backends/quant/statistics.h"
#include "ir/graph/graph.h"

namespace frametap::quant {

class Choices;

enum class Observer : uint8_t { kMinMax, kHistogram };

struct QuantConfig {
  Observer observer = Observer::kHistogram;
  // 8 is for activations in 0..255, 7 for 0..127, where u8 x s8 products saturate. 0 leaves the choice to this CPU.
  int activation_bits = 0;
  absl::flat_hash_set<std::string> float_ops;     // op names to leave in float: "aten.linear"
  absl::flat_hash_set<std::string> float_scopes;  // module paths to leave in float, with their submodules: "head"
  bool bias_correction = true;                    // bias_correction.h
  // The dtype in which attention multiplies: float32 or bfloat16. None leaves the choice to this CPU.
  std::optional<c10::ScalarType> float_dtype;
  std::shared_ptr<Choices> choices;  // a form for each layer (choose.h); null: static int8 wherever it can be
  bool measure = true;               // fill in the SQNR from the runs that the observation kept
};

enum class Decision : uint8_t { kInt8, kFloat, kFolded, kFollows };
const char* ToString(Decision decision);

struct OpReport : ReportedOp {
  Decision decision = Decision::kFloat;
  std::string reason{};                     // how it is int8, where it was folded, or why it is float, with advice
  std::optional<double> sqnr{};             // dB: this op quantized, everything before it in float
  std::optional<double> cumulative_sqnr{};  // dB: everything up to here quantized; infinite if nothing differs
  bool is_extrapolated = false;             // it has the ranges of other rounds of a loop
  std::string not_comparable{};             // why there is none: the sizes in float and in int8 differ
};

// The statistics of calibration. Any thread may add to it.
class Observation {
 public:
  // At most so many runs, and bytes of them, are kept for Measure.
  static constexpr size_t kKeptRuns = 4;
  static constexpr int64_t kKeptBytes = int64_t{64} << 20;

  int64_t runs() const;

 private:
  friend class ObservingExecutable;
  friend struct ObservationView;

  mutable std::mutex mutex_;
  int64_t runs_ = 0;
  std::vector<Statistics> statistics_;          // by value of the float graph
  std::vector<std::vector<c10::IValue>> kept_;  // inputs of whole runs
  int64_t kept_bytes_ = 0;
};

// Runs the graph as it is and adds what it sees to `observation`.
absl::StatusOr<std::unique_ptr<Executable>> MakeObservingExecutable(const Graph& graph, std::vector<at::Tensor> weights,
                                                                    std::shared_ptr<Observation> observation);

// An executable that keeps the inputs that the recording had, as they were before it wrote to them. The recorded call
// is thus observed too, and the program runs once.
std::unique_ptr<Executable> MakeCalibratingExecutable(std::unique_ptr<Executable> native, const Examples& examples);
// Returns those inputs and forgets them. None if the executable has none (left).
std::optional<std::vector<c10::IValue>> TakeFirstInputs(Executable& executable);

struct QuantizedGraph {
  Graph reference;
  Graph lowered;
  std::string lowering_note;     // why `lowered` is the reference; "" if it is not
  std::vector<OpReport> report;  // by node of the float graph
  // Links for Measure.
  std::vector<ValueId> reference_origin;  // by value of `reference`: the float graph's value
  std::vector<ValueId> measured;          // by node of the float graph: the value of `reference` to compare, or invalid
};

// Returns kFailedPrecondition if nothing was observed. Returns kInvalidArgument if NaN or infinity was seen, if the graph
// is in train mode, or if weights and graph do not fit.
absl::StatusOr<QuantizedGraph> Convert(const Graph& graph, const std::vector<at::Tensor>& weights,
                                       const Observation& observation, const QuantConfig& config = {});

// Q3. kUnimplemented: this torch or CPU has not the kernels that are needed. `frozen`: where packed weights are kept; may
// be null.
absl::StatusOr<Graph> Lower(const Graph& reference, FrozenWeights* frozen = nullptr);

// Fills in the SQNR of the report from whole runs' inputs. kInvalidArgument: an input does not fit the graph.
absl::Status Measure(const Graph& graph, const std::vector<std::vector<c10::IValue>>& runs, QuantizedGraph* quantized);

// 10 log10(signal / noise) of `got` against `want`; infinite if equal.
double Sqnr(const at::Tensor& want, const at::Tensor& got);

}  // namespace frametap::quant
