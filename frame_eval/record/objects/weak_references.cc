#include "frame_eval/record/objects/weak_references.h"

#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/object_ends.h"

namespace frametap {

void CallWeakReference(Trace& trace, Call& call) {
  const SourceId reference = SourceOf(trace, call.callable);
  PyObject* const object = PyWeakref_GET_OBJECT(call.callable);
  if (!call.args.empty() || !reference.valid()) throw Refusal(call.callable);
  if (object != Py_None && !IsHeldByItsPath(trace, object)) throw Refusal(call.callable);  // W1
  trace.guards.Type(reference, trace.frames.Here());
  call.note.op.expect.SetSource(trace.guards.Child(reference, Accessor::kReferent, 0, nullptr, object));
  if (object == Py_None)
    trace.guards.Identity(call.note.op.expect.source, trace.frames.Here());  // an object that is gone stays so
}

}  // namespace frametap
