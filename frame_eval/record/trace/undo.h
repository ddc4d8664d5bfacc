// UndoLog: takes back the changes of a recording to the program. It is used under fullgraph=True if the graph ended
// early, and if the recorded call is answered by a replay.
//   U1  Steps are taken back in reverse order; what cannot be taken back (work of unknown C code) ends the segment
//       before it happens, so there is none.
//   U2  A container or a tensor is copied before its first change only: that is what it must be again.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "frame_eval/state/tensor_state.h"
#include "frame_eval/state/thread_state.h"
#include "guards/cpython/iterator_view.h"
#include "guards/ref.h"
#include "ir/segment/segment_ir.h"

namespace frametap {

class UndoLog {
 public:
  UndoLog() = default;                                                        // remembers the state of the thread
  void Before(Effect::Kind kind, PyObject* target, const std::string& name);  // the change has not happened yet
  void Before(const at::Tensor& written);                                     // likewise
  bool IsComplete() const;  // false: a change is of a kind that is not taken back
  void NoteAutocastNesting(int nesting) { autocast_nesting_ = nesting; }
  void TakeBack();
  Py_ssize_t CountOf(PyObject* object) const;  // references held here

 private:
  struct Step {
    Effect::Kind kind;
    Ref<> target;
    std::string name;
    Ref<> old;  // attribute, global or cell content, or a copy of the container; empty: there was none
    std::optional<IteratorPlace> place;
  };
  static void TakeBack(Step& step);

  std::vector<Step> steps_;
  std::vector<TensorState> tensors_;
  absl::flat_hash_set<const void*> copied_;  // containers of `steps_`, and TensorImpls of `tensors_`
  ThreadState thread_;
  int autocast_nesting_ = 0;
};

}  // namespace frametap
