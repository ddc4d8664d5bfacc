#include "backends/callable/thread_state.h"

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include "guards/kinds/anomaly_mode.h"
#include "ir/autocast.h"

namespace frametap {

KeptThreadState::KeptThreadState()
    : autograd_(c10::AutogradState::get_tls_state()),
      autocast_(at::autocast::is_autocast_enabled(at::kCPU)),
      rest_(Now()) {}

bool KeptThreadState::IsSwitched() const {
  const c10::AutogradState& now = c10::AutogradState::get_tls_state();
  return now.get_grad_mode() != autograd_.get_grad_mode() ||
         now.get_inference_mode() != autograd_.get_inference_mode() ||
         at::autocast::is_autocast_enabled(at::kCPU) != autocast_ || !(Now() == rest_);
}

KeptThreadState::Rest KeptThreadState::Now() {
  const at::Context& context = at::globalContext();
  // torch counts blocks of autocast, and says how many there are only as one ends.
  at::autocast::increment_nesting();
  return Rest{
      .autocast_dtype = at::autocast::get_autocast_dtype(at::kCPU),
      .default_dtype = c10::get_default_dtype_as_scalartype(),
      .autocast_nesting = at::autocast::decrement_nesting(),
      .autocast_cache = at::autocast::is_autocast_cache_enabled(),
      .anomaly = AnomalyModeOfProgram(),
      .anomaly_checks_nan = torch::autograd::AnomalyMode::should_check_nan(),
      .deterministic = context.deterministicAlgorithms(),
      .deterministic_warns = context.deterministicAlgorithmsWarnOnly(),
      .fills_memory = context.deterministicFillUninitializedMemory(),
  };
}

void KeptThreadState::Restore() const {
  at::ThreadLocalState::setThreadLocalState(local_);
  const Rest now = Now();
  if (now == rest_) return;
  for (int n = now.autocast_nesting; n < rest_.autocast_nesting; ++n) at::autocast::increment_nesting();
  for (int n = now.autocast_nesting; n > rest_.autocast_nesting; --n) {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  }
  at::autocast::set_autocast_dtype(at::kCPU, rest_.autocast_dtype);
  at::autocast::set_autocast_cache_enabled(rest_.autocast_cache);
  torch::autograd::AnomalyMode::set_enabled(rest_.anomaly, rest_.anomaly_checks_nan);
  if (now.default_dtype != rest_.default_dtype) {
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(rest_.default_dtype));
  }
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(rest_.deterministic, rest_.deterministic_warns);
  context.setDeterministicFillUninitializedMemory(rest_.fills_memory);
}

}  // namespace frametap
