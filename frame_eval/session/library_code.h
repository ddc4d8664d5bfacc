// Library code: what a session leaves to CPython unless the user has named it or a recording passes through it.
//   L1  This is policy, and never decides what is right: code that is left alone runs as always.
//   L2  Code that the user has named (the function, the method, the module's `forward`) is captured wherever its file
//       lies (LibraryFilter::LeavesToPython).
#pragma once

#include <Python.h>

#include "frame_eval/segment/segment.h"
#include "guards/ref.h"

namespace frametap {

// Code without tensor ops worth a graph of its own: the standard library, NumPy, SciPy, and torch except for its
// layers, optimizers and distributions. Autograd, hooks, printing and torch's own compilers consist of operations that
// end a segment.
bool IsLibraryCode(PyCodeObject* code);

// Code that came with an installed package, or that a library has made (of named tuples, say).
bool IsPackageCode(PyCodeObject* code);

// Returns whether it is code of the import system itself, or the body of a module. Their callees run once: finders,
// decorators, tables being made.
bool BelongsToImport(PyCodeObject* code);

// Returns whether it is the function that plans the steps of torch.einsum where opt_einsum is installed. It searches among
// numbers and computes no tensor.
bool PlansEinsum(PyCodeObject* code);

// LibraryFilter: the code that the calls of a captured function leave to Python.
class LibraryFilter {
 public:
  explicit LibraryFilter(PyObject* function);  // that the user has named

  // Returns whether code is left with all that it calls.
  bool LeavesWhole(PyCodeObject* code, SegmentCache& store) const;
  bool LeavesToPython(PyCodeObject* code) const { return code != named_ && IsLibraryCode(code); }
  void NoteLeft(PyCodeObject* code);
  // Notes in the log why a call has left nothing there: something was left to Python from the beginning.
  void TellOfSilence(SegmentCache& store) const;

 private:
  PyCodeObject* const named_;  // borrowed
  Ref<> first_left_;           // the first code that was left to Python as a library's
};

}  // namespace frametap
