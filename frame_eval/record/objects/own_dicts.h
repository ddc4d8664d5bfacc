// Dicts of the trace's own that hold numbers which are not fixed: results that a call returns by name, keywords on their way
// to another function.
//   V1  A dict has a shadow for each open number under a plain key (ObjectRecord::changes). Every change of it is followed here, or
//       fixes the numbers (FixValues).
//   V2  Reads by one key give the shadow. Whatever may look at the dict as a whole, now or later, fixes its numbers for good
//       (ViewDict, SpecializeDeep): views and iterators see what is stored after they were made.
// Not here: dicts that existed before (outside_containers.cc), tuples and lists (sequences.cc).
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"

namespace frametap {

bool MayHoldOpen(Trace& trace, PyObject* dict);
void KeepValue(Trace& trace, PyObject* dict, PyObject* key, Shadow shadow);
bool StoreOwn(Trace& trace, PyObject* dict, PyObject* key, PyObject* value, Shadow shadow);
bool MergeOpen(Trace& trace, PyObject* dict, PyObject* from);
bool UpdateOwn(Trace& trace, const Call& call);
bool PopOwn(Trace& trace, Call& call);
void ViewDict(Trace& trace, PyObject* dict, PyObject* method);
void FixValues(Trace& trace, PyObject* dict);

}  // namespace frametap
