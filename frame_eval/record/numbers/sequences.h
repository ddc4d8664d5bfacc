// Tuples and lists that hold numbers which are not fixed, and iterators over them.
//   R1  A row has a shadow for each of its items (ObjectRecord::items), or none at all. Its numbers stay open as long as each
//       change of it is followed here; any other use or change fixes them (SpecializeDeep, MarkMutated).
//   R2  Only lists of the trace's own are followed through changes: a change of one that existed before is an effect,
//       whose values are fixed.
//   R3  An iterator over rows gives their items one by one, and reads none. A loop takes the next item. tuple(), list(), `*` and an
//       assignment to several names take what is left (TakeRest). Any other use may hand the items to C code, which reads
//       all that is in them: CloseIterator.
//   R4  A list may change while an iterator of another kind waits to look at it. Numbers that it gets are fixed then
//       (ObjectRecord::is_viewed).
#pragma once

#include <Python.h>

#include <array>

#include "frame_eval/interpreter/shadow.h"
#include "frame_eval/record/trace.h"

namespace frametap {

// A tuple that is no more than its items: no class of Python gives it operators of its own.
inline bool IsPlainTuple(PyObject* object) {
  return PyTuple_Check(object) && !PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_HEAPTYPE);
}

// A tuple or list that iteration gives by place: no class of Python has an __iter__ of its own.
inline bool IteratesByPlace(PyObject* object) {
  if (PyTuple_Check(object)) return Py_TYPE(object)->tp_iter == PyTuple_Type.tp_iter;
  return PyList_Check(object) && Py_TYPE(object)->tp_iter == PyList_Type.tp_iter;
}

// tuple(row), list(row)
inline bool CopiesRow(PyObject* callable) {
  return callable == reinterpret_cast<PyObject*>(&PyTuple_Type) ||
         callable == reinterpret_cast<PyObject*>(&PyList_Type);
}

// Notes that an iterator of C code gives what is in these rows, now or later: numbers that their lists get from here on are
// fixed.
void ViewRows(Trace& trace, PyObject* rows);

// Fixes what such a list is about to get, and returns whether it is one.
bool FixIfViewed(Trace& trace, PyObject* list, PyObject* item, Shadow shadow);

inline std::array<PyObject*, 3> PartsOf(PyObject* slice) {
  auto* parts = reinterpret_cast<PySliceObject*>(slice);
  return {parts->start, parts->stop, parts->step};
}

// Returns whether some numbers of a tuple or list are not fixed.
bool HasOpenItems(Trace& trace, PyObject* row);
bool LeavesContentOpen(Trace& trace, PyObject* row);
// Fixes all numbers of a container.
void SpecializeItems(Trace& trace, PyObject* container);
void SpecializeAndForgetItems(Trace& trace, PyObject* list);  // before it changes
// Lets the result hold the items of these rows, one row after the other.
void KeepItems(Trace& trace, FrameNote& note, std::initializer_list<PyObject*> rows);
// Takes all that an open iterator has still to give, or that a view gives. Returns false, with nothing taken, for other objects.
bool TakeRest(Trace& trace, PyObject* object, GivenItems* given);
// Returns whether the instruction takes what is left of an open iterator by TakeRest.
bool TakesRest(const Trace& trace, const Event& e, PyObject* operand);
// The call at work makes a tuple or list of `object`. Returns false, with nothing noted, as TakeRest.
bool GiveRow(Trace& trace, FrameNote& note, PyObject* object);
void AdoptGivenRow(Trace& trace, PyObject* row);
// The instruction at work gives the items to so many names. Returns false as GiveRow. If there are more or fewer items, the
// instruction raises, and they are fixed.
bool GiveItems(Trace& trace, FrameNote& note, PyObject* object, int names);
bool AppendItems(Trace& trace, PyObject* list, PyObject* items, PyObject* item, Shadow shadow);
bool StoreItem(Trace& trace, PyObject* list, PyObject* key, PyObject* value, Shadow shadow);
bool ChangeList(Trace& trace, Call& call, const char* name);
void MakesIterator(Trace& trace, const Call& call);
void OpenIteratorOver(Trace& trace, PyObject* iterator);
Shadow TakeOpen(Trace& trace, PyObject* iterator, PyObject* item);
void CloseIterator(Trace& trace, PyObject* iterator);
bool JoinRows(Trace& trace, FrameNote& note, PyObject* left, PyObject* right, bool in_place);

}  // namespace frametap
