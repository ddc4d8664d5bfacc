// ClassCounters: ints of classes that were seen to change, as `type(self).calls += 1` does.
//   C1  A name is noted when a guard finds another int under it than the note of the class contains. It stays noted.
//   C2  Notes that are made since leave it out (class_note.h), as long as it is an int. Who reads it guards it by itself.
//       Names that C code looks up are never left out.
//   C3  A recording notes a class before it reads an attribute of it. So no reader of a fixed int has a note that leaves it out.
#pragma once

#include <Python.h>

namespace frametap {

// Returns whether the dict of this very class holds one under the name, which is a str.
bool IsClassCounter(PyTypeObject* type, PyObject* name);
// Returns the class of the MRO in which a look-up of the name finds a counter. Returns null if it finds something else.
PyTypeObject* ClassWithCounter(PyTypeObject* type, PyObject* name);
void NoteClassCounter(PyTypeObject* type, PyObject* name);
// Stands for the ints that are left out in a note's copy of `type`'s dict, and is put there.
PyObject* ClassCounterMark();
void MarkClassCounters(PyTypeObject* type, PyObject* copy);

}  // namespace frametap
