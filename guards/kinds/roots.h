// Roots: where the paths of sources begin, on the objects of one call.
#pragma once

#include <Python.h>

namespace frametap {

// The objects that the roots of sources refer to. Everything borrowed.
struct Roots {
  PyObject* const* localsplus = nullptr;
  int nlocalsplus = 0;
  bool cells_are_plain = false;  // before MAKE_CELL / COPY_FREE_VARS ran: cell slots hold plain values or null, and
                                 // free variables are to be read from function.__closure__ (frame-less replay)
  PyObject* const* stack = nullptr;
  int depth = 0;
  PyObject* function = nullptr;
  const Roots* caller = nullptr;  // of the frame that has called this one; null where no source may lead there
};

}  // namespace frametap
