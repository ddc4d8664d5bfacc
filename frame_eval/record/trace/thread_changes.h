// ThreadChanges: modes and context variables of the thread, as far as a recording could have changed them.
#pragma once

#include <Python.h>

#include <cstdint>
#include <vector>

#include "ir/graph/eager_state.h"

namespace frametap {

class ThreadChanges {
 public:
  struct Mark {
    EagerState state;
    uint16_t backends = 0;
    int autocast_nesting = 0;
    uint32_t sets = 0, resets = 0;
  };
  ThreadChanges(const EagerState& state, uint16_t backends) : state(state), backends(backends) {}

  Mark Now() const { return {state, backends, autocast_nesting, static_cast<uint32_t>(sets_.size()), resets_}; }
  void Rewind(const Mark& mark);
  void Read();  // the thread's state as it is now

  // Context variables that the trace has set and not reset yet. A token is known by the epoch in which it was made.
  bool IsContextSet() const { return live_ != 0; }
  bool IsContextSet(PyObject* variable) const { return LastSet(variable) != nullptr; }
  void SetContext(PyObject* variable, uint32_t epoch);
  bool ResetContext(PyObject* variable, uint32_t token);  // false: the token is not of the variable's last set

  EagerState state;
  uint16_t backends = 0;  // as WorldState
  int autocast_nesting = 0;

 private:
  struct ContextSet {
    PyObject* variable;  // fixed, and so kept
    uint32_t epoch;
    uint32_t reset = 0;  // by the so many-th reset; 0: it is set
  };
  const ContextSet* LastSet(PyObject* variable) const;

  std::vector<ContextSet> sets_;  // in their order, those that were reset included
  uint32_t resets_ = 0;
  size_t live_ = 0;  // of `sets_`: not reset
};

}  // namespace frametap
