// The thread's EagerState: read it, and run under another one.
//   E1  A scope leaves the thread as it found it, exceptions included.
//   E2  The cache of autocast is emptied where the program emptied it, as the states record. It is also emptied at the
//       end of a scope that has entered autocast from a state without it, so that no cast weight outlives the run.
#pragma once

#include <c10/core/InferenceMode.h>

#include <optional>

#include "ir/graph/graph.h"

namespace frametap {

EagerState CurrentEagerState();

class EagerStateScope {
 public:
  EagerStateScope() : outer_(CurrentEagerState()), now_(outer_) {}
  ~EagerStateScope();
  EagerStateScope(const EagerStateScope&) = delete;
  EagerStateScope& operator=(const EagerStateScope&) = delete;

  void Enter(const EagerState& state) {
    if (!(state == now_)) Switch(state);
  }

 private:
  void Switch(const EagerState& state);

  const EagerState outer_;
  EagerState now_;
  bool has_entered_autocast_ = false;
  std::optional<c10::InferenceMode> inference_;  // while inference mode differs from the outer one
};

}  // namespace frametap
