#include "backends/quant/quant_backend.h"

#include <c10/core/InferenceMode.h>

#include <utility>

#include "backends/quant/finite_checks.h"
#include "backends/quant/linears.h"
#include "backends/quant/op_table.h"

namespace frametap::quant {
namespace {

thread_local constinit Tally* current = nullptr;

// While alive, a graph runs in the call of `tally`, which may be null.
class Running {
 public:
  explicit Running(Tally* tally) : tally_(tally) {
    if (tally_ != nullptr) ++tally_->running;
  }
  ~Running() {
    if (tally_ != nullptr) --tally_->running;
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  Tally* const tally_;
};

bool HasLayers(const Graph& graph) {
  for (const Node& node : graph.nodes) {
    if (IsLayer(node) || MayBeLinear(node) || FamilyOf(node) == Family::kRecurrent) return true;
  }
  return false;
}

}  // namespace

TallyScope::TallyScope(Tally* tally) : previous_(std::exchange(current, tally)) {}
TallyScope::~TallyScope() { current = previous_; }

QuantExecutable::QuantExecutable(Converted converted, std::unique_ptr<Executable> inner)
    : converted_(std::move(converted)), inner_(std::move(inner)) {}

std::vector<c10::IValue> QuantExecutable::Run(const std::vector<c10::IValue>& inputs, bool* changed) {
  std::vector<c10::IValue> outputs;
  {
    const Running now(current);
    outputs = inner_->Run(inputs, changed);
  }
  ++runs_;
  if (current != nullptr) {
    if (converted_.is_int8) ++current->int8;
    if (!converted_.lost.empty()) {
      ++current->unconverted;
      current->lost = converted_.lost;
    }
  }
  return outputs;
}

void QuantExecutable::NoteRecordedRun() {
  if (current == nullptr) return;
  if (converted_.is_int8) ++current->recorded;
  if (!converted_.lost.empty()) {
    ++current->unconverted;
    current->lost = converted_.lost;
  }
}

absl::StatusOr<std::unique_ptr<Executable>> QuantBackend::MakeExecutable(Converted converted) {
  const Graph& lowered = converted.quantized.lowered;
  auto inner = native_->Compile(checks_finite_ ? WithFiniteChecks(lowered) : lowered);
  if (!inner.ok()) return inner.status();
  return std::make_unique<QuantExecutable>(std::move(converted), *std::move(inner));
}

absl::StatusOr<std::unique_ptr<Executable>> QuantBackend::CompileFor(const Graph& graph, const Examples& examples) {
  auto native = native_->CompileFor(graph, examples);
  if (!is_calibrated_ && native.ok()) return MakeCalibratingExecutable(*std::move(native), examples);
  if (!native.ok() || !HasLayers(graph)) return native;
  const c10::InferenceMode no_inference_mode(false);  // what is made here outlives the call
  auto converted = conversions_.ConvertRecorded(graph, examples.values);
  if (converted.ok() && converted->is_int8) {
    auto executable = MakeExecutable(*std::move(converted));
    if (executable.ok()) return executable;
    converted = executable.status();
  }
  Converted in_float;  // B2
  if (converted.ok()) {
    in_float = *std::move(converted);
  } else {
    in_float.lost = {{"", std::string(converted.status().message())}};
  }
  return std::make_unique<QuantExecutable>(std::move(in_float), *std::move(native));
}

}  // namespace frametap::quant
