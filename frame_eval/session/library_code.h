// Library code: what a session leaves to CPython unless the user has named it or a recording passes through it.
//   L1  This is policy, and never decides what is right: code that is left alone runs as always.
//   L2  Code that the user has named (the function, the method, the module's `forward`) is captured wherever its file
//       lies (Session::IsLeftToPython).
#pragma once

#include <Python.h>

namespace frametap {

// Code without tensor ops worth a graph of its own: the standard library, NumPy, SciPy, and torch except for its
// layers, optimizers and distributions. Autograd, hooks, printing and torch's own compilers consist of operations that
// end a segment.
bool IsLibraryCode(PyCodeObject* code);

// Code that came with an installed package, or that a library has made (of named tuples, say).
bool IsPackageCode(PyCodeObject* code);

}  // namespace frametap
