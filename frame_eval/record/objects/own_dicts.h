// Dicts of the trace's own that hold numbers which are not fixed: results that a call returns by name, keywords on their way
// to another function.
//   V1  A dict has a shadow for each open number under a plain key (ObjectRecord::changes). Every change of it is followed here, or
//       fixes the numbers (FixValues).
//   V2  Reads by one key give the shadow. Whatever may look at the dict as a whole, now or later, fixes its numbers for good
//       (ViewDict, SpecializeDeep): views and iterators see what is stored after they were made.
//   V3  A view of its values or items reads none of them. Who takes them one by one gets the open numbers (sequences/R3). Any
//       other use of the view is one of V2 (MeetOpenViews).
// Not here: dicts that existed before (outside_containers.cc), tuples and lists (sequences.cc).
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"

namespace frametap {

bool MayHoldOpen(Trace& trace, PyObject* dict);
bool HoldsOpen(Trace& trace, PyObject* dict);  // … and it does
void KeepValue(Trace& trace, PyObject* dict, PyObject* key, Shadow shadow);
bool StoreOwn(Trace& trace, PyObject* dict, PyObject* key, PyObject* value, Shadow shadow);
bool MergeOpen(Trace& trace, PyObject* dict, PyObject* from);
bool UpdateOwn(Trace& trace, const Call& call);
bool PopOwn(Trace& trace, Call& call);
void ViewDict(Trace& trace, PyObject* dict, PyObject* method);
void FixValues(Trace& trace, PyObject* dict);
// Returns whether it is such a dict with open numbers and fixed plain keys, so that taking its keys reads no number.
bool GivesPlainKeys(Trace& trace, PyObject* dict);
// Returns the dict of a view whose numbers are open, or null.
PyObject* DictOfOpenView(Trace& trace, PyObject* view);
// Fixes the numbers of views that the operation `e` uses in other ways than V3.
void MeetOpenViews(Trace& trace, const Event& e);
// The same for one object, if it is such a view.
void FixView(Trace& trace, PyObject* object);

}  // namespace frametap
