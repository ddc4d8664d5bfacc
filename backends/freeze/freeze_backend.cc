#include "backends/freeze/freeze_backend.h"

#include <utility>

namespace frametap::freeze {

FreezeBackend::FreezeBackend(const std::vector<at::Tensor>& weights, Config config) : config_(config) {
  for (const at::Tensor& weight : weights) weights_.emplace(quant::IdentityOf(weight), weight);
}

std::vector<std::string> FreezeBackend::problems() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return problems_;
}

absl::StatusOr<std::unique_ptr<Executable>> FreezeBackend::CompileFor(const Graph& graph, const Examples& examples) {
  std::vector<at::Tensor> weights(graph.inputs.size());
  for (size_t i = 0; i < examples.values.size() && i < weights.size(); ++i) {
    if (!examples.values[i].isTensor()) continue;
    const auto found = weights_.find(quant::IdentityOf(examples.values[i].toTensor()));
    if (found != weights_.end()) weights[i] = found->second;
  }
  auto frozen = Freeze(graph, weights, config_, &frozen_);
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
  return native_->CompileFor(graph, examples);
}

}  // namespace frametap::freeze
