#include "frame_eval/cpython/parameters.h"

#include "frame_eval/cpython/frame_view.h"

namespace frametap {

Parameters::Parameters(PyCodeObject* code)
    : code(code),
      positional_only(code->co_posonlyargcount),
      positional(code->co_argcount),
      named(code->co_argcount + code->co_kwonlyargcount),
      varargs((code->co_flags & CO_VARARGS) != 0 ? named : -1),
      kwargs((code->co_flags & CO_VARKEYWORDS) != 0 ? named + (varargs >= 0) : -1) {}

int Parameters::SlotOf(PyObject* name) const {
  for (int i = positional_only; i < named; ++i) {
    if (SlotName(code, i) == name) return i;
  }
  // A name that is not interned, as a key of a dict may be.
  for (int i = positional_only; i < named; ++i) {
    if (PyUnicode_Compare(SlotName(code, i), name) == 0) return i;
  }
  return -1;
}

}  // namespace frametap
