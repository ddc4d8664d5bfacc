#include "frame_eval/state/thread_state.h"

#include <ATen/Context.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/DefaultDtype.h>

#include <array>
#include <cstdint>
#include <vector>

#include "frame_eval/cpython/contextvars.h"
#include "frame_eval/state/aten_pause.h"
#include "frame_eval/state/random_state.h"
#include "guards/kinds/attention_switches.h"
#include "ir/autocast.h"

namespace frametap {

struct ThreadState::Saved {
  at::ThreadLocalState modes;
  bool autocast_cache = at::autocast::is_autocast_cache_enabled();
  caffe2::TypeMeta default_dtype = c10::get_default_dtype();
  bool cudnn = at::globalContext().userEnabledCuDNN();
  bool benchmarks = at::globalContext().benchmarkCuDNN();
  int benchmark_limit = at::globalContext().benchmarkLimitCuDNN();
  bool deterministic_cudnn = at::globalContext().deterministicCuDNN();
  AttentionSwitches attention = AttentionSwitches::Now();
  bool overrideable_attention = at::globalContext().userEnabledOverrideableSDP();
  std::array<at::SDPBackend, at::num_sdp_backends> order_of_attention = at::globalContext().sDPPriorityOrder();
  at::Tensor random = RandomState();
  ContextVariables variables;
};

ThreadState::ThreadState() {
  AtenPause pause;
  saved_ = std::make_unique<Saved>();
}

ThreadState::~ThreadState() = default;

void ThreadState::PutBack(int autocast_nesting) const {
  AtenPause pause;
  at::ThreadLocalState::setThreadLocalState(saved_->modes);
  at::autocast::set_autocast_cache_enabled(saved_->autocast_cache);
  for (; autocast_nesting > 0; --autocast_nesting) {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  }
  for (; autocast_nesting < 0; ++autocast_nesting) at::autocast::increment_nesting();
  c10::set_default_dtype(saved_->default_dtype);
  at::Context& context = at::globalContext();
  context.setUserEnabledCuDNN(saved_->cudnn);
  context.setBenchmarkCuDNN(saved_->benchmarks);
  context.setBenchmarkLimitCuDNN(saved_->benchmark_limit);
  context.setDeterministicCuDNN(saved_->deterministic_cudnn);
  saved_->attention.Set();
  context.setSDPUseOverrideable(saved_->overrideable_attention);
  std::vector<int64_t> order;
  for (const at::SDPBackend kind : saved_->order_of_attention) order.push_back(static_cast<int64_t>(kind));
  context.setSDPPriorityOrder(order);
  SetRandomState(saved_->random);
  saved_->variables.PutBack();
}

}  // namespace frametap
