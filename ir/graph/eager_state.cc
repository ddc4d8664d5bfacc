#include "ir/graph/eager_state.h"

#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "ir/autocast.h"

namespace frametap {

EagerState CurrentEagerState() {
  const c10::AutogradState& autograd = c10::AutogradState::get_tls_state();
  EagerState s;
  s.grad_mode = autograd.get_grad_mode();
  s.inference_mode = autograd.get_inference_mode();
  s.autocast_cpu = !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutocastCPU);
  s.autocast_cache = at::autocast::is_autocast_cache_enabled();
  s.autocast_cpu_dtype = at::autocast::get_autocast_dtype(at::kCPU);
  return s;
}

EagerStateScope::~EagerStateScope() {
  EagerState outer = outer_;
  outer.autocast_cleared = now_.autocast_cleared;
  Enter(outer);
  if (has_entered_autocast_ && at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
}

void EagerStateScope::Switch(const EagerState& state) {
  if (state.inference_mode != now_.inference_mode) {
    // Its guard replaces the grad mode too, when it is made and when it ends.
    if (inference_) {
      inference_.reset();
    } else {
      inference_.emplace(state.inference_mode);
    }
    // Its end also restores the thread's dispatch keys, and autocast is one of them.
    at::autocast::set_autocast_enabled(at::kCPU, now_.autocast_cpu);
  }
  c10::GradMode::set_enabled(state.grad_mode);
  if (state.autocast_cpu != now_.autocast_cpu) {
    at::autocast::set_autocast_enabled(at::kCPU, state.autocast_cpu);
    if (state.autocast_cpu && !outer_.autocast_cpu && !has_entered_autocast_) {
      at::autocast::increment_nesting();
      has_entered_autocast_ = true;
    }
  }
  if (state.autocast_cleared != now_.autocast_cleared) at::autocast::clear_cache();
  if (state.autocast_cpu_dtype != now_.autocast_cpu_dtype) {
    at::autocast::set_autocast_dtype(at::kCPU, state.autocast_cpu_dtype);
  }
  if (state.autocast_cache != now_.autocast_cache) at::autocast::set_autocast_cache_enabled(state.autocast_cache);
  now_ = state;
}

}  // namespace frametap
