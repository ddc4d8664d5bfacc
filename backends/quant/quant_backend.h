// QuantBackend: the backend of a quantized function. Until the calibration is over it is the native one; from then on every
// graph that is recorded becomes int8 as far as calibration has met its parts.
//   B1  A run is counted: by its executable, and by the tally of the call that it belongs to.
//   B2  A graph whose conversion fails runs in float, and says why.
// Not here: calibration, the texts that users read (python/frametap/_quantize.py).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backends/backend.h"
#include "backends/quant/conversions.h"

namespace frametap::quant {

// The parts that ran in one call on this thread.
struct Tally {
  int int8 = 0;                 // runs of graphs with int8 ops
  int recorded = 0;             // recordings of such graphs, which ran in float
  int unconverted = 0;          // runs of graphs in float, or with layers in float that were int8 after calibration
  std::vector<LostLayer> lost;  // of the last of these
  int running = 0;              // graphs that run at this moment
};

// While alive, runs on this thread are counted in `tally`. Nests; the innermost counts.
class TallyScope {
 public:
  explicit TallyScope(Tally* tally);
  ~TallyScope();
  TallyScope(const TallyScope&) = delete;
  TallyScope& operator=(const TallyScope&) = delete;

 private:
  Tally* const previous_;
};

class QuantExecutable : public Executable {
 public:
  QuantExecutable(Converted converted, std::unique_ptr<Executable> inner);

  std::vector<c10::IValue> Run(const std::vector<c10::IValue>& inputs, bool* changed) override;
  bool Reads(size_t input) override { return inner_->Reads(input); }
  bool releases_gil() const override { return inner_->releases_gil(); }
  bool approximates() const override { return converted_.is_int8; }
  void NoteRecordedRun() override;

  const Converted& converted() const { return converted_; }
  uint64_t runs() const { return runs_; }

 private:
  const Converted converted_;
  const std::unique_ptr<Executable> inner_;
  std::atomic<uint64_t> runs_ = 0;
};

class QuantBackend : public Backend {
 public:
  // `checks_finite`: NaN and infinity are noted where they would become bytes (finite_checks.h).
  explicit QuantBackend(bool checks_finite = false) : checks_finite_(checks_finite) {}

  std::string name() const override { return "quant"; }
  bool reads_words() const override { return is_calibrated_; }
  bool keeps_first_values() const override { return !is_calibrated_; }
  absl::StatusOr<std::unique_ptr<Executable>> Compile(const Graph& graph) override { return native_->Compile(graph); }
  absl::StatusOr<std::unique_ptr<Executable>> CompileFor(const Graph& graph, const Examples& examples) override;

  Conversions& conversions() { return conversions_; }
  absl::StatusOr<std::unique_ptr<Executable>> MakeExecutable(Converted converted);
  void EndCalibration() { is_calibrated_ = true; }

 private:
  const std::unique_ptr<Backend> native_ = MakeNativeBackend();
  const bool checks_finite_;
  Conversions conversions_;
  bool is_calibrated_ = false;
};

}  // namespace frametap::quant
