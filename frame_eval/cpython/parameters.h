// Parameters: which slot of a frame takes which argument of a call. The slots are the first ones of the frame.
#pragma once

#include <Python.h>

namespace frametap {

struct Parameters {
  explicit Parameters(PyCodeObject* code);

  // Returns the slot of an argument that is given by name, or -1: `**kwargs` takes it, or the call fails.
  int SlotOf(PyObject* name) const;

  PyCodeObject* code;
  int positional_only;
  int positional;  // those that an argument without a name can be for, positional-only ones included
  int named;       // those and the keyword-only ones
  int varargs;     // the slot of `*args`, or -1
  int kwargs;      // the slot of `**kwargs`, or -1
};

}  // namespace frametap
