#include "backends/quant/first_rows.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <exception>

#include "backends/quant/op_table.h"
#include "backends/reference/graph_interpreter.h"
#include "ir/ops/op_facts.h"
#include "ir/passes/writes.h"

namespace frametap::quant {
namespace {

// Kernels of other sizes add in another order.
constexpr double kRelative = 1e-3;

// Whether a run draws random numbers or changes its inputs.
bool HasEffects(const Graph& graph) {
  for (const Node& node : graph.nodes) {
    const bool drops_nothing = FamilyOf(node) == Family::kDropout && ConstBool(FindArg(node, "train")) == false;
    if (node.op && FactsOf(*node.op).random && !drops_nothing) return true;
  }
  const std::vector<bool> written = WrittenValues(graph);
  for (const ValueId v : graph.inputs) {
    if (v.raw() < written.size() && written[v.raw()]) return true;
  }
  for (const auto& [v, tensor] : graph.constants) {
    if (v.raw() < written.size() && written[v.raw()]) return true;
  }
  return false;
}

bool IsBatched(const c10::IValue& value, int64_t batch) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().dim() > 0 &&
         value.toTensor().size(0) == batch;
}

bool AreClose(const at::Tensor& want, const at::Tensor& got) {
  if (want.dtype() != got.dtype() || !want.sizes().equals(got.sizes())) return false;
  if (want.numel() == 0) return true;
  if (!want.is_floating_point()) return want.equal(got);
  const at::Tensor exact = want.to(at::kDouble);
  return exact.allclose(got.to(at::kDouble), kRelative, kRelative * exact.abs().max().item<double>(), true);
}

}  // namespace

int64_t BatchOf(const std::vector<c10::IValue>& inputs, const std::vector<at::Tensor>& weights) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].isTensor() && !weights[i].defined() && inputs[i].toTensor().dim() > 0) {
      return inputs[i].toTensor().size(0);
    }
  }
  return 0;
}

std::optional<std::vector<c10::IValue>> FirstRows(const Graph& graph, const std::vector<at::Tensor>& weights,
                                                  const std::vector<c10::IValue>& inputs,
                                                  const std::vector<c10::IValue>& outputs, int64_t rows) {
  const int64_t batch = BatchOf(inputs, weights);
  if (rows < 1 || rows >= batch || HasEffects(graph)) return std::nullopt;
  const at::NoGradGuard no_grad;
  std::vector<c10::IValue> part = inputs;
  for (size_t i = 0; i < part.size(); ++i) {
    if (weights[i].defined()) continue;
    if (IsBatched(part[i], batch)) {
      part[i] = part[i].toTensor().detach().narrow(0, 0, rows).clone();
    } else if (part[i].isTensor()) {
      part[i] = part[i].toTensor().detach().clone();
    } else if (part[i].isInt() && part[i].toInt() == batch) {
      part[i] = rows;
    }
  }
  try {
    GraphInterpreter walk(graph, part);
    while (!walk.done()) walk.Step();
    const std::vector<c10::IValue> found = walk.Outputs();
    bool is_any = false;
    for (size_t i = 0; i < found.size(); ++i) {
      if (!outputs[i].isTensor() || !found[i].isTensor()) continue;
      const bool is_batched = IsBatched(outputs[i], batch);
      const at::Tensor& whole = outputs[i].toTensor();
      if (!AreClose(is_batched ? whole.narrow(0, 0, rows) : whole, found[i].toTensor())) return std::nullopt;
      is_any = is_any || is_batched;
    }
    if (!is_any) return std::nullopt;
  } catch (const std::exception&) {
    return std::nullopt;  // a size of the whole batch is part of the graph
  }
  return part;
}

}  // namespace frametap::quant
