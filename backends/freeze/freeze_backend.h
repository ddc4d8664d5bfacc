// FreezeBackend: the backend of a frozen function. Each graph is frozen as soon as it is recorded.
//   B1  An input is a weight if it is one of the tensors that were given when the backend was made, by identity.
//   B2  A graph that cannot be frozen runs as it was recorded, and says why.
//   B3  A call with NaN or infinity in its inputs runs as it was recorded (finite/N1).
// Not here: what freezing does (freeze.h); the texts that users read (python/frametap/_freeze.py).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backends/backend.h"
#include "backends/freeze/freeze.h"

namespace frametap::freeze {

class FreezeExecutable : public Executable {
 public:
  // `graph`: as it was recorded; it outlives the executable.
  FreezeExecutable(const Graph& graph, FrozenGraph frozen, std::unique_ptr<Executable> inner)
      : graph_(graph), frozen_(std::move(frozen)), inner_(std::move(inner)) {}

  std::vector<c10::IValue> Run(const std::vector<c10::IValue>& inputs, bool* changed) override;
  // A run of the recorded ops reads weights that the frozen graph does not.
  bool Reads(size_t input) override { return !frozen_.checked.empty() || inner_->Reads(input); }
  bool runs_recorded_ops() const override { return false; }
  bool releases_gil() const override { return inner_->releases_gil(); }
  bool approximates() const override { return frozen_.kernels > 0; }

  const FrozenGraph& frozen() const { return frozen_; }
  uint64_t runs() const { return runs_; }

 private:
  Executable& Recorded();

  const Graph& graph_;
  const FrozenGraph frozen_;
  const std::unique_ptr<Executable> inner_;
  std::once_flag is_recorded_made_;
  Graph recorded_graph_;
  std::unique_ptr<Executable> recorded_;
  std::atomic<uint64_t> runs_ = 0;
};

class FreezeBackend : public Backend {
 public:
  FreezeBackend(const std::vector<at::Tensor>& weights, Config config);

  std::string name() const override { return "freeze"; }
  absl::StatusOr<std::unique_ptr<Executable>> Compile(const Graph& graph) override { return native_->Compile(graph); }
  absl::StatusOr<std::unique_ptr<Executable>> CompileFor(const Graph& graph, const Examples& examples) override;

  // `weights`: by input; undefined for an input that is not one.
  absl::StatusOr<FrozenGraph> Freeze(const Graph& graph, const std::vector<at::Tensor>& weights);

  // B2: by graph that was not frozen.
  std::vector<std::string> problems() const;
  bool has_problems() const { return has_problems_; }

 private:
  const std::unique_ptr<Backend> native_ = MakeNativeBackend();
  const Config config_;
  quant::WeightSet weights_;
  quant::FrozenWeights frozen_;
  mutable std::mutex mutex_;
  std::vector<std::string> problems_;
  std::atomic<bool> has_problems_ = false;
};

}  // namespace frametap::freeze
