// Getters: what operator.itemgetter, attrgetter and methodcaller make. A call of one reads as the item, the attribute or
// the method call does that it stands for.
//   G1  A getter never changes. One from outside is known by which object it is.
// Not here: what makes a getter (iteration_table.cc).
#pragma once

#include <optional>

#include "frame_eval/record/trace.h"

namespace frametap {

bool IsGetter(PyObject* object);
void CallGetter(Trace& trace, Call& call);
void GetItem(Trace& trace, Call& call);  // operator.getitem
// Records the read of an attribute by C code, which takes the value as it is. Returns false if the read may run code.
bool ReadAttributeInC(Trace& trace, PyObject* object, PyObject* name);
// Returns the shadow of the result of a read that `read` expects, or none if it is not known before the read.
std::optional<Shadow> ResultOf(Trace& trace, const FrameNote& read);
// Records the reads of C code that calls the getter with `object` (sorted, map). Returns false if they are unknown.
bool ReadByGetter(Trace& trace, PyObject* getter, PyObject* object);

}  // namespace frametap
