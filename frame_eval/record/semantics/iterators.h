// Iterators that existed before: taking from one reads what it gives next, and is an effect.
//   - The recorder reads the item, by a path through the iterator (`S[0].<next>[0]`), and its existence; not how many
//     have been given before. So a loop with a break in each round needs no segment of its own for each.
//   - A container that the trace has changed since has its items from the trace: where the iterator stands is fixed.
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"

namespace frametap {

void RefuseWrittenDict(const Trace& trace, PyObject* dict);  // iterators.cc
// Returns whether it is an iterator that existed before and whose items are followed.
bool IsMetIterator(const Trace& trace, PyObject* object);
bool TakeNext(Trace& trace, FrameNote& note, PyObject* iterator);  // before it is done; false: it is at its end
void MeetIterator(Trace& trace, PyObject* iterator, SourceId source, int depth = 0);
Shadow AdoptTaken(Trace& trace, PyObject* object, const TakenItem& taken);

}  // namespace frametap
