// Calls of weak references: `ref()`. torch's recurrent layers check in this way whether their weights are still the same. Its
// schedulers hold the optimizer in this way around its `step`.
//   W1  The recorder keeps the objects that it knows alive, so a reference may see an object that plain Python would have
//       ended. The call is recorded only if nothing on the path to the object has been released.
// Not here: weak references as keys (class_references.h), and the end of objects (object_ends.cc).
#pragma once

#include "frame_eval/record/trace.h"

namespace frametap {

void CallWeakReference(Trace& trace, Call& call);  // of the very type weakref.ref

}  // namespace frametap
