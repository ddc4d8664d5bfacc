// ModuleRoute: where a call of a module leads, and the words of memory that this rests on. The module keeps them alive.
// Not here: what runs there (compiled_function.cc, python/bindings/inference_calls.cc).
#pragma once

#include <Python.h>

#include <cstdint>

#include "guards/kinds/words.h"

namespace frametap {

class ModuleRoute {
 public:
  // Returns the `forward` of the module's class, borrowed, if a call comes down to it. The class then has the __call__ of
  // nn.Module, and there are no hooks of the module or of all modules. Null otherwise.
  PyObject* ForwardOf(PyObject* module);

 private:
  bool IsOpen(PyTypeObject* type) const;

  uint32_t type_version_ = 0;
  Words words_;
  PyObject* forward_ = nullptr;  // borrowed of the class
};

}  // namespace frametap
