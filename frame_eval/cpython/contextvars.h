// ContextVariables: the values of all context variables (contextvars) of a thread, as they are now.
//   V1  The context itself stays the one that is entered: only what is in it is exchanged. No code of the program runs
//       where that is done.
#pragma once

#include <Python.h>

#include "guards/ref.h"

namespace frametap {

class ContextVariables {
 public:
  ContextVariables();  // empty where there is no memory: nothing is put back then
  void PutBack() const;

 private:
  Ref<> context_, copy_;
};

}  // namespace frametap
