#include "backends/freeze/freeze_backend.h"

#include <utility>

namespace frametap::freeze {

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
      return std::make_unique<FreezeExecutable>(*std::move(frozen), *std::move(inner));
    }
    problem = inner.status();
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  problems_.emplace_back(problem.message());
  has_problems_ = true;
  return native_->CompileFor(graph, examples);
}

}  // namespace frametap::freeze
