// Liveness of locals: a backward data-flow over the instructions of a code object.
//   V1  A local is live where the frame could read it before writing it, through any path, exception handlers included.
//   V2  Cells and free variables are always live: another function may read them.
//   V3  In a function that names `locals`, `vars`, `eval`, `exec`, `dir`, `_getframe` or `currentframe` every local is
//       live: they can see locals that no instruction reads.
//   V4  In a function that names `super` the first argument is live: super() without arguments takes it from the frame.
#pragma once

#include <Python.h>

namespace frametap {

// An instruction as the data-flow sees it. Indices are code units.
struct FlowNode {
  int acting = 0;  // after the prefixes; the offset that the exception table uses
  int next = 0;
  int target = -1;  // of a jump
  bool falls_through = true;
  int reads = -1, writes = -1;  // slots; a write comes after the read
};
FlowNode FlowAt(PyCodeObject* code, int index);  // implemented for each version
int FlowSize(PyCodeObject* code);

}  // namespace frametap
