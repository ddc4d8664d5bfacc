// The name of a class is not an attribute in its dict: assigning it gives the class no new version, so a guard on the
// class does not notice. A reader of it, or of a text that C code makes with it, records it here.
#pragma once

#include <Python.h>

namespace frametap {

struct Trace;

void ReadClassName(Trace& trace, PyTypeObject* type);                    // `__name__` and `__qualname__`
void ReadIfClassName(Trace& trace, PyTypeObject* type, PyObject* name);  // … if that is the name

}  // namespace frametap
