#include "backends/freeze/freeze_backend.h"

#include <utility>

namespace frametap::freeze {

std::vector<c10::IValue> FreezeExecutable::Run(const std::vector<c10::IValue>& inputs, bool* changed) {
  ++runs_;
  return (AreFinite(frozen_.checked, inputs) ? *inner_ : Recorded()).Run(inputs, changed);
}

// The recorded ops, without gradients (freeze/F6).
Executable& FreezeExecutable::Recorded() {
  std::call_once(is_recorded_made_, [this] {
    recorded_graph_ = graph_;
    for (EagerState& state : recorded_graph_.states) state.grad_mode = false;
    auto made = MakeNativeBackend()->Compile(recorded_graph_);
    TORCH_CHECK(made.ok(), made.status().message());
    recorded_ = *std::move(made);
  });
  return *recorded_;
}

FreezeBackend::FreezeBackend(const std::vector<at::Tensor>& weights, Config config) : config_(config) {
  for (const at::Tensor& weight : weights) weights_.Add(weight);
}

std::vector<std::string> FreezeBackend::problems() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return problems_;
}

absl::StatusOr<FrozenGraph> FreezeBackend::Freeze(const Graph& graph, const std::vector<at::Tensor>& weights) {
  return freeze::Freeze(graph, weights, config_, &frozen_);
}

absl::StatusOr<std::unique_ptr<Executable>> FreezeBackend::CompileFor(const Graph& graph, const Examples& examples) {
  auto frozen = Freeze(graph, weights_.Among(examples.values, graph.inputs.size()));
  absl::Status problem = frozen.status();
  if (problem.ok()) {
    auto inner = native_->Compile(frozen->graph);
    if (inner.ok()) {
      return std::make_unique<FreezeExecutable>(graph, *std::move(frozen), *std::move(inner));
    }
    problem = inner.status();
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  problems_.emplace_back(problem.message());
  has_problems_ = true;
  return native_->CompileFor(graph, examples);
}

}  // namespace frametap::freeze
