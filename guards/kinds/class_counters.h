// ClassCounters: ints of classes that were seen to change, as `type(self).calls += 1` does.
//   C1  A name is noted when a guard finds another int under it than the note of the class contains. It stays noted.
//   C2  A recording that reads it guards it by itself, and says so (NamesRead::AddInt). Then the note of the class leaves
//       it out, as long as it is an int. Names that C code looks up are never left out.
//   C3  A recording in which one read of it has fixed it does not leave it out, nor does one that has read it by a way that
//       says nothing. Both are recorded again when it changes.
#pragma once

#include <Python.h>

namespace frametap {

// Returns whether the dict of this very class holds one under the name, which is a str.
bool IsClassCounter(PyTypeObject* type, PyObject* name);
// Returns the class of the MRO in which a look-up of the name finds something, or null.
PyTypeObject* ClassThatHas(PyTypeObject* type, PyObject* name);
void NoteClassCounter(PyTypeObject* type, PyObject* name);

}  // namespace frametap
