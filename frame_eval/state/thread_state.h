// ThreadState: the hidden inputs of ops and Python code on a thread. These are modes of torch, context variables, and the
// random state of the CPU.
//   H1  Putting it back runs no code of the program.
// Not here: what a graph takes from it (ir/graph/eager_state.h), what guards compare (guards/kinds/world.h).
#pragma once

#include <Python.h>

#include <memory>

namespace frametap {

class ThreadState {
 public:
  ThreadState();
  ~ThreadState();
  ThreadState(const ThreadState&) = delete;
  ThreadState& operator=(const ThreadState&) = delete;

  // `autocast_nesting`: how many blocks of autocast have been entered and not left since.
  void PutBack(int autocast_nesting) const;

 private:
  struct Saved;
  std::unique_ptr<Saved> saved_;
};

}  // namespace frametap
