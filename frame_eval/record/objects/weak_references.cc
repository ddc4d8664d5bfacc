#include "frame_eval/record/objects/weak_references.h"

#include "frame_eval/record/callables/table.h"
#include "guards/objects/tensor_door.h"

namespace frametap {

void CallWeakReference(Recorder& r, Call& call) {
  const SourceId reference = r.SourceOf(call.callable);
  PyObject* const object = PyWeakref_GET_OBJECT(call.callable);
  if (!call.args.empty() || !reference.valid()) throw Refusal(call.callable);
  const bool is_known = IsTensor(object) && r.IsHeldByItsPath(object);
  if (object != Py_None && !is_known) throw Refusal(call.callable);  // W1, W2
  r.guards().Type(reference, r.Here());
  call.note.expect.kind = Expect::Kind::kSource;
  call.note.expect.source = r.guards().Child(reference, Accessor::kReferent, 0, nullptr, object);
  if (object == Py_None) r.guards().Identity(call.note.expect.source, r.Here());  // an object that is gone stays so
}

}  // namespace frametap
