// Dicts and sets of the trace's own with keys that are not fixed: the addresses of arguments, as in `id(x) in seen`.
//   K1  An operation by one key compares it with each key of the table, so the same entry is found or made in each run.
//   K2  Any other operation on the table fixes its keys (FixKeys), which ends the segment. A table that something may look at
//       later gets no open keys (ObjectRecord::is_viewed).
//   K3  A set is made again by the same additions, because its order depends on them. So its keys stay open only while
//       nothing is removed.
// Not here: open values under keys (own_dicts.cc).
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"

namespace frametap {

bool DecideKey(Trace& trace, PyObject* table, PyObject* key, Shadow shadow);
bool AddKey(Trace& trace, PyObject* table, PyObject* key, Shadow shadow);
void SpecializeKey(Trace& trace, PyObject* key, Shadow shadow);
bool ViewValues(Trace& trace, PyObject* dict);
Shadow KeyShadow(Trace& trace, PyObject* table, PyObject* key);
bool DecideKeys(Trace& trace, const Event& e);
void KeepKeys(Trace& trace, PyObject* table, const Event& e);
void FixKeys(Trace& trace, PyObject* table);
void MeetOpenKeys(Trace& trace, const Event& e);

}  // namespace frametap
