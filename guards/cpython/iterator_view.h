// IteratorView: the next items of an iterator of C, without taking them.
//   I1  Nothing here runs Python code, changes the iterator or makes an object.
//   I2  A view knows only the items that are there already, or that are numbers; iterators that compute items (map)
//       show what they compute them from.
//   I3  CPython hides the structs: their layouts are written down here, and each type is tried out once. One that does
//       not behave as its layout says has no view.
// Not here: what a recording makes of the items (frame_eval/record/semantics/iterators.cc).
#pragma once

#include <Python.h>

#include <cstdint>
#include <vector>

#include "guards/ref.h"

namespace frametap {

enum class IteratorKind : uint8_t {
  kNone,  // no view
  // Over one sequence or dict:
  kList,
  kListReversed,
  kTuple,
  kTupleReversed,
  kText,
  kRange,
  kDictKeys,
  kDictValues,
  kDictItems,
  // Over other iterators:
  kEnumerate,
  kZip,
  kMap,
};

IteratorKind KindOfIterator(PyObject* object);
void TryIterators();  // I3; else the first question does it
inline bool IsOverDict(IteratorKind kind) {
  return kind >= IteratorKind::kDictKeys && kind <= IteratorKind::kDictItems;
}
inline bool TakesFromIterators(IteratorKind kind) { return kind >= IteratorKind::kEnumerate; }

// How many items are left; -1: not known, or the next one is an exception. Not for those over other iterators.
int64_t ItemsLeft(PyObject* iterator);

// The container that it takes from: the sequence, the dict, the iterator (enumerate), the tuple of iterators (zip).
// For a map, the function and then the tuple. Borrowed. Null after the last one, and if an iterator at its end has
// released it.
PyObject* IteratedOver(PyObject* iterator, int64_t i);

// The item that comes after `skip` others. Borrowed; null if there is none, or the iterator has no such items.
PyObject* UpcomingItem(PyObject* iterator, int64_t skip);                // of lists and tuples; values of dicts
PyObject* UpcomingKey(PyObject* iterator, int64_t skip);                 // of dicts
bool UpcomingNumber(PyObject* iterator, int64_t skip, int64_t* number);  // of range; the count of enumerate

// Where an iterator stands, to be put back there. Others keep the iterator alive.
class IteratorPlace {
 public:
  explicit IteratorPlace(PyObject* iterator);
  void PutBack();

 private:
  PyObject* iterator_;
  Ref<> over_;
  int64_t index_ = 0, left_ = 0;
  std::vector<IteratorPlace> parts_;
};

}  // namespace frametap
